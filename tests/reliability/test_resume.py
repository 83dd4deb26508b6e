"""A1: kill -9 at any moment, then resume: the same bits as a run that nobody touched."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dcfl.runs.identity
from dcfl.engines.engine import Connect
from dcfl.errors import CheckpointError, ConfigError, Interrupted, RunFolderError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.runs.checkpoints import Checkpoints
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.system.processes import ECHO
from dcfl.system.tensor_files import read_tensors, write_tensors
from tests.engines.runs import COMPRESSIONS, federation
from tests.reliability.victims import (
    DATA,
    MODEL,
    SLOW,
    SMALL,
    alive,
    at_nodes,
    children_of,
    command,
    edited,
    exit_code,
    experiment,
    facts_of,
    forked,
    go_on,
    in_a_fork,
    interrupted,
    kill_in_durable_steps,
    outcome,
    refusal,
    resume,
    rows_in,
    same,
    slow_from,
    stopped,
    train,
    until,
)
from tests.toys import PERSONAL, network_for

ADAM = ServerSettings(optimizer=OPTIMIZERS["fedadam"]())
# Methods with state of all kinds: what clients keep, what the server shares, what it has in slots.
STATEFUL: dict[str, dict[str, Any]] = {
    "moon, all on disk": {"method": "moon", "memory_budget": 0},
    "moon, in memory": {"method": "moon", "workers": 2},
    "scaffold, all on disk": {"method": "scaffold", "memory_budget": 0, "workers": 2},
    "scaffold, in memory": {"method": "scaffold"},
    "prototypes and slots": {"method": "dcfl-pw", "server": ADAM},
    "what is not sent yet": {"compression": COMPRESSIONS["top-k"], "participation": 0.7},
}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The outcome of a run that nobody touches, and about how long it takes."""
    place = tmp_path_factory.mktemp("untouched")

    @cache
    def known(**settings: Any) -> dict[str, Any]:
        """Engines and checkpoints make no difference, so that one run is enough for all."""
        folder = place / str(len(list(place.iterdir())))
        began = time.perf_counter()
        train(experiment(folder, **settings))
        return {**outcome(folder), "seconds": time.perf_counter() - began}

    def found(**settings: Any) -> dict[str, Any]:
        free = ("workers", "memory_budget", "checkpoint")
        kept = {key: value for key, value in settings.items() if key not in free}
        return known(**kept)

    return found


def killed_after(seconds: float, task: Callable[[], object]) -> int:
    """How it ended: -9, or 0 if it was quicker."""
    process = forked(task)
    time.sleep(seconds)
    process.kill()
    return exit_code(process)


def survive(what: Experiment, delays: list[float], connect: Connect = connect) -> int:
    """Kill it again and again, each time after such a time; then let it end. How many times."""
    kills = 0
    for delay in delays:
        kills += killed_after(delay, lambda: go_on(what, connect)) == -9
    assert in_a_fork(lambda: go_on(what, connect)) == 0
    return kills


# At every durable step ----------------------------------------------------------------------------


def number_of_steps(what: Experiment, connect: Connect, counted: Path) -> int:
    def task() -> None:
        kill_in_durable_steps(-1, counted)
        train(what, connect)

    assert in_a_fork(task) == 0
    return int(counted.read_text())


DOSE = pytest.mark.slow
STEPS = [
    pytest.param({"method": "fedavg", "keep_best": True}, False, 2, id="the best kept"),
    pytest.param(
        {"method": "moon", "checkpoint": 2}, False, 1, id="every second round", marks=DOSE
    ),
    pytest.param({"method": "moon", "memory_budget": 0}, False, 4, id="all on disk", marks=DOSE),
    pytest.param(
        {"method": "scaffold", "rounds": 2, "workers": 2}, False, 4, id="pool", marks=DOSE
    ),
    pytest.param({"method": "moon", "rounds": 2, "keep_best": True}, True, 4, id="flower"),
]


