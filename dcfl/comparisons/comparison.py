"""Trains several methods on the same splits, schedules and initial weights.

`identity` decides whether two runs may be compared at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcfl.comparisons.cells import (
    Cell,
    CellFolder,
    PlainCell,
    refuse_another_study,
    require_free,
    runs_inside,
)
from dcfl.comparisons.crew import Crew, Guard, MixedCrew, until_it_fails
from dcfl.comparisons.groups import Group, group_runs
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.trainer import Show
from dcfl.comparisons.verdict import verdict
from dcfl.config import apply, load_experiment, method_named
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import Method
from dcfl.methods.method import require_plain_name
from dcfl.report import write_report
from dcfl.report.notebook_html import groups_html
from dcfl.runs.folder import RecordedRun, new_folder
from dcfl.runs.progress import shown_in_notebooks
from dcfl.runs.rows import data_frame
from dcfl.system.locks import locked
from dcfl.system.storage import storage

if TYPE_CHECKING:
    from pandas import DataFrame


USUAL = ("fedavg", "dcfl-sw", "dcfl-pw")


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    folder: Path  # holds a run folder per method and seed
    groups: list[Group]  # one per method; differences are relative to the first
    failures: dict[str, TooFewClients]  # runs that lost their clients, by folder name

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def to_pandas(self) -> DataFrame:
        """A row per finished run, with its method and seed; needs pandas."""
        return data_frame(
            {"method": group.label, "seed": run.config["federation"].get("seed"), **vars(outcome)}
            for group in self.groups
            for run, outcome in group.outcomes.items()
        )

    def _repr_html_(self) -> str:
        return groups_html(self.groups, self.folder)

    @property
    def standing(self) -> Standing:
        """The paired differences of all methods, their intervals and p-values."""
        return Standing(self.groups)

    @property
    def verdict(self) -> list[str]:
        """What the comparison comes to, in sentences."""
        return verdict(self.standing)


@dataclass(frozen=True)
class ComparisonPlan:
    """A run per method and seed, in a folder that may hold some of them already."""

    folder: Path
    cells: Sequence[CellFolder[Cell]]

    def check(self) -> None:
        """Refuse a folder that holds anything but this comparison, before anything is trained."""
        inside = runs_inside(self.folder)
        if not inside:
            require_free(self.folder, [cell.name for cell in self.cells])
        for cell in self.cells:
            cell.check()
        for run in inside:
            experiment = self.cells[0].cell.experiment
            refuse_another_study("comparison", self.folder, experiment, run, ["method."])

    @property
    def todo(self) -> list[CellFolder[Cell]]:
        return [cell for cell in self.cells if not cell.ended]

    def carry_out(
        self,
        parallel: int = 0,
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
        target: float | None = None,
    ) -> Comparison:
        """Train what is left; `target` is for the report."""
        with storage(self.folder):  # fails now rather than after the first hour
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            crew = MixedCrew(self.todo, parallel)
            with guard(crew):
                failures = self.train(crew, show)
            return self.result(failures, target)

    def train(self, crew: Crew, show: Show = lambda news: None) -> dict[str, TooFewClients]:
        """Returns the runs that lost their clients, now or before. Other failures end all runs."""
        failures = {cell.name: TooFewClients(cell.failed) for cell in self.cells if cell.failed}
        for news in until_it_fails(crew, show, f"the same command with --out {self.folder}"):
            if isinstance(news.error, TooFewClients):
                failures[news.name] = news.error
        return failures

    def result(self, failures: dict[str, TooFewClients], target: float | None = None) -> Comparison:
        """Compares all that the folder holds: the runs asked for first, in their order."""
        asked = [RecordedRun.open(cell.path) for cell in self.cells if cell.begun]
        paths = {run.folder for run in asked}
        inside = runs_inside(self.folder)
        runs = [*asked, *(run for run in inside if run.folder not in paths and run.finished)]
        write_report(*(run.folder for run in runs), out=self.folder / "report.html", target=target)
        return Comparison(self.folder, group_runs(runs), failures)


def plan_comparison(
    experiment: Experiment, methods: Sequence[str | Method], seeds: Sequence[int]
) -> ComparisonPlan:
    """Runs in the folder that the config names, or in a new one. The experiment's own method keeps
    its fields; other methods named get their defaults."""
    output = experiment.output
    folder = Path(output.dir or new_folder(f"{experiment.data.dataset}-comparison"))
    with_methods = [_with_method(experiment, method) for method in methods]
    planned = {
        f"{chosen.method.name}-seed{seed}": apply(chosen, {"federation": {"seed": seed}})
        for seed in seeds or [experiment.federation.seed]
        for chosen in with_methods
    }
    if len(planned) < len(methods) * max(len(seeds), 1):
        raise ConfigError("each method and each seed may be named once")
    cells = [
        CellFolder(PlainCell(name, one), folder / name, output.report)
        for name, one in planned.items()
    ]
    return ComparisonPlan(folder, cells)


def _with_method(experiment: Experiment, method: str | Method) -> Experiment:
    if isinstance(method, Method):
        require_plain_name(method.name)  # it becomes part of a folder name
        return replace(experiment, method=method)
    return apply(experiment, {"method": {"name": method_named(method).name}})


def compare(
    experiment_or_path: Experiment | str | Path | None = None,
    *,
    methods: Sequence[str | Method] = USUAL,
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    parallel: int = 0,
    **overrides: Any,
) -> Comparison:
    """Train several methods, as `dcfl compare` does: per seed on one split, schedule and start.

    A method whose clients are all lost does not stop the others. What the folder holds already is
    not trained again, and what was interrupted continues; so methods and seeds may be added later.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        methods: By name, or as objects such as `MyMethod(mu=0.5)`. Differences are relative to
            the first.
        seeds: One run of each method per seed; by default the experiment's own.
        out: The folder for the run folders and the report, new or with runs of this comparison;
            by default a new one in `runs/`.
        parallel: Runs at the same time, each in a process of its own; 0: as many as there are
            cores for; 1: one after the other, in this process. Methods given as objects of a
            class in a notebook or a script are trained in this process.
        **overrides: As in `run`.

    Returns:
        The folder, and a group of runs per method.

    Raises:
        ConfigError: A method or a setting is unknown, or named twice.
        RunFolderError: The folder holds something else.

    Example:
        >>> import dcfl
        >>> comparison = dcfl.compare(methods=["fedavg", "dcfl-pw"], federation={"rounds": 2})
        >>> [group.label for group in comparison.groups]
        ['fedavg', 'dcfl-pw']
        >>> comparison.report.is_file()
        True
    """
    if out is not None:
        overrides["output.dir"] = str(out)
    plan = plan_comparison(load_experiment(experiment_or_path, **overrides), methods, seeds)
    plan.check()
    with shown_in_notebooks("compare", plan.todo) as show:
        return plan.carry_out(parallel, show)
