"""What came out of a sweep, and its files: best.toml, trials.csv, report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import Space, plain
from dcfl.comparisons.trials import Trial, needs_holdout
from dcfl.config import as_tables, to_toml
from dcfl.experiment import Experiment
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable


@dataclass(frozen=True)
class FinalScore:
    """The score of the chosen point, in percent of the test images."""

    spread: Spread | None  # over the seeds; None if training failed
    trial: Trial  # whose runs were scored


@dataclass(frozen=True)
class SweepResult:
    """The result of `sweep`."""

    folder: Path
    wanted: Experiment  # without what was varied
    space: Space
    trials: tuple[Trial, ...]
    chosen: Trial
    test: FinalScore

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
        return sorted(self.trials, key=lambda trial: (math.isnan(trial.score), -trial.score))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row per trial, the best first."""
        for trial in self.ranked:
            yield {
                "trial": trial.number,
                **trial.point,
                "score": trial.score,
                "deviation": trial.spread.deviation if trial.outcomes else None,
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
            "score": asdict(self.chosen.spread),
            "test": self.test.spread and asdict(self.test.spread),
            "test_folders": [str(cell.path) for cell in self.test.trial.cells],
            "trials": list(self.rows()),
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