@pytest.mark.parametrize(("settings", "flower", "stride"), STEPS)
def test_a_kill_at_every_durable_step(
    settings: dict[str, Any], flower: bool, stride: int, tmp_path: Path
) -> None:
    """All steps of one kind of run, and every `stride`-th of the others; all if there is time."""
    connection = at_nodes() if flower else connect
    steps = number_of_steps(experiment(tmp_path / "count", **settings), connection, tmp_path / "n")
    train(experiment(tmp_path / "whole", **settings), connection)
    wanted = outcome(tmp_path / "whole")
    assert steps > 20
    bad: dict[str, list[int]] = {}
    for step in range(1, steps + 1, 1 if SLOW else stride):
        what = experiment(tmp_path / str(step), **settings)

        def victim(step: int = step, what: Experiment = what) -> None:
            kill_in_durable_steps(step)
            train(what, connection)

        assert in_a_fork(victim) in (-9, 0)  # a thread's steps are not the same in number each time
        try:
            go_on(what, connection)
            same(tmp_path / str(step), wanted)
        except Exception as error:
            bad.setdefault(str(error).replace(str(what.output.dir), "DIR"), []).append(step)
    assert not bad, "; ".join(f"{what} {steps}" for what, steps in bad.items())


# At random moments --------------------------------------------------------------------------------


def delays(name: str, seconds: float, number: int = 3) -> list[float]:
    generator = random.Random(name)
    return [generator.uniform(0.02, 0.6) * (seconds + 0.1) for _ in range(number)]


@pytest.mark.parametrize("method", sorted(METHODS.keys() - PERSONAL))
def test_every_method_is_stopped_and_resumed(
    method: str, untouched: Callable[..., Any], tmp_path: Path
) -> None:
    folder = stopped(experiment(tmp_path / "run", method), 2)
    resume(folder, model=network_for(method, MODEL))
    same(folder, untouched(method=method))


@pytest.mark.parametrize("settings", STATEFUL.values(), ids=STATEFUL)
def test_random_kills_of_what_has_state(
    settings: dict[str, Any], untouched: Callable[..., Any], tmp_path: Path
) -> None:
    settings = {**settings, "rounds": 6}
    wanted = untouched(**settings)
    what = experiment(tmp_path / "run", **settings)
    kills = 0
    for attempt in range(20):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        kills += survive(what, delays(f"{settings} {attempt}", wanted["seconds"]))
        same(tmp_path / "run", wanted)
        if kills >= 2:
            break
    assert kills >= 2


