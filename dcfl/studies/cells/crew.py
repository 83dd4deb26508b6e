"""Who trains the cells: several processes, or this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dcfl.errors import Interrupted, TooFewClients
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.news import News, Show
from dcfl.studies.cells.parallel import Runner, Take, in_turn, useful_processes
from dcfl.studies.cells.this_process import ThisProcess
from dcfl.studies.cells.travel import can_travel


class Crew(Protocol):
    @property
    def stopping(self) -> bool: ...

    def stop(self) -> None:
        """Let every cell end its round and write a checkpoint."""

    def prune(self, cell_folder: CellFolder[Cell]) -> None:
        """Let this cell end its round and write a checkpoint; the others go on."""

    def news(self) -> Iterator[News]:
        """Train all cells; ends when all are done, or stopped."""


def crew_for(take: Take, processes: int) -> Crew:
    return Runner(take, processes) if processes > 1 else ThisProcess(take)


def processes_for(cells: Sequence[CellFolder[Cell]], parallel: int) -> int:
    """As many as were asked for (0: as there are cores for), but not more than cells; one if some
    of them can be trained here only."""
    if not cells or not all(map(leaves_this_process, cells)):
        return 1
    return min(parallel or useful_processes(cells[0].cell.experiment.engine.threads), len(cells))


def leaves_this_process(cell: CellFolder[Cell]) -> bool:
    """Flower brings processes of its own, which do not share a machine."""
    return cell.cell.experiment.engine.name == "embedded" and can_travel(cell.cell.experiment)


class MixedCrew:
    """First what other processes can train, then the rest here."""

    def __init__(self, cells: Sequence[CellFolder[Cell]], parallel: int = 0) -> None:
        able = [cell for cell in cells if leaves_this_process(cell)]
        processes = processes_for(able, parallel)
        here = [cell for cell in cells if processes == 1 or not leaves_this_process(cell)]
        self._crews: list[Crew] = []
        if processes > 1:
            self._crews.append(crew_for(in_turn(able), processes))
        if here:
            self._crews.append(crew_for(in_turn(here), 1))

    @property
    def stopping(self) -> bool:
        return any(crew.stopping for crew in self._crews)

    def stop(self) -> None:
        for crew in self._crews:
            crew.stop()

    def prune(self, cell_folder: CellFolder[Cell]) -> None:
        for crew in self._crews:
            crew.prune(cell_folder)

    def news(self) -> Iterator[News]:
        for crew in self._crews:
            yield from crew.news()


def followed(crew: Crew, show: Show, again: str = "the same command") -> Iterator[News]:
    """The news, each shown. Interrupted at the end, if cells were stopped before theirs; `again`
    continues them."""
    stopped = False
    for news in crew.news():
        show(news)
        stopped |= news.state == "stopped"
        yield news
    if stopped or crew.stopping:
        raise Interrupted(f"stopped; {again} continues from here")


def until_it_fails(crew: Crew, show: Show, again: str) -> Iterator[News]:
    """As `followed`. A failure other than lost clients, which are a cell's own affair, stops all
    cells and is raised: the others would fail too."""
    failed: Exception | None = None
    try:
        for news in followed(crew, show, again):
            if news.error is not None and not isinstance(news.error, TooFewClients):
                failed = failed or news.error
                crew.stop()
            yield news
    except Interrupted:
        if failed is None:
            raise
    if failed is not None:
        raise failed
