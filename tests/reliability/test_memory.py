"""When memory runs out a worker is killed, never the process that writes the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
import torch

from dcfl.engines.runner import ClientRunner
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.reliability.victims import (
    DATA,
    MODEL,
    children_of,
    exit_code,
    experiment,
    forked,
    slow_from,
    train,
    until,
)

LIMITS = {  # where a group with a limit can be made, and what its limit is called
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}


@contextmanager
def limited(number: int) -> Iterator[Path]:
    """A control group that may use so many bytes; skips where none can be made."""
    for root, limit in LIMITS.items():
        group = root / f"dcfl-test-{uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(number))
            for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                with suppress(OSError):
                    (group / swap).write_text(str(number) if "limit" in swap else "0")
            yield group
            return
        except OSError:
            continue
        finally:
            with suppress(OSError):
                group.rmdir()
    pytest.skip("no control group with a limit of memory can be made here")


def test_workers_are_the_first_to_be_killed(tmp_path: Path) -> None:
    score = Path("/proc/self/oom_score_adj")
    if not score.is_file():
        pytest.skip("this system has no such score")
    before = score.read_text()
    with slow_from(1, 0.2):
        process = forked(lambda: train(experiment(tmp_path / "run", workers=2, rounds=50)))
        assert until(lambda: len(children_of(process.pid or 0)) == 2)
        scores = [Path(f"/proc/{pid}/oom_score_adj") for pid in children_of(process.pid or 0)]
        assert until(lambda: [path.read_text() for path in scores] == ["1000\n"] * 2, 5)
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == before
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [800, 900, 1200])
def test_as_many_workers_as_memory_has_room_for(megabytes: int, tmp_path: Path) -> None:
    """ResNet-18 and two workers want more than a gigabyte: the conductor was killed."""
    words = (
        "run model.name=resnet18 method.name=fedavg data.clients=4 federation.participation=1.0 "
        "training.epochs=1 data.train_images=200 data.test_images=100 federation.rounds=2 "
        "engine.workers=2 output.report=false --out"
    )
    with limited(megabytes * 2**20) as group:
        done = subprocess.run(
            [sys.executable, "-m", "dcfl", *words.split(), str(tmp_path / "run")],
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            capture_output=True,
            text=True,
        )
        assert until(lambda: not (group / "cgroup.procs").read_text())
    assert done.returncode == 0, done.stderr
    assert all(row["outcome"] == "ok" for row in RecordedRun.open(tmp_path / "run").clients)
    assert "memory for 1 of 2" in done.stdout + done.stderr or megabytes > 1000


def test_a_client_too_large_for_the_memory_costs_itself(tmp_path: Path) -> None:
    """The parent is the larger one when a worker asks for more than there is: by size alone it
    would be the one to go."""
    folder = tmp_path / "run"
    with limited(700 * 2**20) as group:

        def work() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            original = ClientRunner.train

            def greedy(self, broadcast, client, memory):  # type: ignore[no-untyped-def]
                more = torch.ones(90 * 2**20) if broadcast.round == 4 and client == 1 else None
                reply = original(self, broadcast, client, memory)
                del more
                return reply

            ClientRunner.train = greedy  # type: ignore[method-assign]
            held = []
            for _ in Run(experiment(folder, workers=2, rounds=5), DATA, MODEL).rounds():
                held = held or [torch.ones(100 * 2**20)]  # 400 MB that workers do not share

        process = forked(work)
        code = exit_code(process)
    assert code == 0, f"the run ended with {code}"
    rows = RecordedRun.open(folder).rounds
    assert [(row["ok"], row["failed"]) for row in rows] == [(3, 0)] * 3 + [(2, 1), (3, 0)]
    lost = [row for row in RecordedRun.open(folder).clients if row["outcome"] == "failed"]
    assert [row["client"] for row in lost] == [1]
    assert f"killed by signal {signal.SIGKILL.value}" in lost[0]["reason"]