@pytest.mark.parametrize("method", ["moon", "scaffold", "dcfl-pw"])
def test_random_kills_at_flower_nodes(
    method: str, untouched: Callable[..., Any], tmp_path: Path
) -> None:
    began = time.perf_counter()
    train(experiment(tmp_path / "whole", method, rounds=5), at_nodes())
    seconds = time.perf_counter() - began
    what = experiment(tmp_path / "run", method, rounds=5)
    survive(what, delays(method, seconds), at_nodes())
    same(tmp_path / "run", outcome(tmp_path / "whole"))
    assert outcome(tmp_path / "run")["model"] == untouched(method=method, rounds=5)["model"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_pool_leaves_no_process(workers: int, tmp_path: Path) -> None:
    what = experiment(tmp_path / "run", "moon", workers, rounds=500)
    process = forked(lambda: train(what))
    assert until(lambda: rows_in(tmp_path / "run") > 0)
    inside = children_of(process.pid or 0)
    assert len(inside) == (workers if workers > 1 else 0)
    process.kill()
    assert exit_code(process) == -9
    assert until(lambda: not any(alive(pid) for pid in inside), 10)


# Through the command line -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`dcfl run` with nobody in its way."""
    place = tmp_path_factory.mktemp("small")
    assert exit_code(command("run", *SMALL, "--out", str(place / "run"), said=place / "said")) == 0
    return outcome(place / "run")


def test_kills_through_the_command_line(small: dict[str, Any], tmp_path: Path) -> None:
    """Each before another round, and each resumed."""
    folder, said = tmp_path / "run", tmp_path / "said"
    words = ["run", *SMALL, "--out", str(folder)]
    for rows in (0, 1, 4):
        with slow_from(rows + 1, 60):  # the victim does not get beyond these rows
            victim = command(*words, said=said)
            assert until(lambda rows=rows: rows_in(folder) == rows and folder.exists())  # type: ignore[misc]
            until(lambda: (folder / "partition.npz").exists())
            time.sleep(0.05)
            victim.kill()
            assert exit_code(victim) == -9
        words = ["resume", str(folder)]
    assert exit_code(command(*words, said=said)) == 0, said.read_text()
    same(folder, small)
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2)]
)
def test_the_first_signal_finishes_the_round_and_says_how_to_resume(
    number: signal.Signals, code: int, workers: int, small: dict[str, Any], tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(3, 0.3):
        words = (*SMALL, f"engine.workers={workers}", "output.checkpoint=auto")
        process = command("run", *words, "--out", str(folder), said=said)
        assert until(lambda: rows_in(folder) == 2 if workers == 1 else rows_in(folder) >= 1)
        time.sleep(0.05)
        assert process.pid
        os.kill(process.pid, number)
        assert exit_code(process) == code, said.read_text()
    text = said.read_text()
    assert "dcfl: stopping after this round; once more to stop at once\n" in text
    assert f"`dcfl resume {folder}` continues" in text
    assert "Traceback" not in text
    assert 1 <= rows_in(folder) < 5
    assert exit_code(command("resume", str(folder), said=said)) == 0
    same(folder, small)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_stops_at_once(number: signal.Signals, code: int, tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(1, 60, tmp_path / "reached"):
        process = command("run", *SMALL, "--out", str(folder), said=said)
        assert until((tmp_path / "reached").exists)
        assert process.pid
        os.kill(process.pid, number)
        assert until(lambda: "stopping after this round" in said.read_text())
        assert process.is_alive()
        time.sleep(2 * ECHO)
        os.kill(process.pid, number)
        assert exit_code(process, 10) == code
    text = said.read_text()
    assert "Traceback" not in text
    assert "terminated" in text or "interrupted" in text


def test_a_run_that_has_ended_has_nothing_to_resume(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    train(experiment(folder, rounds=1))
    before = outcome(folder)
    assert exit_code(command("resume", str(folder), said=said)) == 0
    assert "nothing to resume" in said.read_text()
    assert outcome(folder) == before
    with pytest.raises(RunFolderError, match="has ended"):
        resume(folder)


# Again and again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flower", [False, True])
def test_resume_after_resume_after_resume(flower: bool, tmp_path: Path) -> None:
    connection = at_nodes() if flower else connect
    train(experiment(tmp_path / "whole", "moon", rounds=6), connection)
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=6), 1, connection)
    for _ in range(4):
        run = Run.resume(folder, DATA, MODEL, connection)
        interrupted(run)
    resume(folder, connection)
    same(folder, outcome(tmp_path / "whole"))


def test_the_engine_and_its_workers_may_change(
    untouched: Callable[..., Any], tmp_path: Path
) -> None:
    settings = {"method": "moon", "rounds": 5}
    folder = stopped(experiment(tmp_path / "run", **settings, workers=2))
    edited(folder, "workers = 2", "workers = 1")
    edited(folder, "memory_budget = 1024", "memory_budget = 0")
    run = Run.resume(folder, DATA, MODEL)
    interrupted(run)
    edited(folder, "workers = 1", "workers = 2")
    resume(folder)
    same(folder, untouched(**settings))


@pytest.mark.parametrize("method", ["dcfl-pw", "moon"])
def test_a_run_may_go_on_at_flower_nodes(
    method: str, untouched: Callable[..., Any], tmp_path: Path
) -> None:
    """engine.name is free: either the result is the same, or it is refused."""
    settings = {"method": method, "rounds": 4}
    folder = stopped(experiment(tmp_path / "run", **settings), 2)
    try:
        resume(folder, at_nodes())
    except (CheckpointError, ConfigError):
        return
    assert outcome(folder)["model"] == untouched(**settings)["model"]


# Damaged checkpoints ------------------------------------------------------------------------------


def flip(data: bytes) -> bytes:
    middle = len(data) * 3 // 4
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "one bit": flip,
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "garbage": lambda data: random.Random(0).randbytes(len(data)),
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize(
    ("damage", "flower"), [*((damage, False) for damage in DAMAGES), ("one bit", True)]
)
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    damage: str, flower: bool, tmp_path: Path
) -> None:
    connection = at_nodes() if flower else connect
    train(experiment(tmp_path / "whole", "moon", rounds=5), connection)
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=5), 3, connection)
    newest = Checkpoints(folder).paths()[-1]
    assert newest.name == "checkpoint-000003.safetensors"
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    with pytest.warns(UserWarning, match=r"checkpoint-000003.*damaged.*resuming from round 2"):
        resume(folder, connection)
    same(folder, outcome(tmp_path / "whole"))


