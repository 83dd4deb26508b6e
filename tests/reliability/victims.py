"""Processes that are there to be killed, and what must be the same after all of it.

Everything is imported and warmed up once; victims are forked from here, which takes milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

import dcfl.cli.main
from dcfl.engines.engine import Connect
from dcfl.engines.runner import ClientRunner
from dcfl.errors import DCFLError, Interrupted, RunFolderError
from dcfl.experiment import (
    EngineSettings,
    Experiment,
    FaultSettings,
    FederationSettings,
    OutputSettings,
)
from dcfl.messages import Broadcast, Tensors
from dcfl.methods import METHODS, Method
from dcfl.models import FeatureModel
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.compression import CompressionSettings
from dcfl.system.storage import PARTIAL
from tests.engines.runs import Flat, federation, training_for, untimed, untimed_client
from tests.toys import network_for

SLOW = bool(os.environ.get("DCFL_SLOW"))  # the whole dose of what takes long
SIZES = (9, 6, 4)
DATA = federation(SIZES)
DURABLE = ("replace", "fsync", "link", "unlink", "rmdir", "mkdir", "truncate")


def flat() -> Flat:
    torch.manual_seed(0)
    return Flat()


MODEL = flat()


def experiment(
    folder: Path,
    method: str | Method = "fedavg",
    workers: int = 1,
    rounds: int = 3,
    checkpoint: Any = 1,
    server: ServerSettings | None = None,
    faults: FaultSettings | None = None,
    deadline: float = 0.0,
    minimum_replies: int = 1,
    participation: float = 1.0,
    keep_best: bool = False,
    compression: CompressionSettings | None = None,
    **engine: Any,
) -> Experiment:
    """A micro run on the toys: milliseconds a round."""
    method = METHODS[method]() if isinstance(method, str) else method
    return Experiment(
        method=method,
        training=training_for(method.name),
        server=server or ServerSettings(),
        federation=FederationSettings(
            rounds,
            participation,
            deadline=deadline,
            minimum_replies=minimum_replies,
            choose_by="test",
        ),
        engine=EngineSettings(workers=workers, device="cpu", **engine),
        output=OutputSettings(str(folder), checkpoint, report=False, keep_best=keep_best),
        faults=faults or FaultSettings(),
        compression=compression or CompressionSettings(),
    )


def train(what: Experiment, connect: Connect = connect) -> Run:
    run = Run(what, DATA, network_for(what.method.name, MODEL), connect)
    for _ in run.rounds():
        pass
    return run


def resume(
    folder: Path, connect: Connect = connect, model: FeatureModel = MODEL, **settings: Any
) -> Run:
    run = Run.resume(folder, DATA, model, connect, **settings)
    for _ in run.rounds():
        pass
    return run


def stopped(what: Experiment, after: int = 1, connect: Connect = connect) -> Path:
    """A run that was asked to stop after so many rounds."""
    return interrupted(Run(what, DATA, network_for(what.method.name, MODEL), connect), after)


def interrupted(run: Run, after: int = 0) -> Path:
    """Asked to stop when it has come to a round, or after the next one."""
    with pytest.raises(Interrupted):
        _stop(run, after)
    return run.folder


def _stop(run: Run, after: int) -> None:
    for row in run.rounds():
        if row["round"] >= after:
            run.stop()


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for how long it took."""
    recorded, best = RecordedRun.open(folder), folder / "best.safetensors"
    return {
        "summary": untimed(recorded.summary),
        "rounds": [untimed(row) for row in recorded.rounds],
        "clients": [untimed_client(row) for row in recorded.clients],
        "model": (folder / "model.safetensors").read_bytes(),
        "best": best.read_bytes() if best.is_file() else b"",
        "files": files(folder),
    }


def files(folder: Path) -> list[str]:
    """Without the report, which is drawn later, and what Flower's nodes keep elsewhere."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    nodes = re.compile(r"memories/[0-9a-f]{32}/")
    return sorted(
        path for path in paths if path not in ("report.html", ".lock") and not nodes.match(path)
    )


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """In which parts two outcomes differ, briefly."""
    found = [key for key in got if key != "files" and got[key] != wanted[key]]
    here, there = set(got["files"]), set(wanted["files"])
    found += [f"no {name}" for name in sorted(there - here)]
    return found + [f"still {name}" for name in sorted(here - there)]


def partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob(f".*{PARTIAL}"))


def same(folder: Path, wanted: dict[str, Any]) -> None:
    """As a run that nobody touched, and tidy."""
    assert not partial_files(folder)
    found = differences(outcome(folder), wanted)
    assert not found, ", ".join(found)


# Processes ----------------------------------------------------------------------------------------


STARTED: list[BaseProcess] = []


def forked(task: Callable[[], object]) -> BaseProcess:
    """Started from a thread: one that is forked from there leads no threads of OpenMP's."""
    process = multiprocessing.get_context("fork").Process(target=task)
    STARTED.append(process)
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    return process


