"""A sweep from beginning to end: trials on kept-back images, the chosen point on test images;
best.toml, trials.csv and report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dcfl.comparisons.cells import (
    CellFolder,
    PlainCell,
    Shelf,
    refuse_another_study,
    require_few,
    require_free,
    runs_inside,
)
from dcfl.comparisons.crew import Guard, Show, train
from dcfl.comparisons.groups import yardstick
from dcfl.comparisons.pairs import Pairs, Spread
from dcfl.comparisons.space import CHOOSERS, Space, plain, require_possible, split_values, tables_of
from dcfl.comparisons.trials import Trial, Trials, needs_holdout, with_images_kept_back
from dcfl.comparisons.verdict import counted_apart
from dcfl.config import apply, as_tables, experiment_from, load_experiment, to_toml
from dcfl.data import Dataset, load_dataset
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.report import charts
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import counted, listed, number, plural
from dcfl.runs.folder import new_folder
from dcfl.runs.model_file import Which
from dcfl.runs.prepare import with_own_data
from dcfl.runs.progress import shown_in_notebooks
from dcfl.system.locks import locked
from dcfl.system.storage import storage, write_whole
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


@dataclass(frozen=True)
class SweepPlan:
    wanted: Experiment  # without what is varied, as the user has it
    space: Space
    trials: Trials

    @property
    def folder(self) -> Path:
        return self.trials.folder

    @cached_property
    def planned(self) -> list[Trial]:
        return self._all()

    def _all(self) -> list[Trial]:
        return [self.trials.trial(*numbered) for numbered in enumerate(self.space.points)]

    @property
    def todo(self) -> list[CellFolder[PlainCell]]:
        return [cell for trial in self.planned for cell in trial.cells if not cell.ended]

    @property
    def chosen_todo(self) -> list[CellFolder[PlainCell]]:
        """Runs of the chosen setting that are left, as far as it is known: others cost about the
        same. None where trials are tested as they are."""
        finished = [trial for trial in self.planned if trial.state == "finished"]
        best = max(finished, key=lambda trial: trial.score, default=self.planned[0])
        if needs_holdout(best.experiment):
            return []
        return [cell for cell in self.trials.chosen(best).cells if not cell.ended]

    def check(self) -> None:
        """Refuse settings that do not fit together, and a folder that holds anything else, before
        anything is trained."""
        self.wanted.data.require_here()
        _ = self.planned
        inside = [run for where in ("trials", "chosen") for run in runs_inside(self.folder / where)]
        if not inside:
            data = Path(self.wanted.data.dataset).name
            require_free(self.folder, ("trials", "chosen", data))
        sections = {f"{key.partition('.')[0]}." for key in self.space.keys if key in CHOOSERS}
        for run in inside:
            also = ["data.holdout"] if run.folder.parent.name == "chosen" else []
            ignored = [*self.space.keys, *sections, *also]
            refuse_another_study("sweep", self.folder, self.trials.experiment, run, ignored)

    def carry_out(
        self,
        parallel: int = 0,
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
    ) -> SweepResult:
        """`guard` surrounds each phase of training."""
        self.check()
        with storage(self.folder):  # fails now rather than after the first hour
            (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            # Read now: another process may have trained some of them before it gave way.
            trials = self._trained(self._all(), parallel, show, guard)
            finished = [trial for trial in trials if trial.state == "finished"]
            if not finished:
                raise TooFewClients(f"no trial finished: {trials[0].why}")
            best = max(finished, key=lambda trial: trial.score)
            if needs_holdout(best.experiment):
                test = _tested_as_it_is(best)
            else:
                (on_all,) = self._trained([self.trials.chosen(best)], parallel, show, guard)
                test = FinalScore(None if on_all.why else on_all.spread, on_all)
            return SweepResult(
                self.folder, self.wanted, self.space, tuple(trials), best, test
            ).written()

    def _trained(
        self, trials: Sequence[Trial], parallel: int, show: Show, guard: Guard
    ) -> list[Trial]:
        """The trials, once what is left of them is trained."""
        cells = [cell for trial in trials for cell in trial.cells]
        for cell in cells:
            cell.check()
        lost = train(cells, parallel, show, guard, f"the same command with --out {self.folder}")
        whys = ([lost.get(cell.name, "") for cell in trial.cells] for trial in trials)
        return [trial.read_again(max(why)) for trial, why in zip(trials, whys, strict=True)]


def _tested_as_it_is(trial: Trial) -> FinalScore:
    from dcfl.trained.evaluate import evaluate

    accuracies = []
    which: Which = "best" if trial.experiment.output.keep_best else "last"
    for cell in trial.cells:
        images = load_dataset(replace(cell.cell.experiment.seeded_data, holdout=0.0))
        accuracies.append(evaluate(cell.path, images, which=which).accuracy)
    return FinalScore(Spread.of(accuracies), trial)


def plan_sweep(
    experiment: Experiment,
    space: Space,
    seeds: Sequence[int] = (),
    reuse: Sequence[Path] = (),
    by: str = "",
) -> SweepPlan:
    require_few(len(seeds), math.prod(len(dimension.values) for dimension in space.dimensions))
    if len({*seeds}) < len(seeds):
        raise ConfigError("each seed may be named once")
    held_back = with_images_kept_back(experiment)
    require_possible(space, held_back)
    given = experiment.output.dir
    folder = Path(given) if given else new_folder(f"{experiment.data.dataset}-sweep")
    points = (apply(held_back, tables_of(point)) for point in space.points)
    measure = yardstick(by, any(point.own_models for point in points))
    seeds = seeds or [experiment.federation.seed]
    trials = Trials(held_back, seeds, folder, Shelf(reuse), measure)
    return SweepPlan(experiment, space, trials)


def sweep(
    experiment_or_path: Experiment | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (),
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    parallel: int = 0,
    by: str = "",
) -> SweepResult:
    """Search for good settings, as `dcfl sweep` does, and test the chosen ones once.

    Trials are scored on training images that are kept back (`data.holdout`, by default a tenth).
    The point with the highest EMA, on average over the seeds, is then trained on all training
    images and scored on the test images; where clients have models of their own, the one that is
    best by these.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        settings: By dotted key. Lists are varied, and every combination is tried; anything else is
            fixed.
        seeds: Each point is trained with each; by default the experiment's own.
        dataset: The images, instead of those the config names; saved in the folder, once.
        out: The folder of the trials, new or with trials of this sweep, which are not trained
            again; by default a new one in `runs/`.
        parallel: Trials at the same time, each in a process of its own; 0: as many as there are
            cores for; 1: one after the other, in this process.
        by: What points are judged by, "global" or "clients", as in `compare`.

    Returns:
        The trials, the chosen one, its score on the test images, its config file and the page.

    Raises:
        ConfigError: A key or a value is not possible, or there is nothing to vary.
        RunFolderError: The folder holds something else.

    Example:
        >>> import dcfl
        >>> found = dcfl.sweep(
        ...     settings={"training.lr": [0.01, 0.1], "federation.rounds": 2}, parallel=1
        ... )
        >>> found.chosen.point
        {'training.lr': 0.1}
        >>> found.config.name, found.report.name
        ('best.toml', 'report.html')
    """
    fixed, space = split_values(settings or {})
    experiment = experiment_from(experiment_or_path, fixed)
    if out is not None:
        experiment = load_experiment(experiment, **{"output.dir": str(out)})
    if dataset is not None:
        folder = Path(experiment.output.dir or new_folder(f"{dataset.name}-sweep"))
        experiment, _ = with_own_data(experiment, dataset, folder)
    plan = plan_sweep(experiment, space, seeds, by=by)
    if dataset is not None:
        dataset.save(plan.folder)
    return plan.carry_out(parallel, shown_in_notebooks([*plan.todo, *plan.chosen_todo]))
