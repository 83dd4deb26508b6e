"""Kits as they are written: what is in them, who can read it, and that each file is well formed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dcfl.errors import ConfigError, StorageError
from dcfl.flower.deploy.checks import check_authority, read_key
from dcfl.flower.deploy.keys import LOCAL_HOSTS, make_keys, valid_until
from dcfl.flower.deploy.kit_folder import ServerKit, SiteKit, open_kit
from dcfl.flower.deploy.kit_writing import Kits, constraints
from dcfl.flower.deploy.site_check import check_versions
from dcfl.flower.node_config import KEYS, NodeConfig
from dcfl.system.build import PACKAGE, code_sha256, wheel_sha256

SITES = ("north", "south")
WHEEL = "dcfl-0.2.0-py3-none-any.whl"


def write_wheel(path: Path, more: bytes = b"") -> None:
    """With the code of this dcfl."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in PACKAGE.rglob("*.py"):
            changed = file.read_bytes() + (more if file.name == "errors.py" else b"")
            archive.writestr(f"dcfl/{file.relative_to(PACKAGE).as_posix()}", changed)
        archive.writestr("dcfl-0.2.0.dist-info/METADATA", "Name: dcfl\n")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """north, south and server."""
    folder = tmp_path_factory.mktemp("kits")
    write_wheel(folder / WHEEL)
    federation = Kits(
        "fl.example.org:8443", SITES, folder / "keys", "folder:/data/my scans", folder / WHEEL
    )
    federation.make_missing_keys()
    for name in (*SITES, "server"):
        federation.write(name, folder)
    return folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def read_compose(folder: Path) -> Any:
    return yaml.safe_load((folder / "compose.yaml").read_text())


def test_a_site_gets_its_own_key_and_no_other(kits: Path) -> None:
    keys = {path.name for path in (kits / "south" / "keys").iterdir()}
    assert keys == {"ca.crt", "south", "south.pub"}
    assert mode(kits / "south" / "keys" / "south") == 0o600
    assert mode(kits / "south") == mode(kits / "south" / "keys") == 0o700
    made = kits / "keys" / "south"
    theirs = read_key(kits / "south" / "keys" / "south")
    assert theirs.private_numbers() == read_key(made).private_numbers()


def test_the_server_gets_no_private_key_but_its_own(kits: Path) -> None:
    keys = {path.name for path in (kits / "server" / "keys").iterdir()}
    assert keys == {"ca.crt", "server.pem", "server.key", "north.pub", "south.pub"}
    assert mode(kits / "server" / "keys" / "server.key") == 0o600


def test_scripts_can_be_executed_and_are_sound(kits: Path) -> None:
    scripts = {
        "north": ("install", "start", "stop", "status", "check"),
        "server": ("install", "start", "stop", "status", "run", "add"),
    }
    checker = ["shellcheck"] if shutil.which("shellcheck") else ["sh", "-n"]
    for kit, names in scripts.items():
        for name in names:
            assert mode(kits / kit / name) == 0o755
            assert (kits / kit / name).read_text().startswith("#!/bin/sh\n# ")
            subprocess.run([*checker, str(kits / kit / name)], check=True)
        executable = {path.name for path in (kits / kit).iterdir() if path.is_file()}
        executable = {name for name in executable if mode(kits / kit / name) & 0o100}
        assert executable == {*names}


