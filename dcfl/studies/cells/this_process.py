"""Cells in this process, one after the other: the same news as from several processes."""

from __future__ import annotations

from collections.abc import Iterator

from dcfl.errors import DCFLError, Interrupted
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.news import AfterRound, News
from dcfl.studies.cells.parallel import Take
from dcfl.studies.cells.trainer import Trainer


class ThisProcess:
    def __init__(self, take: Take) -> None:
        self._take = take
        self._trainer = Trainer()

    @property
    def stopping(self) -> bool:
        return self._trainer.stopping

    def stop(self) -> None:
        self._trainer.stop()

    def prune(self, cell_folder: CellFolder[Cell]) -> None:
        self._trainer.prune(cell_folder.path)

    def news(self) -> Iterator[News]:
        """Errors that are not dcfl's own are raised."""
        while not self.stopping and (cell_folder := self._take()) is not None:
            try:
                for row in self._trainer.rounds(cell_folder.path, cell_folder.experiment):
                    yield News(cell_folder, "round", AfterRound.of(row))
            except Interrupted:
                pruned = self._trainer.pruned(cell_folder.path)
                yield News(cell_folder, "pruned" if pruned else "stopped")
            except DCFLError as error:
                yield News(cell_folder, "failed", why=str(error), kind=type(error).__name__)
            else:
                yield News(cell_folder, "finished")
