"""A site is looked at before it takes part: what is wrong is named, with what helps."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import PrivateFormat
from PIL import Image

from dcfl.cli.main import main
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.flower.deploy import checks, site_check
from dcfl.flower.deploy.checks import Finding, check_link, problems
from dcfl.flower.deploy.daemons import (
    Daemon,
    Deployment,
    add_to_record,
    free_ports,
    read_record,
    start_of,
)
from dcfl.flower.deploy.keys import make_keys, private_text
from dcfl.flower.deploy.kit_folder import open_site, unreachable
from dcfl.flower.deploy.site_check import check_site, check_versions
from dcfl.flower.site_failures import Refusal
from tests.flower.deploy.pictures import pictures

Cli = Callable[..., tuple[int, str, str]]
AGREED = Experiment(DataSettings("remote", clients=2, class_names=("dark", "light")))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["north"])
    return folder


@pytest.fixture(scope="module")
def address(keys: Path) -> Iterator[str]:
    """Of a server that can say nothing but its certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # closed at the end
                while True:
                    connection, _ = listening.accept()
                    with suppress(OSError), context.wrap_socket(connection, server_side=True):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Exit code, standard output and standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dcfl", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return call


class Place(NamedTuple):
    folder: Path

    def pictures(self) -> list[Path]:
        return sorted((self.folder / "scans").rglob("*.png"))

    def edit(self, old: str, new: str) -> None:
        path = self.folder / "site.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def site(tmp_path: Path, keys: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A site's folder with which nothing is wrong, if the SuperLink knows its key."""
    monkeypatch.setattr(checks, "_activation_code", lambda *_: 2003)
    folder = tmp_path / "site"
    (port,) = free_ports(1)
    pictures(folder / "scans", each=5)
    (folder / "keys").mkdir()
    for name in ("ca.crt", "north", "north.pub"):
        (folder / "keys" / name).write_bytes((keys / name).read_bytes())
    (folder / "keys" / "north").chmod(0o600)
    (folder / "site.toml").write_text(
        f"""
[superlink]
address = "{address}"
root-certificate = "keys/ca.crt"
key = "keys/north"
port = {port}

[node]
partition-id = 0
num-partitions = 2
data = "folder:scans"
memories = "state/memories"
"""
    )
    return Place(folder)


def looked_at(site: Place, run: Experiment | None = AGREED) -> list[Finding]:
    return check_site(open_site(site.folder), run)


def test_a_site_that_is_fit(site: Place) -> None:
    found = looked_at(site)
    assert problems(found) == []
    subjects = [finding.subject for finding in found]
    assert subjects[:6] == ["versions", "node config", "rules", "data", "pictures", "classes"]
    assert subjects[6:11] == ["groups", "identical", "disk", "disk", "port"]
    assert subjects[11:] == ["key", "authority", "network", "TLS", "registered"]


def test_a_site_sees_whether_its_patients_were_understood(site: Place) -> None:
    def groups() -> Finding:
        return next(finding for finding in looked_at(site) if finding.subject == "groups")

    assert groups().text == "none by group = 'subfolder': every picture is taken for itself"
    for shade, number in (("dark", 0), ("dark", 1), ("light", 0)):
        of_patient = site.folder / "scans" / shade / f"patient_{number}"
        of_patient.mkdir()
        (site.folder / "scans" / shade / f"{number}.png").rename(of_patient / "1.png")
    assert groups().text == "2 groups by group = 'subfolder', such as patient_0"
    site.edit("[node]", "[node]\ngroup = 'patient_(0)'")
    found = groups()
    assert not found.ok
    assert "finds no group in its name" in found.text
    site.edit("patient_(0)", "patients.csv")
    rows = [f"scans/{path.relative_to(site.folder / 'scans')},x" for path in site.pictures()]
    (site.folder / "patients.csv").write_text("\n".join(["file,group", *rows]))
    assert groups().text == f"1 group by group = '{site.folder}/patients.csv', such as x"


