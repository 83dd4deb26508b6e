"""Signals that reach every process of a run, as `timeout`, a terminal, systemd and Slurm send them:
the round is finished or not done at all, and the resumed run has the bits of one left alone."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dcfl.engines.engine import Connect, Session
from dcfl.errors import Interrupted
from dcfl.runs.connect import connect
from dcfl.runs.run import Run
from dcfl.system.processes import ENDING
from tests.reliability.victims import (
    DATA,
    MODEL,
    SLOW,
    SMALL,
    alive,
    children_of,
    command,
    exit_code,
    experiment,
    forked,
    outcome,
    resume,
    rows_in,
    same,
    slow_from,
    train,
    until,
)

POOL = (*SMALL, "engine.workers=2")
MOMENTS = range(10) if SLOW else range(1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the run that nobody stops."""
    place = tmp_path_factory.mktemp("alone")
    assert exit_code(command("run", *POOL, "--out", str(place / "run"), said=place / "said")) == 0
    return outcome(place / "run")


def family(pid: int) -> list[int]:
    """The workers before the process that they work for: the worst order to signal them in."""
    return [*children_of(pid), pid]


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        if alive(pid):
            os.kill(pid, number)


def to_the_group(pid: int) -> None:
    os.killpg(pid, signal.SIGTERM)


def as_systemd(pid: int) -> None:
    """To each process, and after a grace that is too short for a round, a kill."""
    processes = family(pid)
    send(processes, signal.SIGTERM)
    send(processes, signal.SIGHUP)  # SendSIGHUP=yes
    time.sleep(0.1)
    send(processes, signal.SIGKILL)


def as_timeout(pid: int) -> None:
    """To its child, and then to the child's group: once more for the child."""
    os.kill(pid, signal.SIGTERM)
    os.killpg(pid, signal.SIGTERM)


STOPS: dict[str, Callable[[int], None]] = {
    "kill -- -PGID": to_the_group,
    "systemd": as_systemd,
    "timeout": as_timeout,
}


def resumed_as(alone: dict[str, Any], folder: Path, said: Path) -> None:
    """What was stopped ends like the run that was not."""
    assert "Traceback" not in said.read_text()
    if not (folder / "summary.json").is_file():
        assert exit_code(command("resume", str(folder), said=said)) == 0, said.read_text()
    same(folder, alone)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", STOPS)
def test_a_stop_of_all_processes_costs_no_client(
    how: str, moment: int, alone: dict[str, Any], tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(2, 0.15):
        process = command("run", *POOL, "--out", str(folder), said=said)
        assert until(lambda: rows_in(folder) >= 1 + moment % 3)
        time.sleep(random.Random(f"{how} {moment}").uniform(0, 0.2))
        STOPS[how](process.pid or 0)
        # 129: of SIGTERM and SIGHUP at once, either may be heard first.
        assert exit_code(process) in (143, 129, -9, 0), said.read_text()
    assert how != "timeout" or "terminated" not in said.read_text()
    resumed_as(alone, folder, said)


def test_what_workers_do_with_each_signal(alone: dict[str, Any], tmp_path: Path) -> None:
    """Nothing: the run goes on to its end with all of its clients."""
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(2, 0.2):
        process = command("run", *POOL, "--out", str(folder), said=said)
        assert until(lambda: rows_in(folder) >= 1)
        for number in ENDING:
            send(children_of(process.pid or 0), number)
        assert exit_code(process) == 0, said.read_text()
    same(folder, alone)


@contextmanager
def hangups(handled: signal.Handlers) -> Iterator[None]:
    """However the tests themselves were started."""
    before = signal.signal(signal.SIGHUP, handled)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("nohup", [False, True])
def test_a_closed_terminal_ends_the_round_unless_it_is_to_be_ignored(
    nohup: bool, alone: dict[str, Any], tmp_path: Path
) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with slow_from(2, 0.2), hangups(signal.SIG_IGN if nohup else signal.SIG_DFL):
        process = command("run", *POOL, "--out", str(folder), said=said)
        assert until(lambda: rows_in(folder) >= 1)
        os.killpg(process.pid or 0, signal.SIGHUP)
        assert exit_code(process) == (0 if nohup else 128 + signal.SIGHUP), said.read_text()
    assert nohup != (f"`dcfl resume {folder}` continues" in said.read_text())
    resumed_as(alone, folder, said)


# Workers that are killed while a run is being stopped ---------------------------------------------


def killing_the_workers(stop: Callable[[], None]) -> Connect:
    """The run is asked to stop while clients of its second round train, and right after that the
    workers are killed."""

    def strike() -> None:
        stop()
        send(children_of(os.getpid()), signal.SIGKILL)

    def made(session: Session) -> Any:
        engine = connect(session)

        class Dying:
            def __enter__(self) -> Any:
                pool = engine.__enter__()
                run = pool.run

                def until_the_second(broadcast: Any, cohort: Any) -> Any:
                    if broadcast.round == 2:
                        threading.Timer(0.2, strike).start()
                    yield from run(broadcast, cohort)

                pool.run = until_the_second
                return pool

            def __exit__(self, *how: Any) -> Any:
                return engine.__exit__(*how)

        return Dying()

    return made


def test_a_round_that_lost_its_workers_to_a_stop_is_not_kept(tmp_path: Path) -> None:
    method = "moon"  # whose clients keep something
    train(experiment(tmp_path / "whole", method, rounds=4))
    folder = tmp_path / "run"
    with slow_from(2, 1):
        run = Run(
            experiment(folder, method, workers=2, rounds=4),
            DATA,
            MODEL,
            killing_the_workers(lambda: run.stop()),
        )
        with pytest.raises(Interrupted, match="after round 1 of 4"):
            list(run.rounds())
    assert rows_in(folder) == 1
    resume(folder)
    same(folder, outcome(tmp_path / "whole"))


def test_an_abandoned_pool_does_not_keep_its_process(tmp_path: Path) -> None:
    """Python waits for its daemons when it ends, and these do not hear its SIGTERM."""

    def work() -> None:
        rounds = Run(experiment(tmp_path / "run", workers=2, rounds=500), DATA, MODEL).rounds()
        next(rounds)
        globals()["kept"] = rounds  # nobody closes it

    process = forked(work)
    assert exit_code(process, 20) == 0
