"""Run folders of somebody else: nothing leads out of them, nothing outside is used unasked, and
nothing in them is read that cannot be what it should be."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import struct
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import dcfl
from dcfl import config
from dcfl.errors import Interrupted, RunFolderError
from dcfl.report.watch import FollowedRuns
from dcfl.runs import trust
from tests.command_line import Call
from tests.paper.hand_made import cell_folders_in, cells_of, pretend

QUICK = (
    "data.clients=4", "federation.participation=0.5", "training.epochs=1",
    "engine.workers=1", "output.checkpoint=1", "method.name=moon",
)  # fmt: skip


def one_line(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("dcfl: ")]
    assert len(lines) == 1, err
    return lines[0]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Somebody's folder with files that must stay as they are."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "config.toml").write_text("precious")
    (folder / "client-000000-round-000001.safetensors").write_text("precious")
    return folder


# Links --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    tables = {"federation.rounds": 3, "federation.personal": ["classifier"]}
    words = {**settings_of(QUICK), **tables}
    with pytest.raises(Interrupted):
        dcfl.run(out=folder, on_round=lambda row: row.round < 1, **words)
    return folder


@pytest.fixture(scope="module")
def ended_run(stopped_run: Path) -> Path:
    folder = shutil.copytree(stopped_run, stopped_run.with_name("ended"))
    dcfl.resume(folder)
    return folder


def settings_of(words: tuple[str, ...]) -> dict[str, object]:
    from dcfl.config import parse_settings

    tables = parse_settings(words)
    return {f"{table}.{key}": value for table in tables for key, value in tables[table].items()}


FOLDERS = ("memories", "personal", "tensorboard", "analysis", "export-safetensors")
WRITTEN = (
    "report.html", "rounds.csv", "model.safetensors", "summary.json", "rounds.jsonl",
    "clients.jsonl", "personal.jsonl", "environment.json", "partition.npz", ".lock", ".begun-by",
    "evaluation.json", "checkpoint-000001.safetensors", ".summary.json.partial", "config.toml",
    "analysis/analysis.json", "export-safetensors/README.md", "memories/.new.partial",
    "personal/client-000000.safetensors",
)  # fmt: skip


def all_verbs(stopped: Path, ended: Path, cli: Call) -> list[tuple[str, int, str]]:
    commands: tuple[tuple[object, ...], ...] = (
        ("resume", stopped),
        ("resume", ended, "--rounds", 4),
        ("report", ended),
        ("evaluate", ended),
        ("export", ended, "--format", "safetensors"),
        ("analyse", ended, "--no-drift"),
        ("embed", ended, "pictures"),
        ("predict", ended, "pictures"),
    )
    answers = [(str(words[0]), cli(*words)) for words in commands]
    return [(verb, code, err) for verb, (code, _, err) in answers]


@pytest.mark.parametrize("name", [*FOLDERS, "nowhere", "model.safetensors"])
def test_no_verb_goes_through_a_link_to_a_folder_or_to_nothing(
    name: str, stopped_run: Path, ended_run: Path, canary: Path, cli: Call, tmp_path: Path
) -> None:
    stopped = shutil.copytree(stopped_run, tmp_path / "stopped")
    ended = shutil.copytree(ended_run, tmp_path / "ended")
    for folder in (stopped, ended):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(canary if name in FOLDERS else canary / "new")
    before = snapshot(canary)
    images(tmp_path / "pictures")
    for verb, code, err in all_verbs(stopped, ended, cli):
        assert code == 2, (verb, err)
        assert "is a link that leads out" in one_line(err), verb
        assert err.count("\n") <= 2, verb
    with pytest.raises(RunFolderError, match="link"):
        dcfl.load_model(ended)
    assert snapshot(canary) == before


@pytest.mark.parametrize("content", ["its own", pytest.param("precious", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore:the report was not written")
def test_no_verb_writes_through_a_link_to_a_file(
    name: str, content: str, stopped_run: Path, ended_run: Path, canary: Path, cli: Call,
    tmp_path: Path,
) -> None:  # fmt: skip
    stopped = shutil.copytree(stopped_run, tmp_path / "stopped")
    ended = shutil.copytree(ended_run, tmp_path / "ended")
    for folder in (stopped, ended):
        path, target = folder / name, canary / f"of-{folder.name}"
        target.write_text("precious")
        if path.exists():
            shutil.move(path, target) if content == "its own" else path.unlink()
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
    before = snapshot(canary)
    images(tmp_path / "pictures")
    for verb, code, err in all_verbs(stopped, ended, cli):
        assert code in (0, 2, 3), (verb, err)
        assert code == 0 or one_line(err), verb
    assert snapshot(canary) == before


def test_a_run_whose_files_are_links_to_blobs_can_be_read(
    ended_run: Path, cli: Call, tmp_path: Path
) -> None:
    """As in huggingface_hub's cache, git-annex and DVC."""
    run, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    shutil.copytree(ended_run, run)
    blobs.mkdir()
    for number, path in enumerate([path for path in run.rglob("*") if path.is_file()]):
        shutil.move(path, blobs / str(number))
        path.symlink_to(os.path.relpath(blobs / str(number), path.parent))
    (run / ".lock").unlink(missing_ok=True)
    before = snapshot(blobs)
    assert (
        dcfl.load_model(run).state_dict().keys() == dcfl.load_model(ended_run).state_dict().keys()
    )
    for verb in ("evaluate", "report"):
        assert cli(verb, run)[0] == 0, verb
    assert (run / "report.html").is_file()
    code, _, err = cli("resume", run, "--rounds", 4)
    assert code == 3
    assert "it is a link, which may lead anywhere" in one_line(err)
    assert snapshot(blobs) == before