def end_all() -> None:
    """Those that a test has left behind because it failed."""
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.join()


def exit_code(process: BaseProcess, seconds: float = 60.0) -> int:
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("it did not end")
    return process.exitcode


def in_a_fork(task: Callable[[], object]) -> int:
    return exit_code(forked(task))


def go_on(what: Experiment, connect: Connect = connect) -> None:
    """What a user does after a crash: resume what is there, or start if there is nothing."""
    folder = Path(what.output.dir)
    if not (folder / "config.toml").is_file():
        train(what, connect)
    elif RecordedRun.open(folder).summary:
        with suppress(RunFolderError):  # it has ended; leftovers go
            Run.resume(folder)
    else:
        resume(folder, connect)


def kill_in_durable_steps(at: int, counted: Path | None = None) -> None:
    """In this process: die just before step number `at`. Workers that are forked may go on."""
    steps, victim = count(1), os.getpid()
    guard = threading.Lock()

    def deadly(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == victim:
                with guard:
                    number = next(steps)
                if counted:
                    counted.write_text(str(number))
                if number == at:
                    os.kill(victim, signal.SIGKILL)
            return original(*args, **kwargs)

        return step

    for name in DURABLE:
        setattr(os, name, deadly(getattr(os, name)))


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rows_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


# The command line ---------------------------------------------------------------------------------

# A run of a second on the built-in digits.
SMALL = (
    "data.clients=4", "federation.participation=0.5", "federation.rounds=5", "training.epochs=1",
    "method.name=moon", "engine.workers=1", "output.checkpoint=1",
)  # fmt: skip


def command(*words: str, said: Path) -> BaseProcess:
    """`dcfl WORDS` in a process and a group of its own, with what it says in a file."""

    def main() -> None:
        os.setpgid(0, 0)
        with said.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.argv = ["dcfl", *words]
        # pytest sets its own.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        dcfl.cli.main.main()

    return forked(main)


@contextmanager
def slow_from(round: int, seconds: float, reached: Path | None = None) -> Iterator[None]:
    """Clients take their time from this round on, in processes that are forked meanwhile; the first
    of them makes the file `reached`."""
    original = ClientRunner.train

    def slow(self: ClientRunner, broadcast: Broadcast, client: int, memory: Tensors) -> Any:
        if broadcast.round >= round:
            if reached:
                reached.touch()
            time.sleep(seconds)
        return original(self, broadcast, client, memory)

    ClientRunner.train = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientRunner.train = original  # type: ignore[method-assign]


def at_nodes(nodes: int = len(SIZES)) -> Connect:
    """Flower's message bytes, in this process; nodes go on from what a session has kept."""
    from tests.flower.in_process import in_process

    return in_process(nodes)


def refusal(task: Callable[[], object]) -> DCFLError:
    """What a task is refused with: one line."""
    with pytest.raises(DCFLError) as refused:
        task()
    assert "\n" not in str(refused.value)
    return refused.value


def edited(folder: Path, old: str, new: str) -> None:
    """Change the config of a run."""
    path = folder / "config.toml"
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))


def damaged(data: bytes, rng: random.Random, limit: int = 0) -> bytes:
    """One to three changes of bytes, all of them before `limit` if there is one."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        changed = changed or bytearray(1)
        at = rng.randrange(min(limit or len(changed), len(changed)))
        kind = rng.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice(b"0123456789[]{}\"'=.,:#-\n\\ \x00\xff")
        elif kind == 2:
            del changed[at : at + rng.choice([1, 3, 8, len(changed)])]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.choice([1, 7, 300]))
        elif kind == 4:
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        else:
            changed[at:at] = changed[: rng.randrange(len(changed))]
    return bytes(changed)


def facts_of(path: Path) -> dict[str, Any]:
    from dcfl.system.tensor_files import read_tensors

    return dict(json.loads(read_tensors(path)[1]))
