"""Cells: an experiment, a name and the folder of its run, where it may be trained already."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dcfl.comparisons.groups import setting
from dcfl.config import as_tables
from dcfl.data import load_dataset
from dcfl.data.catalogue import PUBLIC
from dcfl.errors import ConfigError, RunFolderError, RunMissing
from dcfl.experiment import Experiment
from dcfl.report import find_runs
from dcfl.runs.folder import RecordedRun, own_files, require_unused
from dcfl.runs.identity import CONTENTS, differences, flat, identity, of_run, own_contents
from dcfl.runs.rows import damaged
from dcfl.system.locks import LOCK
from dcfl.system.storage import read_whole

MOST_SEEDS, MOST_CELLS = 1_000, 10_000  # of a study; more are a mistake
LONGEST_NAME = 150  # characters; file systems allow about 255 bytes


def require_few(seeds: int, each: int = 1) -> None:
    """Refuse more runs than anybody waits for, before they are made; `each` for every seed."""
    if seeds > MOST_SEEDS:
        raise ConfigError(f"{seeds:,} seeds: a study takes {MOST_SEEDS:,} at most")
    if max(seeds, 1) * each > MOST_CELLS:
        raise ConfigError(
            f"{max(seeds, 1) * each:,} runs: a study takes {MOST_CELLS:,} at most; ask for fewer "
            f"methods, points or seeds"
        )


def marks(settings: Mapping[str, Any], beside: Iterable[str] = ()) -> Iterator[str]:
    """One per setting, such as `lr0.1`. The table is left out where no other key, of these or
    `beside` them, has the same name."""
    uses = Counter(key.partition(".")[2] for key in {*settings, *beside})
    for key, value in settings.items():
        short = key.partition(".")[2]
        yield _mark(short if uses[short] == 1 else key, value)


def _mark(key: str, value: Any) -> str:
    if isinstance(value, float | int):
        short = f"{value:g}"
        return f"{key}{short if float(short) == value else value}"
    return f"{key}-{re.sub(r'[^A-Za-z0-9.]+', '-', str(value)).strip('-')}"


def folder_name(*parts: str) -> str:
    """A name, cut short with a hash of all of it where it is too long for a file system."""
    name = "-".join(parts)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


FAILED = "failed.txt"  # in the folder of a cell whose clients all diverged: says why


class Cell(Protocol):
    """What all cells have; a study adds what it groups them by."""

    @property
    def name(self) -> str: ...  # unique among those of a folder

    @property
    def experiment(self) -> Experiment: ...


@dataclass(frozen=True)
class PlainCell:
    name: str
    experiment: Experiment


Kind = TypeVar("Kind", bound=Cell, covariant=True)


@dataclass(frozen=True)
class CellFolder(Generic[Kind]):
    cell: Kind
    path: Path
    report: bool = False  # whether the run gets a page of its own

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def begun(self) -> bool:
        return (self.path / "config.toml").is_file()

    @cached_property
    def run(self) -> RecordedRun | None:
        """The run as it was when first read; None if it has not begun."""
        if not self.begun:
            return None
        run = RecordedRun.open(self.path)
        refuse_another_run(self.cell.experiment, run)
        return run

    def check(self) -> None:
        """Refuse a damaged or a different run, before any time is spent on the other cells."""
        self.cell.experiment.data.require_here()
        if self.run is not None and self.run.finished:
            rows, rounds = len(self.run.rounds), self.run.summary.rounds if self.run.summary else 0
            if rows != rounds:  # reading them has checked the others
                raise damaged(self.path / "rounds.jsonl", f"{rows} rows of {rounds} rounds")

    @property
    def finished(self) -> bool:
        return self.run is not None and self.run.finished

    @property
    def failed(self) -> str:
        """Why the method diverged; empty if it did not, or has not yet."""
        path = self.path / FAILED
        told = path.is_file() and not self.finished
        return read_whole(path).decode("utf-8", "replace") if told else ""

    @property
    def ended(self) -> bool:
        return self.finished or bool(self.failed)

    @property
    def rounds_left(self) -> int:
        done = len(self.run.rounds) if self.run else 0
        return 0 if self.ended else self.cell.experiment.federation.rounds - done

    @property
    def experiment(self) -> Experiment:
        output = self.cell.experiment.output
        # Nobody makes the runs of a study longer, and there may be hundreds of them.
        keep = output.keep_checkpoint and self.report
        output = replace(output, dir=str(self.path), report=self.report, keep_checkpoint=keep)
        return replace(self.cell.experiment, output=output)


def refuse_another_run(experiment: Experiment, run: RecordedRun) -> None:
    """A folder of the same name with other settings must not pass for a result of this cell."""
    if different := difference_to(experiment, run):
        raise RunFolderError(
            f"{run.folder} holds another run: {different}; choose another folder with --out"
        )


def difference_to(experiment: Experiment, run: RecordedRun, ignored: Sequence[str] = ()) -> str:
    """In what a recorded run is another experiment or has another seed; empty if in nothing.
    `ignored`: keys that may differ, or whole tables, such as `method.`."""
    experiment = _asked(experiment)
    facts = own_contents(experiment)
    wanted = identity({**flat(as_tables(experiment)), **facts})
    recorded = identity({**of_run(run), "data": None, "model": None})  # which are not known here
    for fact, value, before in differences(wanted, recorded):
        key = CONTENTS.get(fact, fact)
        # A recorded config has what "auto" stood for, and how many sites there were.
        left_open = value == "auto" or (key in BY_SITES and setting(run, BY_SITES[0]) == "given")
        if left_open or key in ignored or f"{key.partition('.')[0]}." in ignored:
            continue
        if fact == "method":
            return f"the code of {experiment.method.name} was another"
        return f"{key} was {before!r} and would be {value!r}"
    return ""


def _asked(experiment: Experiment) -> Experiment:
    """The experiment with what "auto" stands for where that is known without reading the data."""
    data, federation = experiment.data.with_own_split(), experiment.federation
    if data.dataset in PUBLIC:
        data = replace(data, clients=data.population)
        federation = replace(federation, participation=federation.share)
    return replace(experiment, data=data, federation=federation)


BY_SITES = ("data.partition", "data.clients")  # what data that comes as sites decides


SEEDS = ("federation.seed", "data.seed")


def refuse_another_study(
    kind: str, folder: Path, experiment: Experiment, run: RecordedRun, ignored: Sequence[str]
) -> None:
    """A run in the folder of a study differs from its others in the `ignored` keys and its seed."""
    if different := difference_to(experiment, run, (*ignored, *SEEDS)):
        raise RunFolderError(
            f"{folder} holds another {kind}: in {run.folder.name}, {different}; "
            f"choose another folder with --out"
        )


def runs_inside(folder: Path) -> list[RecordedRun]:
    """The runs directly below a folder, which need not exist."""
    return find_runs(folder) if any(folder.glob("*/config.toml")) else []


def require_free(folder: Path, ours: Collection[str]) -> None:
    """Refuse a folder with anything in it but these, which a killed command may have left."""
    inside = [path.name for path in folder.iterdir()] if folder.is_dir() else [""]
    if not {LOCK, *ours}.issuperset(inside):
        require_unused(folder)


INSIDE = ("", "cells", "trials", "chosen")  # where comparisons, reproductions and sweeps keep runs


class Shelf:
    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._runs = [run for folder in folders for run in _finished(folder)]
        self._load = lru_cache(1)(load_dataset)

    def find(self, experiment: Experiment) -> Path | None:
        """The folder of a run of this experiment with this seed. Not if the user's own code, images
        or initial weights play a part: their content may have changed."""
        own = own_files(experiment) or not type(experiment.method).__module__.startswith("dcfl.")
        if own or ":" in experiment.data.dataset or experiment.model.weights:
            return None
        # What "auto" stands for: in a method here, in the augmentation below.
        method = experiment.server.fitted(experiment.method)
        wanted = replace(experiment, method=method)
        for run in self._runs:
            if not difference_to(wanted, run) and self._same_views(wanted, run):
                return run.folder
        return None

    def _same_views(self, experiment: Experiment, run: RecordedRun) -> bool:
        usual = self._load(experiment.data).preparation.augmentation
        views = experiment.data.augmentation(usual)
        return (views.crop, views.flip) == (setting(run, "data.crop"), setting(run, "data.flip"))


def _finished(folder: Path) -> list[RecordedRun]:
    own = find_runs(folder) if (folder / "config.toml").is_file() else []
    runs = [*own, *(run for inside in INSIDE for run in runs_inside(folder / inside))]
    if not runs:
        raise RunMissing(f"{folder} holds no run that could be used again")
    return [run for run in runs if run.finished]
