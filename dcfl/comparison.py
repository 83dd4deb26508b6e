"""Several runs side by side: means over seeds, and differences between runs of the same seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from dcfl.config import apply
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.recording import RecordedRun


def plan(
    experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], folder: Path
) -> dict[str, Experiment]:
    """One experiment per method and seed, by the name of its run folder below `folder`.

    The experiment's own method keeps its fields, the others have their defaults.
    """
    planned = {
        f"{method}-seed{seed}": apply(
            experiment,
            {
                "method": {"name": method},
                "federation": {"seed": seed},
                "output": {"dir": str(folder / f"{method}-seed{seed}")},
            },
        )
        for seed in seeds
        for method in methods
    }
    if len(planned) < len(methods) * len(seeds):
        raise ConfigError("each method and each seed may be named once")
    return planned


class Spread(NamedTuple):
    mean: float
    deviation: float | None  # over seeds; None where there is one

    @classmethod
    def over(cls, values: Iterable[float]) -> Spread:
        numbers = list(values)
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)

    def __format__(self, sign: str) -> str:
        """`f"{spread}"` or, with a sign in front, `f"{spread:+}"`."""
        return f"{self.mean:{sign}.2f}" + (
            "" if self.deviation is None else f" ± {self.deviation:.2f}"
        )


@dataclass(frozen=True)
class MethodResult:
    """One method over its seeds."""

    method: str
    seeds: tuple[int, ...]
    max_accuracy: Spread
    ema_accuracy: Spread
    final_accuracy: Spread
    gain: Spread | None  # of EMA over the first method's, seed by seed; None for that one
    megabytes_up: float  # mean over seeds
    megabytes_down: float
    seconds: float
    curve: list[float]  # mean accuracy after each round


def summarise(runs: Sequence[RecordedRun]) -> list[MethodResult]:
    """One row per method, in the order in which the methods first appear; rounds are enough, a run
    need not have finished."""
    started = [run for run in runs if run.rounds]
    methods: dict[str, dict[int, RecordedRun]] = {}
    for run in started:
        seed = run.config["federation"]["seed"]
        methods.setdefault(run.config["method"]["name"], {})[seed] = run
    reference = next(iter(methods.values()), {})
    return [
        _over_seeds(method, by_seed, None if by_seed is reference else reference)
        for method, by_seed in methods.items()
    ]


def _over_seeds(
    method: str, runs: dict[int, RecordedRun], reference: dict[int, RecordedRun] | None
) -> MethodResult:
    last = {seed: run.rounds[-1] for seed, run in runs.items()}
    paired = [seed for seed in runs if reference and seed in reference]
    gains = [
        last[seed]["ema_accuracy"] - reference[seed].rounds[-1]["ema_accuracy"]
        for seed in paired
        if reference
    ]
    curves = [[row["accuracy"] for row in run.rounds] for run in runs.values()]

    def mean_total(key: str) -> float:
        return fmean(sum(row[key] for row in run.rounds) for run in runs.values())

    return MethodResult(
        method,
        tuple(runs),
        Spread.over(row["max_accuracy"] for row in last.values()),
        Spread.over(row["ema_accuracy"] for row in last.values()),
        Spread.over(row["accuracy"] for row in last.values()),
        Spread.over(gains) if gains else None,
        mean_total("bytes_up") / 1e6,
        mean_total("bytes_down") / 1e6,
        mean_total("seconds"),
        [fmean(x for x in values if x is not None) for values in zip_longest(*curves)],
    )