@pytest.mark.parametrize("flower", [False, True])
@pytest.mark.filterwarnings("default::UserWarning")
def test_the_one_before_still_works_after_a_resume_that_was_killed(
    flower: bool, tmp_path: Path
) -> None:
    """Resumed from round 3, killed within round 4, and then checkpoint 3 is found damaged."""
    connection = at_nodes() if flower else connect
    train(experiment(tmp_path / "whole", "moon", rounds=5), connection)
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=5), 3, connection)

    def victim() -> None:
        def no_more(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        Checkpoints.write = no_more  # type: ignore[assignment, method-assign]
        resume(folder, connection)

    assert in_a_fork(victim) == -9
    newest = Checkpoints(folder).paths()[-1]
    newest.write_bytes(flip(newest.read_bytes()))
    with pytest.warns(UserWarning, match="resuming from round 2"):
        resume(folder, connection)
    same(folder, outcome(tmp_path / "whole"))


def test_two_damaged_checkpoints_are_one_line_and_exit_3(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=5), 3)
    for path in Checkpoints(folder).paths():
        path.write_bytes(flip(path.read_bytes()))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    error = refusal(lambda: resume(folder))
    assert isinstance(error, CheckpointError)
    assert error.exit_code == 3
    assert "checkpoint-000003" in str(error)
    assert "checkpoint-000002" in str(error)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {**after, folder / ".lock": b""} == {**before, folder / ".lock": b""}


FORGED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "weights of another shape": ("weights/", lambda tensor: tensor.new_zeros(3)),
    "weights of another kind": ("weights/", lambda tensor: tensor.to(torch.complex64)),
    "the best of another shape": ("best/", lambda tensor: tensor.new_zeros(3)),
    "slots of another shape": ("slots/", lambda tensor: tensor.new_zeros(0)),
}


@pytest.mark.parametrize(("part", "forge"), FORGED.values(), ids=FORGED)
def test_a_checkpoint_of_another_model_is_refused(
    part: str, forge: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    """With a checksum that is right: whoever gives you the folder can compute it."""
    folder = stopped(experiment(tmp_path / "run", rounds=4, server=ADAM, keep_best=True), after=2)
    logs = (folder / "rounds.jsonl").read_bytes()
    for path in folder.glob("checkpoint-*"):
        tensors, text = read_tensors(path)
        text = json.dumps({**json.loads(text), "best": 1})
        best = {
            f"best/{name[8:]}": kept for name, kept in tensors.items() if name[:8] == "weights/"
        }
        tensors = {name: kept.clone() for name, kept in {**tensors, **best}.items()}
        forged = {n: forge(kept) if n.startswith(part) else kept for n, kept in tensors.items()}
        write_tensors(path, forged, text)
    with pytest.raises(CheckpointError, match="does not fit the run's model"):
        resume(folder)
    assert (folder / "rounds.jsonl").read_bytes() == logs


@pytest.mark.parametrize("rounds", [4.5, True, "5", math.nan])
def test_a_number_of_rounds_that_is_none_leaves_the_run_as_it_is(
    rounds: Any, tmp_path: Path
) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=4), after=2)
    config = (folder / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match="rounds must be a whole number"):
        resume(folder, rounds=rounds)
    assert (folder / "config.toml").read_bytes() == config


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("damage", ["one bit", "gone"])
def test_a_damaged_memory_is_never_trained_on(
    workers: int, damage: str, untouched: Callable[..., Any], tmp_path: Path
) -> None:
    """What clients keep belongs to the checkpoint: it falls back, or says that it cannot go on."""
    settings = {"method": "moon", "rounds": 5}
    folder = stopped(experiment(tmp_path / "run", **settings, workers=workers), 3)
    kept = max((folder / "memories").glob("client-000000-*"))
    if damage == "gone":
        kept.unlink()
    else:
        kept.write_bytes(flip(kept.read_bytes()))

    def task() -> None:
        try:
            resume(folder)
        except CheckpointError as error:
            sys.exit(error.exit_code)

    code = exit_code(forked(task), 30)  # in a process of its own: it must not wait forever
    assert code in (0, 3)
    if code == 0:
        assert outcome(folder)["model"] == untouched(**settings)["model"]


