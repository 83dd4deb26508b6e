"""Sweeps that take seconds, and some that nobody trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcfl.comparisons.space import split_settings
from dcfl.comparisons.sweeping import FinalScore, SweepPlan, SweepResult, plan_sweep
from dcfl.config import experiment_from
from tests.paper.hand_made import pretend

TINY = {
    "data": {"clients": 4, "train_images": 200, "test_images": 100},
    "model": {"width": 4},
    "training": {"epochs": 1, "batch_size": 16},
    "federation": {"rounds": 2, "participation": 0.5},
    "method": {"name": "fedprox"},
    "engine": {"workers": 1},
}


def tiny_sweep(
    out: Path,
    settings: Sequence[str] = ("training.lr=0.01,0.2", "method.mu=0.01,1"),
    reuse: Sequence[Path] = (),
    seeds: Sequence[int] = (),
    **changes: Any,
) -> SweepPlan:
    fixed, space = split_settings(settings)
    assert not fixed
    experiment = experiment_from(None, {**TINY, "output": {"dir": str(out)}, **changes})
    return plan_sweep(experiment, space, seeds, reuse)


def hand_made_sweep(
    folder: Path, settings: Sequence[str], scores: Sequence[Sequence[float]]
) -> SweepResult:
    """Finished trials with these final accuracies, one for each seed."""
    seeds = range(len(scores[0]))
    plan = tiny_sweep(folder, settings, seeds=seeds)
    assert len(plan.planned) == len(scores)
    for trial, of_trial in zip(plan.planned, scores, strict=True):
        for cell, score in zip(trial.cells, of_trial, strict=True):
            pretend(cell, [score, score])
    trials = tuple(trial.read_again() for trial in plan.planned)
    best = max(trials, key=lambda trial: trial.score)
    test = FinalScore(best.spread, best)
    return SweepResult(folder, plan.wanted, plan.space, trials, best, test)
