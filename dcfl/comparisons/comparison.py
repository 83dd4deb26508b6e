"""Trains several methods on the same splits, schedules and initial weights.

`identity` decides whether two runs may be compared at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcfl.comparisons.baselines import KINDS, baselines_for, fine_tune
from dcfl.comparisons.cells import (
    Cell,
    CellFolder,
    PlainCell,
    Shelf,
    folder_name,
    refuse_another_study,
    require_few,
    require_free,
    runs_inside,
)
from dcfl.comparisons.contenders import (
    ALL,
    Contender,
    all_but,
    contender,
    refusals,
    refuse_unknown_fields,
)
from dcfl.comparisons.crew import Guard, Show, train
from dcfl.comparisons.groups import Group, baseline_of, group_runs, setting, yardstick
from dcfl.comparisons.space import Choices, choices, tables_of
from dcfl.comparisons.standing import Standing
from dcfl.comparisons.trials import TRIALS
from dcfl.comparisons.tuning import (
    MethodSearch,
    TunedMethod,
    method_search,
    tuned_methods,
    tuning_section,
)
from dcfl.comparisons.verdict import verdict
from dcfl.config import Table, apply, as_tables, load_experiment
from dcfl.data import Dataset
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import Method
from dcfl.report import write_report
from dcfl.report.notebook_html import groups_html
from dcfl.runs.folder import RecordedRun, new_folder
from dcfl.runs.identity import flat, kind_of
from dcfl.runs.prepare import with_own_data
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
    all_pairs: bool = False  # are compared; else each method with the first
    by: str = ""  # as asked for
    baselines: Sequence[Group] = ()  # neither compared nor ranked
    over: Sequence[str] = ()  # the settings that it goes over
    tuned: Sequence[TunedMethod] = ()  # how the settings of each were chosen, if they were

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def to_pandas(self) -> DataFrame:
        """A row per finished run, with its method and seed; needs pandas."""
        return data_frame(
            {
                "method": group.label,
                "seed": run.config["federation"].get("seed"),
                **{key: setting(run, key) for key in self.over},
                **vars(outcome),
            }
            for group in self.groups
            for run, outcome in group.outcomes.items()
        )

    def _repr_html_(self) -> str:
        return groups_html([*self.groups, *self.baselines], self.folder, self.by)

    @property
    def standing(self) -> Standing:
        """The paired differences that were asked for, their intervals and p-values."""
        return Standing([*self.groups, *self.baselines], self.by, all_pairs=self.all_pairs)

    @property
    def verdict(self) -> list[str]:
        """What the comparison comes to, in sentences."""
        return verdict(self.standing)


@dataclass(frozen=True)
class ComparisonPlan:
    """A run per method and seed, in a folder that may hold some of them already."""

    folder: Path
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    searches: Sequence[MethodSearch] = ()  # of each method, if their settings are searched first
    over: Sequence[str] = ()  # the settings that the comparison goes over
    shelf: Shelf = field(default_factory=Shelf)  # runs that need not be trained again
    by: str = ""  # what methods are compared by; empty: see `yardstick`
    left_out: Mapping[str, str] = field(default_factory=dict)  # of "all": which, and why

    @cached_property
    def cells(self) -> Sequence[CellFolder[Cell]]:
        planned = {
            folder_name(*one.name, f"seed{seed}"): apply(
                one.experiment, {"federation": {"seed": seed}}
            )
            for seed in self.seeds
            for one in self.contenders
        }
        if len(planned) < len(self.contenders) * len(self.seeds):
            raise ConfigError("each method, with its settings, and each seed may be named once")
        return [
            CellFolder(
                PlainCell(name, one), self.shelf.find(one) or self.folder / name, one.output.report
            )
            for name, one in planned.items()
        ]

    def check(self) -> None:
        inside = runs_inside(self.folder)
        if not inside:
            data = Path(self.cells[0].cell.experiment.data.dataset).name
            require_free(self.folder, [data, TRIALS, *(cell.name for cell in self.cells)])
        trials, compared = self.expected
        for cell in (*trials, *compared):
            cell.check()
        varied = [axis.key for search in self.searches for axis in search.axes]
        own = [key for one in self.contenders for key in one.own]
        for run in inside:
            experiment = self.cells[0].cell.experiment
            ignored = ["method.", *varied, *own, *self.over]
            if not baseline_of(run):  # whose schedules are others
                refuse_another_study("comparison", self.folder, experiment, run, ignored)

    @cached_property
    def expected(self) -> tuple[list[CellFolder[PlainCell]], Sequence[CellFolder[Cell]]]:
        """All trials, and all runs of the comparison after them. What a search has not come to is
        not known: others stand for it that cost about the same."""
        tuned = [search.so_far(otherwise=0.0) for search in self.searches]
        return [cell for one in tuned for cell in one.cells], self.with_settings(tuned).cells

    @property
    def todo(self) -> list[CellFolder[Cell]]:
        trials, compared = self.expected
        return [cell for cell in (*trials, *compared) if not cell.ended]

    def with_settings(self, tuned: Sequence[TunedMethod]) -> ComparisonPlan:
        """The comparison after the searches, without methods that nothing was found for."""
        if not tuned:
            return self
        methods = [one for one in self.contenders if not one.baseline]
        pairs = zip(methods, tuned, strict=True)
        found = [one.tuned(by.chosen) for one, by in pairs if not by.why]
        baselines = [one for one in self.contenders if one.baseline]
        return replace(self, contenders=[*found, *baselines] if found else [], searches=())

    def carry_out(
        self,
        parallel: int = 0,
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
        **page: Any,
    ) -> Comparison:
        """Train what is left; `page`: what `write_report` is to show."""
        with storage(self.folder):  # fails now rather than after the first hour
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            tuned = tuned_methods(self.searches, parallel, show, guard, self._again)
            chosen = self.with_settings(tuned)
            if not chosen.contenders:
                raise TooFewClients(f"no trial finished: {tuned[0].why}")
            for cell in chosen.cells:
                cell.check()
            whys = {cell.name: cell.failed for cell in chosen.cells if cell.failed}
            whys |= train(chosen.todo, parallel, show, guard, self._again)
            if any(one.baseline for one in chosen.contenders):
                for cell in chosen.cells:
                    fine_tune(cell)
            whys |= {one.label: f"no trial finished: {one.why}" for one in tuned if one.why}
            failures = {name: TooFewClients(why) for name, why in whys.items()}
            return chosen.result(failures, tuned, **page)

    @property
    def _again(self) -> str:
        return f"the same command with --out {self.folder}"

    def result(
        self, failures: dict[str, TooFewClients], tuned: Sequence[TunedMethod] = (), **page: Any
    ) -> Comparison:
        """Compares all that the folder holds: the runs asked for first, in their order. Of tuned
        methods these alone: a shorter search may have left others."""
        asked = [RecordedRun.open(cell.path) for cell in self.cells if cell.begun]
        paths = {run.folder for run in asked}
        inside = [] if tuned else runs_inside(self.folder)
        runs = [*asked, *(run for run in inside if run.folder not in paths and run.finished)]
        more = [tuning_section(tuned)] if tuned else []
        out = self.folder / "report.html"
        folders = [run.folder for run in runs]
        write_report(*folders, out=out, more=more, over=self.over, by=self.by, **page)
        found = Standing(group_runs(runs, self.over))
        return Comparison(
            self.folder,
            found.groups,
            failures,
            bool(page.get("all_pairs")),
            self.by,
            found.baselines,
            self.over,
            tuned,
        )


def plan_comparison(
    experiment: Experiment,
    methods: Sequence[str | Method],
    seeds: Sequence[int],
    fields_for_all: Table | None = None,
    *,
    baselines: bool = False,
    dataset: Dataset | None = None,
    over: Sequence[Choices] = (),
    reuse: Sequence[Path] = (),
    tune: int = 0,
    tune_lr: bool = True,
    by: str = "",
) -> ComparisonPlan:
    """Runs in the folder that the config names, or in a new one. The experiment's own method keeps
    its fields; other methods named get their defaults. `fields_for_all`: of every method that has
    such a field and does not set it itself. `dataset`: the images, if they are in memory.
    `over`: settings with the values at each of which all methods are compared. `reuse`: folders
    with finished runs that are not trained again. `by`: what methods are compared and tuned by."""
    if not methods:
        raise ConfigError("no method to compare: name at least one")
    _check_over(over, tune)
    left_out = dict[str, str]()
    if ALL in methods:
        others = [one for one in methods if one != ALL]
        added = list(all_but(others))
        left_out = refusals(experiment, added, dataset)
        fitting = [name for name in added if name not in left_out]
        place = [*methods].index(ALL)  # others are paired with the first one named
        methods = [*others[:place], *fitting, *others[place:]]
    points = [
        dict(zip([one.key for one in over], values, strict=True))
        for values in product(*(one.values for one in over))
    ]
    require_few(len(seeds), len(points) * (len(methods) + len(KINDS) * baselines))
    contenders = list[Contender]()
    for point in points:
        here = apply(experiment, tables_of(point))
        before = flat(as_tables(experiment))
        differs = {key: value for key, value in point.items() if value != before.get(key)}
        found = [contender(here, method, fields_for_all or {}) for method in methods]
        if baselines:
            kinds = baselines_for(here, dataset).items()
            found += [Contender(one, {}, kind) for kind, one in kinds]
        contenders += [replace(one, point=differs) for one in found]
    refuse_unknown_fields([one.experiment.method for one in contenders], fields_for_all or {})
    folder = Path(experiment.output.dir or new_folder(f"{experiment.data.dataset}-comparison"))
    seeds = seeds or [experiment.federation.seed]
    methods_own = (one.experiment.own_models for one in contenders if not one.baseline)
    measure = yardstick(by, any(methods_own))
    searches = [
        method_search(one.experiment, dict(one.own), tune, seeds, tune_lr, folder, measure)
        for one in contenders
        if tune and not one.baseline
    ]
    keys = [one.key for one in over]
    plan = ComparisonPlan(folder, contenders, seeds, searches, keys, Shelf(reuse), by, left_out)
    _ = plan.cells  # refuses what is named twice
    return plan


MOST_OVER = 2  # settings: the places of a chart, and its panels


def _check_over(over: Sequence[Choices], tune: int) -> None:
    if over and tune:
        raise ConfigError("--tune chooses settings for one task: leave out --over or --tune")
    if len(over) > MOST_OVER:
        raise ConfigError(f"--over takes one setting or two, not {len(over)}")
    for one in over:
        if kind_of(one.key) != "result" or one.key.startswith("method."):
            raise ConfigError(
                f"--over {one.key}: seeds have --seeds, what methods have of their own is given "
                f"with --methods, and other settings must change the numbers"
            )


def compare(
    experiment_or_path: Experiment | str | Path | None = None,
    *,
    methods: Sequence[str | Method] = USUAL,
    seeds: Sequence[int] = (),
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    parallel: int = 0,
    all_pairs: bool = False,
    tune: int = 0,
    tune_lr: bool = True,
    baselines: bool = False,
    over: Mapping[str, Sequence[Any]] | None = None,
    reuse: Sequence[str | Path] = (),
    by: str = "",
    **overrides: Any,
) -> Comparison:
    """Train several methods, as `dcfl compare` does: per seed on one split, schedule and start.

    A method whose clients are all lost does not stop the others. What the folder holds already is
    not trained again, and what was interrupted continues; so methods and seeds may be added later.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        methods: By name, with settings as in `"fedprox(mu=0.1, training.lr=0.05)"`, or as objects
            such as `MyMethod(mu=0.5)`; "all" stands for every method that these settings and the
            network can have. Differences are relative to the first.
        seeds: One run of each method per seed; by default the experiment's own.
        dataset: The images, instead of those the config names; saved in the folder, once.
        out: The folder for the run folders and the report, new or with runs of this comparison;
            by default a new one in `runs/`.
        parallel: Runs at the same time, each in a process of its own; 0: as many as there are
            cores for; 1: one after the other, in this process, as all are where a method is an
            object of a class in a notebook or a script.
        all_pairs: Compare every method with every other, and correct p for all of these; else
            with the first alone.
        tune: First so many trials of every method (3 to 12) on training images that are kept back,
            with two seeds of their own; each method is compared with its best settings. Varied are
            its numbers (`Method.searched`, `Method.neutral`) unless `methods` sets them.
        tune_lr: Whether these trials vary the learning rate too.
        baselines: Train each client alone and all data in one place too, and count the most
            frequent class; the result has them as `baselines`.
        over: One setting or two, each with several values, as in `{"data.alpha": [0.1, 1.0]}`: the
            methods are compared at each of them, and the page has curves over them.
        reuse: Folders whose finished runs are used instead of training the same again.
        by: What methods are compared, ranked and tuned by: "global", the EMA of the global model,
            or "clients", the mean accuracy of the clients in the end, each on its own with the
            model that it uses. By default "clients" where some have a model of their own.
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
    experiment = load_experiment(experiment_or_path, **overrides)
    if dataset is not None:
        folder = Path(experiment.output.dir or new_folder(f"{dataset.name}-comparison"))
        experiment, named = with_own_data(experiment, dataset, folder)
    else:
        named = None
    plan = plan_comparison(
        experiment,
        methods,
        seeds,
        baselines=baselines,
        dataset=named,
        over=[choices(key, values) for key, values in (over or {}).items()],
        reuse=[Path(one) for one in reuse],
        tune=tune,
        tune_lr=tune_lr,
        by=by,
    )
    plan.check()
    if dataset is not None:
        dataset.save(plan.folder)
    return plan.carry_out(parallel, shown_in_notebooks(plan.todo), all_pairs=all_pairs)