def test_a_site_sees_that_it_agreed_to_other_classes(site: Place) -> None:
    site.edit("[node]", '[node]\nclasses = "light, dark"')
    (found,) = problems(looked_at(site))
    assert found.subject == "classes"
    site.edit("light, dark", "dark, light")
    assert not problems(looked_at(site))


def test_a_site_that_lets_runs_try_names_is_told_the_line_against_it(site: Place, cli: Cli) -> None:
    def classes(run: Experiment | None = AGREED) -> Finding:
        return next(finding for finding in looked_at(site, run) if finding.subject == "classes")

    assert classes().ok
    line = 'classes = "dark,light"'
    assert f"unless you set {line} in [node] of site.toml" in classes().remedy
    assert "--run" in classes(None).text
    _, out, _ = cli("flower", "check-site", str(site.folder))
    assert "ok       classes" in out
    site.edit("[node]", f"[node]\n{line}")
    assert classes().remedy == ""


def test_pictures_that_are_there_twice_are_a_warning(site: Place, cli: Cli) -> None:
    for shade, path in enumerate(site.pictures()):
        Image.new("L", (32, 32), 10 * shade).save(path)
    before = next(finding for finding in looked_at(site) if finding.subject == "identical")
    assert (before.text, before.remedy) == ("none in two places that matter", "")
    first, *_, tested = sorted((site.folder / "scans" / "dark").iterdir())
    shutil.copy(first, tested)
    shutil.copy(first, site.folder / "scans" / "light" / "0.png")
    found = looked_at(site)
    assert problems(found) == []
    told = next(finding for finding in found if finding.subject == "identical")
    assert told.text == "1 both to train on and to test on, 1 under two labels"
    code, out, _ = cli("flower", "check-site", str(site.folder))
    assert code == 0
    assert re.search("warning  identical +1 both to train on", out)
    SPOILS["broken"][0](site)  # is to be mended first
    assert "identical" not in [finding.subject for finding in looked_at(site)]


def other_authority(site: Place) -> None:
    make_keys(site.folder / "other", ["north"])
    (site.folder / "other" / "ca.crt").rename(site.folder / "keys" / "ca.crt")


def strange_key() -> bytes:
    """On a curve for which there are no .pub files."""
    key = ec.generate_private_key(ec.BrainpoolP256R1())
    return private_text(key, PrivateFormat.PKCS8)


def other_key(site: Place) -> None:
    make_keys(site.folder / "other", ["north"])
    (site.folder / "other" / "north").rename(site.folder / "keys" / "north")


