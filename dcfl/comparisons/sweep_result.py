"""What came out of a sweep, and its files: best.toml, trials.csv, report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import Dimension, Range, Space, plain
from dcfl.comparisons.trials import By, Trial, needs_holdout
from dcfl.config import as_tables, to_toml
from dcfl.experiment import Experiment
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable

MOST_PARTS, IN_EACH = 4, 3  # parts of a range, and trials in each of them


@dataclass(frozen=True)
class Level:
    """A value of a key, or a part of its range."""

    label: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.scores)


@dataclass(frozen=True)
class Importance:
    key: str
    levels: tuple[Level, ...]  # those with trials

    @property
    def share(self) -> float:
        """The share of the scores' variance that goes with this key alone, from 0 to 1, corrected
        for what as many levels would explain by chance (epsilon squared). NaN if there are too few
        trials to say."""
        scores = [score for level in self.levels for score in level.scores]
        spare = len(scores) - len(self.levels)  # degrees of freedom within levels
        mean = fmean(scores) if scores else math.nan
        total = sum((score - mean) ** 2 for score in scores)
        if len(self.levels) < 2 or spare < 2 or total == 0:
            return math.nan
        within = sum((score - level.mean) ** 2 for level in self.levels for score in level.scores)
        explained = total - within - (len(self.levels) - 1) * within / spare
        return max(explained, 0.0) / total

    @property
    def best(self) -> Level:
        return max(self.levels, key=lambda level: level.mean)


def importances(
    dimensions: Sequence[Dimension], points: Sequence[dict[str, Any]], scores: Sequence[float]
) -> list[Importance]:
    """One per key, the most important first."""
    found = [
        Importance(
            dimension.key, levels(dimension, [point[dimension.key] for point in points], scores)
        )
        for dimension in dimensions
    ]
    return sorted(found, key=lambda one: -one.share if not math.isnan(one.share) else 1.0)


def levels(
    dimension: Dimension, values: Sequence[Any], scores: Sequence[float]
) -> tuple[Level, ...]:
    different = list(dict.fromkeys(values))
    parts = max(2, min(MOST_PARTS, len(values) // IN_EACH))
    if isinstance(dimension, Range) and len(different) > parts:
        return _parts(values, scores, parts)
    if isinstance(dimension, Range):
        different.sort()
    else:
        different = [value for value in dimension.values if value in different]
    return tuple(
        Level(
            plain(one),
            tuple(score for value, score in zip(values, scores, strict=True) if value == one),
        )
        for one in different
    )


def _parts(values: Sequence[float], scores: Sequence[float], count: int) -> tuple[Level, ...]:
    """Levels of equally many trials."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    parts = np.array_split(np.array(order), count)
    return tuple(
        Level(
            " to ".join(dict.fromkeys(plain(values[index]) for index in (part[0], part[-1]))),
            tuple(scores[index] for index in part),
        )
        for part in parts
    )


@dataclass(frozen=True)
class FinalScore:
    """The score of the chosen point, in percent of the test images."""

    spread: Spread | None  # over the seeds; None if training failed
    quantity: str
    trial: Trial  # whose runs were scored
    why: str = ""  # it failed


@dataclass(frozen=True)
class SweepResult:
    """The result of `sweep`."""

    folder: Path
    wanted: Experiment  # without what was varied
    space: Space
    by: By
    trials: tuple[Trial, ...]
    chosen: Trial
    test: FinalScore
    out_of_time: bool = False

    @property
    def config(self) -> Path:
        """The chosen setting as a config file."""
        return self.folder / "best.toml"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def experiment(self) -> Experiment:
        """The chosen setting, without images kept back unless it needs them."""
        tried, wanted = self.chosen.experiment, self.wanted
        holdout = tried.data.holdout if needs_holdout(tried) else wanted.data.holdout
        return replace(
            tried,
            data=replace(tried.data, holdout=holdout),
            federation=replace(tried.federation, seed=wanted.federation.seed),
            output=replace(tried.output, dir=""),
        )

    @cached_property
    def ranked(self) -> list[Trial]:
        """The best first, then those without a score."""
        return sorted(self.trials, key=lambda trial: -_or_nothing(trial.score(self.by)))

    @cached_property
    def importances(self) -> list[Importance]:
        finished = [trial for trial in self.trials if trial.state == "finished"]
        points = [trial.point for trial in finished]
        scores = [trial.score(self.by) for trial in finished]
        return importances(self.space.dimensions, points, scores)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row per trial, the best first."""
        for trial in self.ranked:
            yield {
                "trial": trial.number,
                **trial.point,
                "score": trial.score(self.by),
                "deviation": trial.spread(self.by).deviation if trial.outcomes else None,
                "seeds": sum(cell.finished for cell in trial.cells),
                "state": trial.state,
                "rounds": trial.rounds,
                "seconds": trial.seconds,
                "why": trial.why,
                "folders": [str(cell.path) for cell in trial.cells],
            }

    def as_json(self) -> dict[str, Any]:
        return {
            "chosen": {"trial": self.chosen.number, **self.chosen.point},
            "score": asdict(self.chosen.spread(self.by)),
            "scored_by": self.by,
            "test": self.test.spread and asdict(self.test.spread),
            "test_folders": [str(cell.path) for cell in self.test.trial.cells],
            "mattered": {one.key: one.share for one in self.importances},
            "trials": list(self.rows()),
            "out_of_time": self.out_of_time,
            "config": str(self.config),
            "report": str(self.report),
            "folder": str(self.folder),
        }

    def written(self) -> SweepResult:
        """Write the files."""
        from dcfl.comparisons.sweep_page import sweep_page, trials_table

        write_whole(self.config, self._config_text())
        write_whole(self.folder / "trials.csv", trials_table(self).csv())
        write_whole(self.report, sweep_page(self).html)
        return self

    def _config_text(self) -> str:
        chosen = ", ".join(f"{key} = {plain(value)}" for key, value in self.chosen.point.items())
        lines = [f"# Chosen of {len(self.trials)} by `dcfl sweep`: {printable(chosen)}"]
        return "\n".join([*lines, to_toml(as_tables(self.experiment)), ""])


def _or_nothing(score: float) -> float:
    return -math.inf if math.isnan(score) else score
