"""Kits from outside: whatever is wrong with their files, each is read or refused in one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dcfl.errors import ConfigError
from dcfl.flower.deploy.checks import check_authority, check_key
from dcfl.flower.deploy.daemons import RECORD, Daemon, read_record
from dcfl.flower.deploy.kit_folder import open_kit
from dcfl.flower.deploy.kit_writing import Kits
from dcfl.flower.roster import fingerprint_in
from tests.reliability.test_folders import nastier, of_toml
from tests.reliability.victims import SLOW, damaged

MUTATIONS = 4_000 if SLOW else 300
DAEMON = {"name": "superlink", "pid": 2**22 + 1, "started": 1.5}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    made = Kits("localhost:1", ("north",), folder / "keys")
    made.make_missing_keys()
    for name in ("north", "server"):
        written = made.write(name, folder)
        (written / "state").mkdir()
        record = {"address": "localhost:1", "tls": True, "daemons": [DAEMON]}
        (written / "state" / RECORD).write_text(json.dumps(record))
    return folder


def read(kit: Path) -> None:
    """All that its scripts read without a network."""
    found = open_kit(kit)
    _ = [daemon.alive for daemon in read_record(found.state).daemons]
    for path in kit.glob("keys/*"):
        if path.suffix == ".pub":
            fingerprint_in(path)
        elif path.suffix == ".crt":
            assert "\n" not in check_authority(path).text
        elif path.suffix != ".key":
            assert "\n" not in check_key(path).text


def lines_of(task: Callable[[], object]) -> int:
    """How many lines it is refused with; 0: it is not."""
    try:
        task()
    except ConfigError as error:
        return len(str(error).splitlines())
    return 0


def test_mutations_of_kits(kits: Path, tmp_path: Path) -> None:
    rng, refused = random.Random(1), 0
    for _ in range(MUTATIONS):
        kit = tmp_path / "kit"
        shutil.copytree(kits / rng.choice(["north", "server"]), kit)
        tables = next(kit.glob("*.toml"))
        files = [tables, kit / "state" / RECORD, *sorted(kit.glob("keys/*"))]
        path, kind = rng.choice(files), rng.random()
        if path == tables and kind < 0.6:
            of_toml(path, rng)
        elif path.name == RECORD and kind < 0.8:
            path.write_text(json.dumps(nastier(json.loads(path.read_text()), rng)))
        else:
            path.write_bytes(damaged(path.read_bytes(), rng))
        lines = lines_of(lambda kit=kit: read(kit))  # type: ignore[misc]
        assert lines <= 1
        refused += lines
        shutil.rmtree(kit)
    assert refused > MUTATIONS / 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("pid", value) for value in ("1", -1, 0, 1.5, True, None, [])),
        *(("name", value) for value in ("../../x", "a\0b", 5, None, "")),
    ],
)
def test_a_record_of_no_process_is_refused(key: str, value: object, tmp_path: Path) -> None:
    """A name is part of the path of a log, which `status` shows."""
    record = {"address": "localhost:1", "tls": True, "daemons": [{**DAEMON, key: value}]}
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="damaged"):
        read_record(tmp_path)
    record["daemons"] = [DAEMON]
    (tmp_path / RECORD).write_text(json.dumps(record))
    assert read_record(tmp_path).daemons == (Daemon(**DAEMON),)  # type: ignore[arg-type]


def test_depth_and_nobodys_home(kits: Path, tmp_path: Path) -> None:
    shutil.copytree(kits / "north", tmp_path / "kit")
    tables, record = tmp_path / "kit" / "site.toml", tmp_path / "kit" / "state" / RECORD
    text = tables.read_text()
    tables.write_text("a = " + "[" * 100_000)
    assert lines_of(lambda: open_kit(tmp_path / "kit")) == 1
    tables.write_text(text.replace('"state/memories"', '"~nobody-at-all/x"'))
    open_kit(tmp_path / "kit")  # whoever opens that path says that it is not there
    record.write_text("[" * 100_000)
    assert lines_of(lambda: read_record(record.parent)) == 1