def test_logs_that_are_shorter_than_at_the_checkpoint_are_refused(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=5), 2)
    path = folder / "clients.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    error = refusal(lambda: resume(folder))
    assert error.exit_code == 3
    assert "clients.jsonl" in str(error)


def test_half_a_row_after_the_checkpoint_is_cut_off(
    untouched: Callable[..., Any], tmp_path: Path
) -> None:
    settings = {"method": "fedavg", "rounds": 4}
    folder = stopped(experiment(tmp_path / "run", **settings), 2)
    for name in ("rounds.jsonl", "clients.jsonl"):
        with (folder / name).open("a") as stream:
            stream.write('{"round": 3, "accuracy": 12')
    resume(folder)
    same(folder, untouched(**settings))


# What may not change ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("lr = 0.05", "lr = 0.06", "training.lr"),
        ("threads = 1", "threads = 2", "engine.threads"),
        ('optimizer = "fedavg"', 'optimizer = "fedadam"', "server.optimizer"),
        ("temperature = 0.5", "temperature = 0.4", "method.temperature"),
        ("crash = 0.0", "crash = 0.1", "faults.crash"),
    ],
)
def test_another_config_is_refused_by_the_keys_that_differ(
    old: str, new: str, key: str, tmp_path: Path
) -> None:
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=4))
    before = (folder / "rounds.jsonl").read_bytes()
    edited(folder, old, new)
    error = refusal(lambda: resume(folder))
    assert isinstance(error, ConfigError)
    assert error.exit_code == 2
    assert f"{key} was " in str(error)
    assert "--allow" in str(error)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_all_keys_that_differ_are_named_and_all_must_be_allowed(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=4))
    edited(folder, "lr = 0.05", "lr = 0.06")
    edited(folder, "epochs = 1", "epochs = 2")
    error = str(refusal(lambda: resume(folder)))
    assert "training.lr was 0.05 and is 0.06" in error
    assert "training.epochs was 1 and is 2" in error
    assert "training.epochs" in str(refusal(lambda: resume(folder, allow=["training.lr"])))
    assert "no such key" in str(refusal(lambda: resume(folder, allow=["training.lrr"])))
    resume(folder, allow=["training.lr", "training.epochs"])
    assert len(RecordedRun.open(folder).rounds) == 4


def test_allowed_keys_stay_allowed_after_the_next_checkpoint(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=5))
    edited(folder, "lr = 0.05", "lr = 0.06")
    run = Run.resume(folder, DATA, MODEL, allow=["training.lr"])
    interrupted(run)
    resume(folder)
    assert len(RecordedRun.open(folder).rounds) == 5


def test_other_data_is_refused(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=4))
    other = federation((9, 5, 5))
    error = refusal(lambda: Run.resume(folder, other, MODEL))
    assert (error.exit_code, "data was " in str(error)) == (2, True)
    pixels = DATA.train.pixels.clone()
    pixels[0] ^= 1
    changed = replace(DATA, train=replace(DATA.train, pixels=pixels))
    error = refusal(lambda: Run.resume(folder, changed, MODEL))
    assert "data was " in str(error)
    assert Run.resume(folder, changed, MODEL, allow=["data"]).folder == folder


def test_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=4))
    here = dcfl.runs.identity.version
    monkeypatch.setattr(
        dcfl.runs.identity, "version", lambda name: "9.9.9" if name == "torch" else here(name)
    )
    error = refusal(lambda: resume(folder))
    assert re.search(r"torch was '.*' and is '9\.9\.9'", str(error))
    assert error.exit_code == 2
    resume(folder, allow=["torch"])