def test_a_link_deep_inside_or_broken_leads_out_too(tmp_path: Path, canary: Path) -> None:
    from dcfl.system.storage import require_no_way_out

    run = tmp_path / "run"
    deep = run.joinpath(*["d"] * 600)  # no recursion stands this
    deep.mkdir(parents=True)
    (run / "inside").symlink_to("d")
    require_no_way_out(run)
    (tmp_path / "by-link").symlink_to(run)
    require_no_way_out(tmp_path / "by-link")  # which a person has named
    for target in (canary / "new", canary, Path("/".join([".."] * 602))):
        (deep / "way-out").symlink_to(target)
        with pytest.raises(RunFolderError, match="is a link"):
            require_no_way_out(run)
        (deep / "way-out").unlink()


STUDIES: dict[str, tuple[object, ...]] = {
    "sweep": ("training.lr=0.1,0.2", "--parallel", 1),
    "compare": ("--methods", "fedavg,moon", "--parallel", 1),
    "reproduce": ("ablation", "--scale", "smoke", "--parallel", 1),
}
PLACES = [
    *(("sweep", name) for name in ("trials", "chosen", "trials/000-lr0.1-seed0")),
    *(("compare", name) for name in ("fedavg-seed0", "moon-seed0")),
    *(("reproduce", name) for name in ("cells", "cells/any", "ablation.md")),
    ("reproduce --no-train", "similarity-seed0"),
]


@pytest.mark.parametrize(("verb", "name"), PLACES)
def test_no_study_writes_through_a_link_in_its_folder(
    verb: str, name: str, cli: Call, tmp_path: Path
) -> None:
    (tmp_path / "canary").mkdir()
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "canary")
    verb, *untrained = verb.split()
    quick = untrained if verb == "reproduce" else (*QUICK[:-1], "federation.rounds=1")
    code, _, err = cli(verb, *STUDIES[verb], *quick, "--out", "out")
    assert code == 2
    assert "is a link that leads out" in one_line(err)
    assert snapshot(tmp_path / "canary") == {}


