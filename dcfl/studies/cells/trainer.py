"""Trains cells in this process: from the beginning, or from where they stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.errors import NO_LONGER_FINITE, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import METHODS, Method
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from dcfl.studies.cells.cell_folders import FAILED
from dcfl.system.printable import printable
from dcfl.system.storage import write_whole


class Trainer:
    def __init__(self) -> None:
        self.stopping = False
        self._pruned: Path | None = None
        self._run: Run | None = None
        self._loaded: tuple[DataSettings, Dataset] | None = None

    def stop(self) -> None:
        """End after this round; it gets a checkpoint."""
        self.stopping = True
        if self._run is not None:
            self._run.stop()

    def prune(self, folder: Path) -> None:
        """End the cell in this folder after its round; the next one is trained all the same."""
        self._pruned = folder
        if self._run is not None and self._run.folder == folder:
            self._run.stop()

    def pruned(self, folder: Path) -> bool:
        """Whether that is why it ended."""
        return self._pruned == folder and not self.stopping

    def rounds(self, folder: Path, experiment: Experiment) -> Iterator[RoundRow]:
        """Those that are left: none if another process has finished it meanwhile."""
        if (folder / "config.toml").is_file() and RecordedRun.open(folder).finished:
            return
        self._run = run = self.begun_or_resumed(folder, experiment.seeded)
        if self.stopping:  # asked to before there was a run
            run.stop()
        try:
            yield from run.rounds()
        except TooFewClients as error:
            note_divergence(folder, error)
            raise
        finally:
            self._run = None

    def begun_or_resumed(self, folder: Path, experiment: Experiment) -> Run:
        dataset = self._dataset(experiment.data)
        if not (folder / "config.toml").is_file():
            return Run(experiment, dataset)
        with _known(experiment.method):
            return Run.resume(folder, dataset)

    def _dataset(self, settings: DataSettings) -> Dataset:
        """Keeps the last one: the next cell is likely to need it."""
        if self._loaded is None or self._loaded[0] != settings:
            self._loaded = (settings, load_dataset(settings))
        return self._loaded[1]


def note_divergence(folder: Path, error: TooFewClients) -> None:
    """Divergence is a result, the same every time; other losses are worth another attempt."""
    if NO_LONGER_FINITE in str(error):
        write_whole(folder / FAILED, printable(error))


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
