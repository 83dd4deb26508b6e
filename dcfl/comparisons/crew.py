"""Who trains the cells: several processes, or this one."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import IO, Any

import torch

from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.comparisons.trainer import (
    News,
    Show,
    Trainer,
    as_text,
    can_travel,
    files_to_send,
    scored_on,
)
from dcfl.engines.placement import available_cores
from dcfl.errors import ConfigError, Interrupted, TooFewClients, WorkersLost
from dcfl.experiment import Experiment
from dcfl.runs.rows import RoundRow
from dcfl.system.processes import python

PATIENCE = 5.0  # seconds for what a killed process has started to let go of its output
Cells = Iterable[CellFolder[Cell]]


def useful_processes(threads: int) -> int:
    """One per GPU, or as many as there are cores for."""
    return torch.cuda.device_count() or max(1, available_cores() // threads)


class Runner:
    def __init__(self, cells: Cells, processes: int) -> None:
        self._cells = iter(cells)
        self._heard: SimpleQueue[tuple[int, News]] = SimpleQueue()
        self.stopping = False
        self._processes: set[subprocess.Popen[str]] = set()
        self._warns: dict[tuple[str, ...], CellFolder[Cell]] = {}  # of what is scored: the first
        # With a cell in each process, a cell needs no processes of its own.
        self._alone = processes > 1
        self._orders: list[SimpleQueue[CellFolder[Cell] | None]] = [
            SimpleQueue() for _ in range(processes)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(processes)
        ]

    def stop(self) -> None:
        """Let every cell end its round and write a checkpoint."""
        self.stopping = True
        for process in list(self._processes):
            process.terminate()

    def news(self) -> Iterator[News]:
        """Train all cells; ends when all are done, or stopped. Cells are taken here, after the
        news that made room for them, so that what was learnt can decide which is next."""
        for thread in self._threads:
            thread.start()
        idle, busy = list(range(len(self._threads))), 0
        try:
            while True:
                while idle and not self.stopping and (cell_folder := next(self._cells, None)):
                    self._orders[idle.pop(0)].put(cell_folder)
                    busy += 1
                if not busy:
                    break
                number, news = self._heard.get()
                if news.state != "round":
                    idle.append(number)
                    busy -= 1
                yield news
            self._dismiss(None)
        except BaseException:  # nobody listens any more
            self.stopping = True
            raise
        finally:
            for process in list(self._processes):
                process.kill()  # its checkpoints are on the disk
            self._dismiss(PATIENCE)

    def _dismiss(self, seconds: float | None) -> None:
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join(seconds)

    def _work(self, number: int) -> None:
        process: subprocess.Popen[str] | None = None
        while (cell_folder := self._orders[number].get()) is not None:
            try:
                if process is None or process.poll() is not None:
                    process = self._started()
                news = self._trained(process, cell_folder, number)
            except OSError as error:  # no process could be started
                news = News.failure(cell_folder, WorkersLost(str(error)))
            except Exception as error:  # whoever waits for news of this cell must hear of it
                news = News.failure(cell_folder, error)
            self._heard.put((number, news))
        if process is not None:
            self._end(process)

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            python("-m", "dcfl.comparisons.cell_worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        self._processes.add(process)
        if self.stopping:
            process.terminate()
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        with suppress(BrokenPipeError):  # it died with a job half written
            pipe(process.stdin).close()
        process.wait()
        self._processes.discard(process)

    def _trained(
        self, process: subprocess.Popen[str], cell_folder: CellFolder[Cell], number: int
    ) -> News:
        experiment = self._with_its_share(cell_folder.experiment, number)
        job = {
            "folder": str(cell_folder.path),
            "config": as_text(experiment),
            "own": files_to_send(experiment),
            "warned": self._warns.setdefault(scored_on(experiment), cell_folder) != cell_folder,
        }
        answer: dict[str, Any] = {}
        if _send(process, job):
            for line in pipe(process.stdout):
                answer = _answer(line)
                if "state" in answer:
                    break
                if "round" in answer:
                    row = RoundRow.from_json(answer, cell_folder.path)
                    self._heard.put((number, News(cell_folder, "round", row)))
        state = answer.get("state")
        if state in ("finished", "failed"):
            return News(cell_folder, state, why=answer["why"], kind=answer["kind"])
        process.wait()  # it takes no more cells
        self._processes.discard(process)
        if self.stopping or state == "stopped":
            return News(cell_folder, "stopped")
        lost = WorkersLost(f"its process ended with {process.returncode}")
        return News.failure(cell_folder, lost)

    def _with_its_share(self, experiment: Experiment, number: int) -> Experiment:
        if not self._alone:
            return experiment
        engine = replace(experiment.engine, workers=1)
        if engine.device in ("auto", "cuda") and (gpus := torch.cuda.device_count()):
            engine = replace(engine, device=f"cuda:{number % gpus}")
        return replace(experiment, engine=engine)


def _send(process: subprocess.Popen[str], message: dict[str, Any]) -> bool:
    """Whether it could be sent: not to a process that is dead."""
    with suppress(BrokenPipeError, ValueError):  # ValueError: the pipe is closed
        pipe(process.stdin).write(json.dumps(message) + "\n")
        pipe(process.stdin).flush()
        return True
    return False


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # opened with PIPE
    return stream


def _answer(line: str) -> dict[str, Any]:
    """What a worker says; empty for lines that a library printed on its output."""
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class ThisProcess(Trainer):
    def __init__(self, cells: Cells) -> None:
        super().__init__()
        self._cells = cells

    def news(self) -> Iterator[News]:
        """Errors that are not dcfl's own are raised."""
        for cell_folder in self._cells:
            if self.stopping:
                return
            yield from self.train(cell_folder)


def crew_for(cells: Sequence[CellFolder[Cell]], parallel: int) -> Crew:
    """As many processes as asked for (0: as there are cores for), but not more than cells; this one
    alone if some of them can be trained here only."""
    if parallel < 0:
        raise ConfigError(f"parallel must be 0 or more runs at the same time, not {parallel}")
    if not cells or not _can_leave(cells):
        return ThisProcess(cells)
    wanted = parallel or useful_processes(cells[0].cell.experiment.engine.threads)
    processes = min(wanted, len(cells))
    return Runner(cells, processes) if processes > 1 else ThisProcess(cells)


def _can_leave(cells: Sequence[CellFolder[Cell]]) -> bool:
    """Flower brings processes of its own, which do not share a machine. Of cells that differ in
    their seed alone, one is asked."""
    kinds: dict[tuple[object, str], Experiment] = {}
    for cell in cells:
        one = cell.cell.experiment
        one = replace(one, federation=replace(one.federation, seed=0))
        kinds[type(one.method), repr(one)] = one
    return all(one.engine.name == "embedded" and can_travel(one) for one in kinds.values())


Crew = Runner | ThisProcess
Guard = Callable[[Crew], AbstractContextManager[None]]  # surrounds training; may stop the crew


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
    """The news, as `followed` gives them. A failure other than lost clients, which are a cell's own
    affair, stops all cells and is raised: the others would fail too."""
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


def train(
    cells: Sequence[CellFolder[Cell]], parallel: int, show: Show, guard: Guard, again: str
) -> dict[str, str]:
    """Train what has not ended. Returns, by name, why runs have lost their clients."""
    crew = crew_for([cell for cell in cells if not cell.ended], parallel)
    with guard(crew):
        news = until_it_fails(crew, show, again)
        return {one.name: one.why for one in news if one.state == "failed"}