# Trust --------------------------------------------------------------------------------------------


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Become the user of this name."""

    def become(user: str) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))

    become("me")
    return become


def stopped_with(folder: Path, **words: object) -> Path:
    settings = {**settings_of(QUICK), "method.name": "fedavg", "federation.rounds": 2, **words}
    with pytest.raises(Interrupted):
        dcfl.run(out=folder, on_round=lambda row: False, **settings)
    return folder


def images(folder: Path) -> str:
    from PIL import Image

    for number in range(60):
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 100 * (number % 2) + number).save(path)
    return f"folder:{folder}"


def test_a_foreign_run_that_names_something_outside_needs_trust(
    cli: Call, tmp_path: Path, mine: Callable[[str], None]
) -> None:
    made = stopped_with(tmp_path / "made", **{"output.trackers": ["csv"]})
    moved = shutil.copytree(made, tmp_path / "moved")
    assert cli("resume", moved)[0] == 0  # one's own, wherever it is
    mine("somebody")
    code, _, err = cli("resume", made)
    assert code == 2
    assert "names the tracker csv" in one_line(err)
    assert "--trust" in err
    with pytest.raises(RunFolderError, match="--trust"):
        dcfl.resume(made)
    assert cli("resume", made, "--trust")[0] == 0
    mine("me")
    assert dcfl.resume(made, rounds=3).summary.rounds == 3  # mine still


def test_data_and_weights_outside_need_trust_too(
    tmp_path: Path, mine: Callable[[str], None], ended_run: Path
) -> None:
    named = {"data.dataset": images(tmp_path / "images"), "data.image_size": 8}
    made = stopped_with(tmp_path / "made", **named, **{"data.clients": 2})
    mine("somebody")
    with pytest.raises(RunFolderError, match=f"names the data folder:{tmp_path}.*--trust"):
        dcfl.resume(made)
    assert dcfl.resume(made, trust=True).summary.rounds == 2


def test_an_edited_run_is_not_ones_own(tmp_path: Path, mine: Callable[[str], None]) -> None:
    made = stopped_with(tmp_path / "made", **{"output.trackers": ["csv"]})
    config = made / "config.toml"
    config.write_text(config.read_text().replace('["csv"]', '["csv", "tensorboard"]'))
    with pytest.raises(RunFolderError, match="the tracker csv, the tracker tensorboard, and you"):
        dcfl.resume(made)
    assert not [*tmp_path.rglob("tensorboard")]


def test_what_names_nothing_outside_needs_no_trust(
    tmp_path: Path, mine: Callable[[str], None]
) -> None:
    made = stopped_with(tmp_path / "made")
    assert not (made / ".begun-by").exists()
    mine("somebody")
    assert dcfl.resume(made).summary.rounds == 2


def test_without_a_home_nothing_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: Callable[[str], None]
) -> None:
    (tmp_path / "me").write_text("not a folder")
    made = stopped_with(tmp_path / "made", **{"output.trackers": ["csv"]})
    with pytest.raises(RunFolderError, match="--trust"):
        dcfl.resume(made)
    assert dcfl.resume(made, trust=True).summary.rounds == 2


def _marked(folder: Path, barrier: Barrier) -> None:
    folder.mkdir()
    tables = {"output": {"trackers": ["csv"]}}
    barrier.wait()
    trust.mark(folder, config.apply(config.DEFAULT, tables))


def test_runs_that_are_the_first_together_are_all_ones_own(
    tmp_path: Path, mine: Callable[[str], None]
) -> None:
    context = multiprocessing.get_context("fork")
    experiment = config.apply(config.DEFAULT, {"output": {"trackers": ["csv"]}})
    for attempt in range(5):
        mine(f"user{attempt}")
        barrier = context.Barrier(8)
        folders = [tmp_path / f"{attempt}-{number}" for number in range(8)]
        processes = [context.Process(target=_marked, args=(f, barrier)) for f in folders]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for folder in folders:
            trust.require_trust(folder, experiment)
        assert [path.name for path in (tmp_path / f"user{attempt}" / "dcfl").iterdir()] == [
            "secret"
        ]


def test_the_secret_is_this_users_alone(tmp_path: Path, mine: Callable[[str], None]) -> None:
    stopped_with(tmp_path / "made", **{"output.trackers": ["csv"]})
    secret = tmp_path / "me" / "dcfl" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.parent.stat().st_mode & 0o777 == 0o700
    assert len(secret.read_text()) == 64


def test_a_study_goes_on_with_foreign_cells_only_as_its_command_says(
    tmp_path: Path, cli: Call, mine: Callable[[str], None]
) -> None:
    words = (*QUICK[:-1], "federation.rounds=2")
    command = ("compare", *words, "--methods", "fedavg", "--parallel", 1, "--out", "out")
    stopped_with(tmp_path / "out" / "fedavg-seed0", **{"output.trackers": ["csv"]})
    mine("somebody")
    code, _, err = cli(*command)
    assert code == 2
    assert "names the tracker csv" in one_line(err)
    assert not (tmp_path / "out" / "fedavg-seed0" / "summary.json").exists()
    assert cli(*command, 'output.trackers=["csv"]')[0] == 0


# Sizes --------------------------------------------------------------------------------------------


def sparse(path: Path, gigabytes: int = 60, head: bytes = b"") -> None:
    path.write_bytes(head)
    os.truncate(path, gigabytes * 2**30)


def giant_tensor(path: Path) -> None:
    """A sound safetensors file of one tensor of 600 GB, of which the disk holds nothing."""
    size = 600 * 2**30
    header = {"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + size)


def giant_archive(path: Path) -> None:
    """A zip file whose list of contents is 60 GB long, of which the disk holds nothing."""
    size = 60 * 2**30
    sparse(path, 60)
    with path.open("ab") as stream:
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, size, 1))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**32 - 1, 2**32 - 1, 0))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SICK: dict[str, Callable[[Path], object]] = {
    "sparse": sparse,
    "a sound line, then nothing": lambda path: sparse(path, head=path.read_bytes()),
    "digits": lambda path: path.write_text(f'{{"round": {"9" * 100_000}}}\n'),
    "digits as TOML": lambda path: path.write_text(f"[data]\nclients = 0x{'f' * 100_000}\n"),
    "a key of many parts": lambda path: path.write_text("a." * 1_000_000 + "a = 1\n"),
    "deep": lambda path: path.write_text("[" * 200_000 + "\n"),
    "deep objects": lambda path: path.write_text('{"a":' * 200_000 + "\n"),
    "pipe": pipe,
    "device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "giant tensor": giant_tensor,
    "giant archive": giant_archive,
}
VERBS = {"model.safetensors": "evaluate", "checkpoint-000003.safetensors": "resume"}
FILES = (
    "config.toml", "summary.json", "environment.json", "rounds.jsonl", "clients.jsonl",
    "personal.jsonl", "partition.npz", "evaluation.json", *VERBS,
)  # fmt: skip


@pytest.mark.parametrize("kind", SICK)
def test_files_that_cannot_be_what_they_should_be_are_refused_at_once(
    kind: str, ended_run: Path, cli: Call, tmp_path: Path
) -> None:
    for name in FILES:
        folder = shutil.copytree(ended_run, tmp_path / name)
        (folder / "evaluation.json").touch()
        SICK[kind](folder / name)
        began = time.monotonic()
        verb = VERBS.get(name, "report")
        code, _, err = cli(verb, folder, *(["--rounds", 4] if verb == "resume" else []))
        if kind == "pipe" and verb == "report":  # as if it were not there
            assert code in (0, 2), (name, err)
        else:
            assert code in (2, 3), (name, err)
        assert code == 0 or len(one_line(err)) < 1000
        assert time.monotonic() - began < 10, name
        shutil.rmtree(folder)


def test_one_sick_folder_does_not_hide_the_others(ended_run: Path, tmp_path: Path) -> None:
    for name in ("sound", "sick"):
        shutil.copytree(ended_run, tmp_path / "runs" / name)
    sparse(tmp_path / "runs" / "sick" / "summary.json")
    page = FollowedRuns([tmp_path / "runs"]).state()
    assert "sick cannot be read now" in page.content
    assert "sound" in page.content


def test_a_cell_whose_rows_are_gone_is_refused(cli: Call, tmp_path: Path) -> None:
    command = ("reproduce", "ablation", "--scale", "smoke", "--seeds", "0", "--out", "out")
    cells = cell_folders_in(tmp_path / "out", cells_of("ablation"))[:3]
    for cell in cells:
        pretend(cell, [10.0, 20.0])
    assert cli(*command, "--no-train")[0] == 0
    for rows in ("", (cells[0].path / "rounds.jsonl").read_text().splitlines()[0] + "\n"):
        (cells[0].path / "rounds.jsonl").write_text(rows)
        code, _, err = cli(*command, "--no-train")
        assert code == 2
        assert f"{rows.count(chr(10))} rows of 2 rounds" in one_line(err)
