"""A12: many rounds use no more of anything than few."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcfl.runs.run import Run
from tests.reliability.victims import DATA, MODEL, SLOW, experiment, files, in_a_fork

ROUNDS = 1_000 if SLOW else 100
WARM = 20  # rounds until everything has found its size


def in_use(folder: Path) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    # Checkpoints and memories of other rounds have other names, and the best may be any of them.
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "files": len(files(folder)),
        # Not VmRSS: a fork has its parent's libraries mapped, and touches more of them as it goes.
        "kB": sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem")),
    }


def soak(folder: Path, out: Path, settings: dict[str, Any]) -> Callable[[], None]:
    def task() -> None:
        run = Run(experiment(folder, rounds=ROUNDS, **settings), DATA, MODEL)
        seen = [in_use(folder) for row in run.rounds() if row["round"] >= WARM]
        out.write_text(json.dumps(seen))

    return task


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"method": "moon", "memory_budget": 0}, id="memories on disk"),
        pytest.param({"method": "scaffold", "workers": 2}, id="pool", marks=pytest.mark.slow),
    ],
)
def test_a_long_run_uses_no_more_than_a_short_one(settings: dict[str, Any], tmp_path: Path) -> None:
    assert in_a_fork(soak(tmp_path / "run", tmp_path / "seen", settings)) == 0
    seen = json.loads((tmp_path / "seen").read_text())
    assert len(seen) == ROUNDS - WARM + 1
    for key, slack in (("fds", 1), ("threads", 1), ("files", 3)):  # what is being written just now
        values = [each[key] for each in seen]
        assert max(values) - min(values) <= slack, (key, min(values), max(values))
        assert values[-1] <= values[0] + slack
    half = len(seen) // 2
    early, late = (sum(row["kB"] for row in part) / half for part in (seen[:half], seen[-half:]))
    slope = (late - early) / half * 100  # kB in 100 rounds; the two halves are `half` rounds apart
    assert slope < 1_000 if SLOW else slope < 4_000  # so few rounds cannot tell it exactly
