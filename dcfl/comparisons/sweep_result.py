"""What came out of a sweep, and its files: best.toml, trials.csv, report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dcfl.comparisons.pairs import Pairs, Spread
from dcfl.comparisons.space import Space, plain
from dcfl.comparisons.trials import Trial, needs_holdout
from dcfl.comparisons.verdict import counted_apart
from dcfl.config import as_tables, to_toml
from dcfl.experiment import Experiment
from dcfl.report import charts
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import counted, listed, number, plural
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable


@dataclass(frozen=True)
class FinalScore:
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
            "judged_by": self.chosen.yardstick.quantity,
            "test": self.test.spread and asdict(self.test.spread),
            "test_folders": [str(cell.path) for cell in self.test.trial.cells],
            "trials": list(self.rows()),
            "config": str(self.config),
            "report": str(self.report),
            "folder": str(self.folder),
        }

    def written(self) -> SweepResult:
        """Write the files."""
        chosen = f"# Chosen of {len(self.trials)} by `dcfl sweep`: {printable(self.chosen.text)}"
        write_whole(self.config, f"{chosen}\n{to_toml(as_tables(self.experiment))}\n")
        write_whole(self.folder / "trials.csv", trials_table(self).csv())
        write_whole(self.report, sweep_page(self).html)
        return self

    @property
    def headline(self) -> str:
        chosen, accuracy = self.chosen, self.chosen.yardstick.name
        text = (
            f"Chosen: {chosen.text}, with {number(chosen.spread.mean)} % ({accuracy}) on kept-back "
            f"images."
        )
        if ties := sum(trial.score == chosen.score for trial in self.trials) - 1:
            text += f" {counted(ties, 'other trial').capitalize()} scored as high."
        if self.test.spread is None:
            return f"{text} Training it on all images failed: {self.test.trial.why}"
        return f"{text}{self._certainty} On the test images it has {self.test.spread} %."

    @property
    def _certainty(self) -> str:
        """How many of the other points are behind by more than chance explains."""
        name = "the chosen setting"
        scores = {
            name if trial is self.chosen else str(trial.number): trial.scores
            for trial in self.trials
            if trial.state == "finished"
        }
        pairs = Pairs.of(scores, name)
        return f" {counted_apart(pairs)}" if pairs.tested else ""


def sweep_page(result: SweepResult) -> Page:
    chosen, wanted = result.chosen, result.wanted
    seeds = plural(len(chosen.cells), "seed")
    facts = [
        ("Varied", "; ".join(map(str, result.space.dimensions))),
        ("Seeds", f"{seeds} per point"),
        ("Rounds", str(wanted.federation.rounds)),
        (
            "Scored on",
            f"{100 * chosen.experiment.data.holdout:g} % of the training images, kept back",
        ),
        ("Scored by", chosen.yardstick.name),
    ]
    cautions = [
        f"Trial {trial.number} ({trial.text}) failed: {trial.why}"
        for trial in result.trials
        if trial.why
    ]
    if len(chosen.cells) == 1:
        cautions.append("With one seed per point, small differences between trials may be chance.")
    sections = [_chosen_section(result)]
    if (picture := _scores_picture(result)) is not None:
        sections.append(Section("Scores", pictures=[picture]))
    sections.append(Section("Trials", tables=[trials_table(result)]))
    title = f"Sweep of {result.experiment.method.name} on {wanted.data.dataset}"
    return Page(title, facts, result.headline, sections, cautions)


def _chosen_section(result: SweepResult) -> Section:
    rows = [(key, plain(value)) for key, value in result.chosen.point.items()]
    rows.append(("kept-back images, %", f"{result.chosen.spread}"))
    test = result.test.spread
    rows.append(("test images, %", f"{test}" if test else "failed"))
    how = (
        "The trials' own models were scored on the test images, because such runs end or choose by "
        "images that are kept back."
        if result.test.trial is result.chosen
        else "It was trained again on all training images, once per seed, and scored on the test "
        "images; these were not used before."
    )
    table = Table(("setting or score", "value"), rows)
    return Section("The chosen setting", [f"{how} best.toml has it as a config."], [table])


def _scores_picture(result: SweepResult) -> Picture | None:
    """The scores of finished trials over one or two settings; None over more."""
    dimensions, accuracy = result.space.dimensions, result.chosen.yardstick.name
    if len(dimensions) > 2:
        return None
    values = np.full((*(len(one.values) for one in dimensions), 3), np.nan)
    for trial in result.trials:
        place = tuple(one.values.index(trial.point[one.key]) for one in dimensions)
        if trial.state == "finished":
            known = trial.scores.values()
            values[place] = (trial.score, min(known), max(known))
    keys, names = result.space.keys, [list(map(plain, one.values)) for one in dimensions]
    about = f"{accuracy} of finished trials on kept-back images"
    if len(keys) == 2:
        down, across = zip(keys, names, strict=True)
        chart = charts.matrix(values[..., 0], down, across, "accuracy, %", "range", digits=2)
    else:
        lines = charts.lines_over(names[0], ["trials"], values.T[:, None])
        up = {"label": f"{accuracy} (%)", "percent": True, **charts.reach(values)}
        chart = charts.plot(charts.places(keys[0], names[0]), up, [{"series": lines}])
    if len(result.chosen.cells) > 1:
        bars = "" if len(keys) == 2 else ", bars from the lowest to the highest"
        about += f", mean over seeds{bars}"
    title = f"Accuracy over {listed(keys)}"
    return Picture(title, "Each trial's score by its settings", f"{about}.", chart)


def trials_table(result: SweepResult) -> Table:
    columns = ("trial", *result.space.keys, "score, %", "±", "seeds", "state", "rounds", "seconds")
    rows = [
        (
            str(row["trial"]),
            *(plain(row[key]) for key in result.space.keys),
            number(row["score"]),
            "" if row["deviation"] is None else number(row["deviation"]),
            str(row["seeds"]),
            str(row["state"]),
            str(row["rounds"]),
            number(row["seconds"], 1),
        )
        for row in result.rows()
    ]
    return Table(columns, rows)