def test_another_model_is_refused(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", rounds=4))
    assert "model was " in str(refusal(lambda: Run.resume(folder, DATA)))


def test_refusals_and_allow_through_the_command_line(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(2, 60):
        victim = command("run", *SMALL, "--out", str(folder), said=said)
        assert until(lambda: len(Checkpoints(folder).paths()) == 1 and rows_in(folder) == 1)
        victim.kill()
        assert exit_code(victim) == -9
    (whole,) = Checkpoints(folder).paths()
    content = whole.read_bytes()
    whole.write_bytes(b"")
    assert exit_code(command("resume", str(folder), said=said)) == 3
    assert said.read_text().startswith("dcfl: no checkpoint is whole: ")
    assert said.read_text().count("\n") == 1
    whole.write_bytes(content)
    edited(folder, "lr = 0.01", "lr = 0.02")
    assert exit_code(command("resume", str(folder), said=said)) == 2
    assert said.read_text().startswith("dcfl: the run was begun with something else: training.lr")
    assert said.read_text().count("\n") == 1
    allowed = command("resume", str(folder), "--allow", "training.lr", said=said)
    assert exit_code(allowed) == 0
    assert rows_in(folder) == 5


# How often ----------------------------------------------------------------------------------------


def checkpoints_seen(what: Experiment) -> list[str]:
    run, seen = Run(what, DATA, MODEL), set()
    for _ in run.rounds():
        seen |= {path.name[11:17] for path in Checkpoints(run.folder).paths()}
    return sorted(seen)


@pytest.mark.parametrize(
    ("every", "wanted"),
    [(0, []), (1, ["000001", "000002", "000003"]), (2, ["000002"]), ("auto", [])],
)
def test_how_often_there_is_a_checkpoint(every: Any, wanted: list[str], tmp_path: Path) -> None:
    """A run as short as this one gets none of its own by the clock."""
    assert checkpoints_seen(experiment(tmp_path / "run", checkpoint=every)) == wanted


def test_auto_goes_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcfl.runs.checkpoints.CHECKPOINT_SECONDS", 0.0)
    what = experiment(tmp_path / "run", checkpoint="auto")
    assert checkpoints_seen(what) == ["000001", "000002", "000003"]


def test_the_two_newest_stay(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run", "moon", rounds=9), 6)
    names = [path.name for path in Checkpoints(folder).paths()]
    assert names == ["checkpoint-000005.safetensors", "checkpoint-000006.safetensors"]
    needed = {
        (int(client), round)
        for name in names
        for client, round in facts_of(folder / name)["memories"].items()
    }
    kept = {tuple(map(int, path.stem.split("-")[1::2])) for path in (folder / "memories").iterdir()}
    assert kept == needed


@pytest.mark.parametrize("every", [0, "auto"])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    every: Any, untouched: Callable[..., Any], tmp_path: Path
) -> None:
    settings = {"method": "scaffold", "rounds": 4, "checkpoint": every}
    what = experiment(tmp_path / "run", **settings)
    with slow_from(3, 60):
        process = forked(lambda: train(what))
        assert until(lambda: rows_in(tmp_path / "run") == 2)
        process.kill()
        assert exit_code(process) == -9
    resume(tmp_path / "run")
    wanted = untouched(**settings)
    if every == 0:  # then nothing is kept for a longer run
        kept = ("checkpoint", "memories")
        wanted = {**wanted, "files": [f for f in wanted["files"] if not f.startswith(kept)]}
    same(tmp_path / "run", wanted)


def test_without_checkpoints_a_stopped_run_does_not_promise_to_go_on(tmp_path: Path) -> None:
    run = Run(experiment(tmp_path / "run", checkpoint=0), DATA, MODEL)
    rows = run.rounds()
    next(rows)
    run.stop()
    with pytest.raises(Interrupted) as stop:
        next(rows)
    assert "resume" not in str(stop.value)


def test_fewer_rounds_than_were_done_are_refused(tmp_path: Path) -> None:
    folder = stopped(experiment(tmp_path / "run"), after=2)
    edited(folder, "rounds = 3", "rounds = 1")
    error = refusal(lambda: Run.resume(folder, DATA, MODEL, allow=["federation.rounds"]))
    assert "has done 2 already" in str(error)
