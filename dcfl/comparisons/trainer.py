"""Trains cells in this process: from the beginning, or from where they stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dcfl import errors
from dcfl.comparisons.cells import FAILED, Cell, CellFolder
from dcfl.comparisons.groups import Outcome
from dcfl.config import as_tables, from_toml, to_toml
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.errors import (
    NO_LONGER_FINITE,
    ConfigError,
    DCFLError,
    Interrupted,
    LeakWarning,
    TooFewClients,
)
from dcfl.experiment import Experiment
from dcfl.methods import METHODS, Method
from dcfl.methods.loading import register_methods
from dcfl.models.own_models import register_model
from dcfl.runs.folder import METHOD_COPY, RecordedRun, own_files
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from dcfl.runs.trust import named_outside
from dcfl.system.own_files import own_file_of, run_file
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable


class SentFile(NamedTuple):
    """A file that a person has named to this process, and that another one is to run too."""

    defines: str  # "method" or "model"
    path: str
    sha256: str  # as it was when it ran here: it may have been edited since


def can_travel(experiment: Experiment) -> bool:
    """Whether another process can build it. Not so if its method is an object of a class that is
    in no file: of a notebook, or of a script."""
    for choice in (experiment.method, experiment.server.optimizer):
        kind = type(choice)
        if not kind.__module__.startswith("dcfl.") and own_file_of(kind) is None:
            return False
    with warnings.catch_warnings(action="ignore"):
        try:
            return from_toml(as_text(experiment)) == experiment
        except (ConfigError, TypeError):  # TypeError: a field that no config file can hold
            return False


def as_text(experiment: Experiment) -> str:
    return to_toml(as_tables(experiment))


def files_to_send(experiment: Experiment) -> list[SentFile]:
    return [
        SentFile("method" if copy == METHOD_COPY else "model", str(file.path), file.code_sha256)
        for copy, file in own_files(experiment).items()
    ]


def register_sent(files: Sequence[SentFile]) -> None:
    for defines, path, sha256 in files:
        if run_file(Path(path)).code_sha256 != sha256:
            raise ConfigError(f"{path} has been edited since the command began: start it again")
        if defines == "method":
            register_methods(Path(path))
        else:
            register_model(Path(path))


def scored_on(experiment: Experiment) -> tuple[str, ...]:
    """What a warning about leaks is about: cells that have it in common need one."""
    return (experiment.data.dataset, experiment.data.path, experiment.model.weights)


State = Literal["round", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class News:
    """What a crew says of a cell: a round of it, or how it ended."""

    cell_folder: CellFolder[Cell]
    state: State
    row: RoundRow | None = None
    why: str = ""
    kind: str = ""  # the name of the error's class, if it failed

    @classmethod
    def failure(cls, cell_folder: CellFolder[Cell], error: Exception) -> News:
        kind = type(error).__name__
        why = str(error) if isinstance(error, DCFLError) else f"{kind}: {error}"
        return cls(cell_folder, "failed", why=why, kind=kind)

    @property
    def name(self) -> str:
        return self.cell_folder.name

    @property
    def round(self) -> int:
        return self.row.round if self.row else 0

    @property
    def outcome(self) -> Outcome:
        return Outcome.of(RecordedRun.open(self.cell_folder.path))

    @property
    def error(self) -> Exception | None:
        """Why it failed, as the error that was raised where it was trained."""
        if self.state != "failed":
            return None
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, DCFLError):
            return kind(self.why)
        return RuntimeError(f"{self.name}: {self.why}")


Show = Callable[[News], None]


class Trainer:
    def __init__(self) -> None:
        self.stopping = False
        self._run: Run | None = None
        self._loaded: tuple[DataSettings, Dataset] | None = None
        self.warned_of = set[tuple[str, ...]]()  # of what is scored, in this study

    def stop(self) -> None:
        """End after this round; it gets a checkpoint."""
        self.stopping = True
        if self._run is not None:
            self._run.stop()

    def train(self, cell_folder: CellFolder[Cell]) -> Iterator[News]:
        """Errors that are not dcfl's own are raised."""
        try:
            for row in self._rounds(cell_folder.path, cell_folder.experiment):
                yield News(cell_folder, "round", row)
        except Interrupted:
            yield News(cell_folder, "stopped")
        except DCFLError as error:
            yield News.failure(cell_folder, error)
        else:
            yield News(cell_folder, "finished")

    def _rounds(self, folder: Path, experiment: Experiment) -> Iterator[RoundRow]:
        """The rounds that are left: none if another process has finished it meanwhile."""
        if (folder / "config.toml").is_file() and RecordedRun.open(folder).finished:
            return
        self._run = run = self._begun_or_resumed(folder, experiment)
        if self.stopping:  # asked to before there was a run
            run.stop()
        try:
            yield from run.rounds()
        except TooFewClients as error:
            if NO_LONGER_FINITE in str(error):  # a result, the same every time
                write_whole(folder / FAILED, printable(error))
            raise
        finally:
            self._run = None

    def _begun_or_resumed(self, folder: Path, experiment: Experiment) -> Run:
        dataset = self._dataset(experiment.seeded_data)
        with warnings.catch_warnings():
            if scored_on(experiment) in self.warned_of:
                warnings.simplefilter("ignore", LeakWarning)
            self.warned_of.add(scored_on(experiment))
            return self._run_in(folder, experiment, dataset)

    def _run_in(self, folder: Path, experiment: Experiment, dataset: Dataset) -> Run:
        if not (folder / "config.toml").is_file():
            return Run(experiment, dataset)
        with _known(experiment.method):
            # What this command names as well is the user's own choice.
            recorded = RecordedRun.open(folder).experiment
            same = named_outside(recorded, folder) == named_outside(experiment, folder)
            return Run.resume(folder, dataset, trust=same)

    def _dataset(self, settings: DataSettings) -> Dataset:
        """Keeps the last one: the next cell is likely to need it."""
        if self._loaded is None or self._loaded[0] != settings:
            self._loaded = (settings, load_dataset(settings))
        return self._loaded[1]


@contextmanager
def _known(method: Method) -> Iterator[None]:
    """A run folder names its method. One that was given as an object is known by that name while
    its run is opened."""
    before = METHODS.get(method.name)
    METHODS[method.name] = type(method)
    try:
        yield
    finally:
        if before is None:
            del METHODS[method.name]
        else:
            METHODS[method.name] = before
