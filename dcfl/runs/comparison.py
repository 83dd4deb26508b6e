"""Trains several methods on the same splits, schedules and initial weights.

`identity` decides whether two runs may be compared at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcfl.config import apply, load_experiment, method_named
from dcfl.data import load_dataset
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import Method
from dcfl.methods.method import require_plain_name
from dcfl.report import write_report
from dcfl.report.notebook_html import groups_html
from dcfl.runs.folder import RecordedRun, new_folder, require_unused
from dcfl.runs.frames import data_frame
from dcfl.runs.groups import Group, group_runs
from dcfl.runs.run import Run
from dcfl.runs.training import train_to_the_end

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


def plan(
    experiment: Experiment, methods: Sequence[str | Method], seeds: Sequence[int], folder: Path
) -> dict[str, Experiment]:
    """One experiment per method and seed, keyed by the name of its run folder in `folder`.

    The experiment's own method keeps its fields; other methods named get their defaults.
    """
    with_methods = [
        _with_method(experiment, method) for method in methods
    ]  # refuses bad names first
    planned = {
        f"{chosen.method.name}-seed{seed}": apply(
            chosen,
            {
                "federation": {"seed": seed},
                "output": {"dir": str(folder / f"{chosen.method.name}-seed{seed}")},
            },
        )
        for seed in seeds
        for chosen in with_methods
    }
    if len(planned) < len(methods) * len(seeds):
        raise ConfigError("each method and each seed may be named once")
    return planned


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
    train: Callable[[str, Run], None] = train_to_the_end,
    **overrides: Any,
) -> Comparison:
    """Train several methods, as `dcfl compare` does: per seed on one split, schedule and start.

    A method whose clients are all lost does not stop the others.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        methods: By name, or as objects such as `MyMethod(mu=0.5)`. Differences are relative to
            the first.
        seeds: One run of each method per seed; by default the experiment's own.
        out: A new folder for the run folders and the report; by default one in `runs/`.
        train: Trains one run, given its name; by default all of its rounds, with a bar in a
            notebook.
        **overrides: As in `run`.

    Returns:
        The folder, and a group of runs per method.

    Raises:
        ConfigError: A method or a setting is unknown, or named twice.

    Example:
        >>> import dcfl
        >>> comparison = dcfl.compare(methods=["fedavg", "dcfl-pw"], federation={"rounds": 2})
        >>> [group.label for group in comparison.groups]
        ['fedavg', 'dcfl-pw']
        >>> comparison.report.is_file()
        True
    """
    experiment = load_experiment(experiment_or_path, **overrides)
    given = out or experiment.output.dir
    folder = Path(given) if given else new_folder(f"{experiment.data.dataset}-comparison")
    require_unused(folder)
    planned = plan(experiment, methods, seeds or [experiment.federation.seed], folder)
    load = lru_cache(1)(load_dataset)  # the methods of a seed share it
    failures = {}
    for name, planned_experiment in planned.items():
        try:
            train(name, Run(planned_experiment, load(planned_experiment.seeded.data)))
        except TooFewClients as error:
            failures[name] = error
    folders = [folder / name for name in planned]
    write_report(*folders, out=folder / "report.html")
    return Comparison(folder, group_runs([RecordedRun.open(path) for path in folders]), failures)