def test_before_the_installation_a_script_says_so(kits: Path) -> None:
    for script in (kits / "north" / "check", kits / "server" / "run"):
        done = subprocess.run([str(script)], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == f"run {script.parent}/install first\n"


def test_a_script_hands_its_words_on(kits: Path, tmp_path: Path) -> None:
    """As in ./check --run CONFIG.toml, ./status --json, ./run CONFIG.toml key=value."""
    for kit, name in (("north", "check"), ("north", "status"), ("server", "run")):
        folder = tmp_path / kit
        shutil.copytree(kits / kit, folder, dirs_exist_ok=True)
        dcfl = folder / "venv" / "bin" / "dcfl"
        dcfl.parent.mkdir(parents=True, exist_ok=True)
        dcfl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        dcfl.chmod(0o755)
        command = [folder / name, "--run", "a config.toml"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "--run\na config.toml\n" in done.stdout


def test_the_config_of_a_site_is_read_as_it_was_meant(kits: Path) -> None:
    kit = open_kit(kits / "south")
    assert isinstance(kit, SiteKit)
    assert (kit.name, kit.address) == ("south", "fl.example.org:8443")
    assert kit.authority.is_file()
    assert kit.key.is_file()
    config = NodeConfig.read(kit.node_config)
    assert (config.place, config.num_partitions) == (None, 0)  # the federation may grow
    assert config.data == "folder:/data/my scans"
    assert config.memories_folder == kits / "south" / "state" / "memories"


def test_every_key_of_a_node_config_is_explained(kits: Path) -> None:
    """And is valid as it stands there, once its comment sign is removed."""
    text = (kits / "north" / "site.toml").read_text()
    uncommented = re.sub(r"^# ([a-z][a-z0-9-]* = )", r"\1", text, flags=re.MULTILINE)
    node = tomllib.loads(uncommented)["node"]
    assert node.keys() == {*KEYS}
    NodeConfig.read(node)


def test_the_audit_log_of_the_example_is_the_usual_one(kits: Path) -> None:
    usual = open_kit(kits / "north")
    assert isinstance(usual, SiteKit)
    log = NodeConfig.read(usual.node_config).rules.log
    example = re.search(r'^# audit = "(.*)"', (kits / "north" / "site.toml").read_text(), re.M)
    assert log is not None
    assert example is not None
    assert kits / "north" / example[1] == log.path


def test_the_config_of_the_server_is_read_as_it_was_meant(kits: Path) -> None:
    kit = open_kit(kits / "server")
    assert isinstance(kit, ServerKit)
    assert kit.sites == SITES
    assert kit.link.address == f"127.0.0.1:{kit.port}"
    assert all(path.is_file() for path in (*kit.public_keys, kit.authority))
    proxy = (kits / "server" / "fleet-proxy.conf").read_text()
    assert "listen 8443 ssl;" in proxy
    assert f"proxy_pass https://127.0.0.1:{kit.port};" in proxy


@pytest.mark.parametrize("name", ["north", "server"])
def test_the_image_is_small_in_rights_and_holds_no_key(name: str, kits: Path) -> None:
    """A small lint: pinned base, exec forms, no root, nothing secret copied."""
    text = (kits / name / "Dockerfile").read_text()
    assert "not run with a container engine" in text.splitlines()[0]
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    words = [word for word, _ in steps]
    known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "ENV", "HEALTHCHECK", "CMD"}
    assert {*words} <= known
    last = dict(steps)
    assert re.fullmatch(r"python:\d+\.\d+-[\w-]+", last["FROM"])
    assert last["USER"] == "dcfl"
    assert words.index("USER") > len(words) - 1 - words[::-1].index("RUN")
    assert last["CMD"] == '["dcfl", "flower", "daemon", "run", "/kit"]'
    assert last["HEALTHCHECK"].endswith('CMD ["dcfl", "flower", "daemon", "status", "/kit"]')
    assert last["COPY"].split() == ["constraints.txt", "requirements.txt", WHEEL, "./"]
    installs = [text for word, text in steps if word == "RUN" and "apt-get" in text]
    assert len(installs) == (name == "server")
    assert all("--no-install-recommends" in text and "rm -rf" in text for text in installs)
    ignored = (kits / name / ".dockerignore").read_text().splitlines()
    assert next(line for line in ignored if not line.startswith("#")) == "*"


def test_a_sites_container_reads_its_data_and_keeps_its_key_secret(kits: Path) -> None:
    compose = read_compose(kits / "north")
    (site,) = compose["services"].values()
    assert site["read_only"] is True
    assert site["cap_drop"] == ["ALL"]
    assert "ports" not in site
    assert "user" not in site  # the image's
    (data,) = [mount for mount in site["volumes"] if isinstance(mount, dict)]
    assert data["source"] == data["target"] == "/data/my scans"
    assert data["read_only"] is True
    bound = [mount.split(":") for mount in site["volumes"] if isinstance(mount, str)]
    assert [mount[1] for mount in bound if mount[-1] != "ro"] == ["/kit/state"]
    assert not any(mount[0].endswith("keys/north") for mount in bound)
    assert site["secrets"] == [{"source": "site-key", "target": "/kit/keys/north"}]
    assert compose["secrets"] == {"site-key": {"file": "./keys/north"}}
    assert compose["volumes"].keys() == {"state"}
    for mount in bound:
        assert not mount[0].startswith(".") or (kits / "north" / mount[0]).exists()
    gpu = yaml.safe_load((kits / "north" / "compose.gpu.yaml").read_text())
    assert gpu["services"].keys() == compose["services"].keys()


def test_the_servers_container_publishes_the_proxy_alone(kits: Path) -> None:
    (server,) = read_compose(kits / "server")["services"].values()
    assert server["ports"] == ["8443:8443"]
    sources = [mount.split(":")[0] for mount in server["volumes"] if mount.startswith(".")]
    assert {"./keys/north.pub", "./keys/south.pub", "./keys/server.pem"} <= {*sources}
    assert all((kits / "server" / source).exists() for source in sources)
    assert "./keys/server.key" not in sources


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
@pytest.mark.parametrize("name", ["north", "server"])
def test_systemd_understands_the_unit(name: str, kits: Path) -> None:
    unit = kits / name / f"dcfl-{name}.service"
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    of_unit = [line for line in done.stderr.splitlines() if unit.name in line]
    # Its program is where a kit will be unpacked, not here.
    assert [line for line in of_unit if "is not executable" not in line] == []


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not here")
def test_nginx_understands_the_proxy(kits: Path, tmp_path: Path) -> None:
    config = str(kits / "server" / "fleet-proxy.conf")
    command = ["nginx", "-t", "-p", f"{tmp_path}/", "-c", config, "-e", "stderr"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("was_there", [False, True])
def test_half_an_installation_is_removed(was_there: bool, kits: Path, tmp_path: Path) -> None:
    """One that was there before stays."""
    folder = tmp_path / "north"
    shutil.copytree(kits / "north", folder)
    if was_there:
        (folder / "venv").mkdir()
    python = tmp_path / "python"  # makes an environment whose pip fails
    python.write_text("#!/bin/sh\nmkdir -p venv/bin; ln -s /bin/false venv/bin/pip\n")
    python.chmod(0o700)
    done = subprocess.run([folder / "install"], env={**os.environ, "PYTHON": str(python)})
    assert done.returncode == 1
    assert (folder / "venv").exists() == was_there


def test_sites_install_what_the_operator_has(kits: Path) -> None:
    assert (kits / "north" / "requirements.txt").read_text() == f"./{WHEEL}[site]\n"
    assert wheel_sha256(kits / "north" / WHEEL) == code_sha256()
    lines = constraints().splitlines()
    names = {line.split("==")[0] for line in lines[1:]}
    assert {"torch", "flwr", "cryptography", "numpy"} <= names
    assert "dcfl" not in names
    assert "+" not in "".join(lines)


def test_a_kit_knows_its_code_and_a_site_compares(tmp_path: Path) -> None:
    """Two builds of one version: a line more in one file."""
    wheels = {"same": b"", "other": b"# a line\n"}
    for name, more in wheels.items():
        wheel = tmp_path / name / WHEEL
        wheel.parent.mkdir()
        write_wheel(wheel, more)
        assert (wheel_sha256(wheel) == code_sha256()) == (name == "same")
        made = Kits("fl.example.org:8443", SITES, tmp_path / "keys", wheel=wheel)
        made.make_missing_keys()
        found = check_versions(made.write("north", tmp_path / f"kits-{name}"))
        assert found.ok == (name == "same")
    assert "has other code than the server's" in found.text
    assert found.remedy.startswith("run ./install again")


def test_without_a_wheel_dcfl_comes_from_the_package_index(tmp_path: Path) -> None:
    federation = Kits("localhost:8443", ("a",), tmp_path / "keys")
    federation.make_missing_keys()
    folder = federation.write("a", tmp_path)
    assert re.fullmatch(r"dcfl\[site\]==[\d.]+\n", (folder / "requirements.txt").read_text())


def test_the_readmes_name_what_is_there(kits: Path) -> None:
    for name in ("north", "server"):
        readme = (kits / name / "README.md").read_text()
        assert len(readme.splitlines()) < 70  # a page
        assert f"{valid_until(kits / 'keys'):%B %Y}" in readme
        for script in re.findall(r"\./(\w+)", readme):
            assert (kits / name / script).exists(), script


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"superlink": "fl.example.org"}, "give host:port"),
        ({"superlink": "fl.example.org:0"}, "give host:port"),
        ({"superlink": 'x"\n:1'}, "give host:port"),
        ({"sites": ()}, "which sites are there"),
        ({"superlink": "fl.example.org:٣"}, "give host:port"),
        ({"superlink": "\u202efl.example.org:1"}, "give host:port"),
        ({"sites": ("a b",)}, "a name has up to 100 letters"),
        ({"sites": ("../a",)}, "a name has up to 100 letters"),
        ({"sites": ("a\udc80",)}, "a name has up to 100 letters"),
        ({"sites": ("a" * 101,)}, "a name has up to 100 letters"),
        ({"sites": ("server",)}, "kept for other files"),
        ({"sites": ("north", "North")}, "same name"),
        ({"wheel": Path("nowhere.whl")}, "not a wheel"),
        ({"wheel": "a b.whl"}, "not a wheel"),
        ({"wheel": "a.whl\n; touch x.whl"}, "not a wheel"),
        ({"wheel": "a\u2066.whl"}, "not a wheel"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    usual = {"superlink": "localhost:8443", "sites": SITES, "keys": tmp_path / "keys"}
    if isinstance(name := changes.get("wheel"), str):
        changes = {"wheel": tmp_path / name}
        (tmp_path / name).write_bytes(b"wheel")
    before = [*tmp_path.iterdir()]
    with pytest.raises(ConfigError, match=said):
        Kits(**{**usual, **changes})
    assert [*tmp_path.iterdir()] == before


@pytest.mark.parametrize(
    "data",
    [
        *("scans", "folder:scans", "any", "folder:", "npz:a", "folder:/a/../../etc", "folder:/.."),
        *(
            f"folder:/a{odd}b"
            for odd in '"\\$\n\r\t\0\x1b\x7f\x85\xa0\u2028\u202e\u2066\u200b\udc80'
        ),
        *("folder:/a ", "folder: /a", "sites:/a\ud800"),
    ],
)
def test_a_path_must_mean_the_same_everywhere(data: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        Kits("fl.example.org:8443", SITES, tmp_path / "keys", data)


class Clock(datetime):
    shift = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + cls.shift


@pytest.mark.parametrize(
    ("days", "removed", "said"),
    [
        (2, (), r"keys/ca\.crt has expired on \d+ \w+ \d{4}: make all keys anew with"),
        (-2, (), r"keys/ca\.crt is not valid before \d+ \w+ \d{4}, by this machine's clock: make"),
        (
            2,
            ("ca.crt", "ca.key"),
            r"server\.pem has expired on .*: move server\.pem and server\.key",
        ),
        (0, (), ""),
    ],
)
def test_no_kit_is_made_of_keys_that_are_of_no_use_today(
    days: int, removed: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, SITES[:1], ["fl.example.org", *LOCAL_HOSTS], days=1)
    if removed:  # an authority that lives longer
        make_keys(tmp_path / "other", SITES[:1], days=9)
        for name in removed:
            (tmp_path / "other" / name).replace(keys / name)
    before = {path.name for path in keys.iterdir()}
    monkeypatch.setattr("dcfl.flower.deploy.keys.datetime", Clock)
    monkeypatch.setattr(Clock, "shift", timedelta(days=days))
    federation = Kits("fl.example.org:8443", SITES, keys)
    finding = check_authority(keys / "ca.crt")
    if not said:
        federation.make_missing_keys()
        assert finding.ok
        return
    with pytest.raises(ConfigError, match=said):
        federation.make_missing_keys()
    assert {path.name for path in keys.iterdir()} == before
    assert finding.ok == bool(removed)
    assert finding.ok or re.search(said.partition(":")[0], finding.text.replace("crt:", "crt"))


def test_a_site_that_has_a_key_is_not_forgotten(kits: Path) -> None:
    with pytest.raises(ConfigError, match="--sites north,south"):
        Kits("fl.example.org:8443", ("north",), kits / "keys").make_missing_keys()


def test_a_certificate_for_another_host_is_not_sent(kits: Path) -> None:
    with pytest.raises(ConfigError, match=r"not for other\.example\.org"):
        Kits("other.example.org:8443", SITES, kits / "keys").make_missing_keys()


@pytest.mark.parametrize(("file", "other"), [("south.pub", "north.pub"), ("server.pem", "ca.crt")])
def test_keys_that_do_not_belong_together_make_no_kit(
    file: str, other: str, kits: Path, tmp_path: Path
) -> None:
    """A public key of another site, and a certificate that names no host."""
    keys = tmp_path / "keys"
    shutil.copytree(kits / "keys", keys)
    shutil.copy(keys / other, keys / file)
    with pytest.raises(ConfigError, match=r"is not of the key|exists and is not for fl\.example"):
        Kits("fl.example.org:8443", SITES, keys).make_missing_keys()


def test_a_kit_is_never_written_over(kits: Path) -> None:
    before = (kits / "north" / "site.toml").read_text()
    with pytest.raises(ConfigError, match="is there already"):
        Kits("fl.example.org:8443", SITES, kits / "keys").write("north", kits)
    assert (kits / "north" / "site.toml").read_text() == before


def test_half_a_kit_is_no_kit(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dcfl.flower.deploy.kit_writing.shutil.copy", full)
    with pytest.raises(StorageError, match="No space left"):
        Kits("fl.example.org:8443", SITES, kits / "keys").write("north", tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"\[(node|superlink)\] is missing"),
        ("[node]\n[superlink]\n[other]\n", r"\[other\] is unknown"),
        ("node = 1\nsuperlink = 2\n", "is not a table"),
        ("[node", "not TOML"),
        ("[node]\n[superlink]\nwhere = 'x:1'\n", "where is unknown"),
        ("[node]\n[superlink]\naddress = 'x:1'\n", "root-certificate: give a text"),
        (
            "[node]\n[superlink]\naddress='x:1'\nkey='k'\nroot-certificate='c'\nport=true\n",
            "port: give a number",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"site\.toml: .*{said}"):
        open_kit(tmp_path)


def test_another_folder_is_no_kit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a kit"):
        open_kit(tmp_path)