SPOILS: dict[str, tuple[Callable[[Place], Any], str, str, str]] = {
    "folder": (
        lambda site: (site.folder / "scans").rename(site.folder / "moved"),
        "data",
        "no such folder",
        "correct data",
    ),
    "empty": (
        lambda site: [path.unlink() for path in site.folder.rglob("*.png")],
        "data",
        "0 pictures that can be read",
        "at least two",
    ),
    "broken": (
        lambda site: (site.folder / "scans" / "dark" / "2.png").write_text("no"),
        "pictures",
        "broken are 1 of 10: dark/2.png (not an image of a known format)",
        'broken = "skip"',
    ),
    "class": (
        lambda site: (site.folder / "scans" / "grey").mkdir(),
        "classes",
        "grey: not among those agreed on, dark, light",
        "rename the folder",
    ),
    "misspelt": (
        lambda site: site.edit("memories", "memory"),
        "node config",
        "unknown key memory: did you mean memories?",
        "site.toml",
    ),
    "misspelt value": (
        lambda site: site.edit("[node]", '[node]\nwithhold = "class-count"'),
        "node config",
        "unknown word class-count: did you mean class-counts?",
        "site.toml",
    ),
    "withheld": (  # DCFL-PW sends class means
        lambda site: site.edit("[node]", '[node]\nwithhold = "class-counts"'),
        "rules",
        "would refuse the run: it withholds class counts, and what dcfl-pw sends",
        "change site.toml",
    ),
    "number": (
        lambda site: site.edit("num-partitions = 2", "num-partitions = 3"),
        "node config",
        "the run has 2 sites",
        "the same",
    ),
    "version": (
        lambda site: (site.folder / "constraints.txt").write_text("torch==1.0\nflwr==0.1\n"),
        "versions",
        "1.0 at the server",
        "install the server's",
    ),
    "open key": (
        lambda site: (site.folder / "keys" / "north").chmod(0o640),
        "key",
        "others can read it (mode 640)",
        "chmod 600",
    ),
    "no key": (
        lambda site: (site.folder / "keys" / "north").unlink(),
        "key",
        "cannot be read (No such file or directory)",
        "bring the site's key",
    ),
    "no private key": (
        lambda site: (site.folder / "keys" / "north").write_text("nonsense"),
        "key",
        "not a private key",
        "bring the site's key",
    ),
    "key of another curve": (
        lambda site: (site.folder / "keys" / "north").write_bytes(strange_key()),
        "key",
        "not a private key",
        "bring the site's key",
    ),
    "other key": (other_key, "key", "north.pub is that of another key", "bring the site's key"),
    "no authority": (
        lambda site: (site.folder / "keys" / "ca.crt").write_text("nonsense"),
        "authority",
        "not a certificate",
        "ca.crt",
    ),
    "other authority": (other_authority, "TLS", "not accepted: ", "--hosts"),
    "address": (
        lambda site: site.edit("127.0.0.1:", "127.0.0.1:1"),
        "network",
        "does not answer",
        "firewall",
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_wrong_is_named_with_what_helps(spoil: str, site: Place) -> None:
    change, subject, text, remedy = SPOILS[spoil]
    change(site)
    (found,) = problems(looked_at(site))
    assert found.subject == subject
    assert text in found.text
    assert remedy in found.remedy


def test_a_site_may_have_decided_about_broken_pictures(site: Place) -> None:
    SPOILS["broken"][0](site)
    site.edit("[node]", '[node]\nbroken = "skip"')
    found = looked_at(site)
    assert problems(found) == []
    assert any("left out are 1 of 10" in finding.text for finding in found)


def test_what_is_withheld_is_said(site: Place) -> None:
    assert "withheld: nothing" in [finding.text for finding in looked_at(site)]
    site.edit("[node]", '[node]\nwithhold = "sizes, scores"')
    found = looked_at(site, None)
    assert problems(found) == []
    assert "withheld: scores, class-counts, sizes" in [finding.text for finding in found]


def test_every_rule_in_force_is_said(site: Place) -> None:
    site.edit("[node]", f'[node]\nrounds-per-day = 8\ncode-sha256 = "{"0" * 64}"')
    (told,) = (finding.text for finding in looked_at(site) if finding.subject == "rules")
    assert told == f"withheld: nothing; rounds-per-day = 8; code-sha256 = {'0' * 17}…{'0' * 6}"


def test_a_run_whose_scores_would_spend_the_budget_is_named(site: Place) -> None:
    site.edit("[node]", "[node]\nprivacy-noise = 1.0")
    run = replace(AGREED, data=replace(AGREED.data, holdout=0.2))
    (found,) = problems(looked_at(site, run))
    assert (found.subject, Refusal.HOLDOUT_UNPROTECTED.value in found.text) == ("rules", True)
    assert problems(looked_at(site)) == []


def test_the_port_of_the_supernode(site: Place) -> None:
    kit = open_site(site.folder)
    with socket.create_server(("127.0.0.1", kit.port)):
        (found,) = problems(looked_at(site))
        assert (found.subject, found.text) == ("port", f"{kit.port} is in use by another program")
        assert found.remedy == "set another port in [superlink] of site.toml"
        kit.state.mkdir(exist_ok=True)
        this = Daemon("north", os.getpid(), start_of(os.getpid()))
        add_to_record(kit.state, Deployment(kit.address, tls=True), this)
        assert problems(looked_at(site)) == []


def test_a_full_disk_is_a_problem(site: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_check, "LEAST_FREE", 2**80)
    assert {finding.subject for finding in problems(looked_at(site))} == {"disk"}


@pytest.mark.parametrize(("code", "ok"), [(2003, True), (2004, False), (0, True)])
def test_a_key_that_the_superlink_does_not_know(
    code: int, ok: bool, site: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_activation_code", lambda *_: code)
    registered = looked_at(site)[-1]
    assert (registered.subject, registered.ok) == ("registered", ok)


def test_the_way_to_the_server_in_one_line(keys: Path, address: str, tmp_path: Path) -> None:
    """As a container asks every minute."""
    authority = keys / "ca.crt"
    assert unreachable(address, authority) == ""
    assert "cannot be read" in unreachable(address, tmp_path / "ca.crt")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        port = listener.getsockname()[1]
        assert unreachable(f"127.0.0.1:{port}", authority).startswith("no TLS there")
    assert "does not answer (Connection refused)" in unreachable(f"127.0.0.1:{port}", authority)


def test_flower_with_other_inner_parts_is_no_problem(keys: Path, address: str) -> None:
    """The server of this test hangs up on Flower."""
    found = check_link(address, keys / "ca.crt", keys / "north")
    assert problems(found) == []
    assert found[-1].text.startswith("not looked at: ")


def test_versions_are_compared_without_their_build(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"dcfl[site]=={version('dcfl')}\n")
    pinned = version("torch").partition("+")[0]
    (tmp_path / "constraints.txt").write_text(f"# made by\ntorch=={pinned}\n")
    assert "as at the server" in check_versions(tmp_path).text
    (tmp_path / "requirements.txt").write_text("dcfl[site]==9.9\n")
    assert f"dcfl {version('dcfl')} here, 9.9 at the server" in check_versions(tmp_path).text


def test_the_command(site: Place, cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("flower", "check-site", str(site.folder))
    assert code == 0
    assert out.splitlines()[0].startswith("ok       versions     dcfl ")
    assert "--run CONFIG.toml compares them" in out
    (tmp_path / "run.toml").write_text(
        '[data]\ndataset = "remote"\nclients = 2\nclass_names = ["dark", "grey"]\n'
    )
    (site.folder / "keys" / "north").chmod(0o644)
    words = ["flower", "check-site", str(site.folder), "--run", str(tmp_path / "run.toml")]
    code, out, _ = cli(*words)
    assert code == 1
    assert "problem  classes" in out
    assert "         " + " " * 13 + "-> chmod 600 " in out
    code, out, _ = cli(*words, "--json")
    assert code == 1
    rows = json.loads(out)
    wrong = [row["subject"] for row in rows if not row["ok"]]
    assert wrong == ["classes", "key"]
    assert all(row["remedy"] for row in rows if not row["ok"])


def test_a_folder_that_is_no_sites_is_bad_usage(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("flower", "check-site", str(tmp_path))
    assert code == 2
    assert "not a site's folder, there is no site.toml; `dcfl flower kit` writes one" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("kind", ["pipe", "huge"])
@pytest.mark.parametrize(
    "name", ["keys/north", "keys/north.pub", "keys/ca.crt", "requirements.txt", "site.toml"]
)
def test_a_file_that_is_none_is_not_waited_for(name: str, kind: str, site: Place, cli: Cli) -> None:
    """Nor read whole: a kit comes from somebody else."""
    path = site.folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 10**11)
    code, out, err = cli("flower", "check-site", str(site.folder))
    assert "bug in dcfl" not in out + err
    assert code or name in ("requirements.txt", "keys/north.pub")  # without which a site is fit


@pytest.mark.parametrize("pid", ['"1"', "-1", "0", f"{2**70}", "null", "[1]"])
def test_a_record_of_processes_that_cannot_be_is_one_line(pid: str, tmp_path: Path) -> None:
    row = f'{{"name": "n", "pid": {pid}, "started": 1.0}}'
    text = f'{{"address": "x:1", "tls": true, "daemons": [{row}]}}'
    for damaged in (text, "[" * 10**5, "[]"):
        (tmp_path / "processes.json").write_text(damaged)
        with pytest.raises(ConfigError, match="damaged"):
            read_record(tmp_path)
