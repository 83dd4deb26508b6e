"""Cells in parallel, in processes that each get another cell when they have finished one.

A cell that is stopped or killed continues from its checkpoint the next time.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import IO, Any

import torch

from dcfl.engines.placement import available_cores
from dcfl.errors import WorkersLost
from dcfl.experiment import Experiment
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.news import AfterRound, News
from dcfl.studies.cells.travel import as_text, files_to_send
from dcfl.system.processes import python

PATIENCE = 5.0  # seconds for what a killed process has started to let go of its output
# The cell to train next. None: none for now; asked again when one has ended.
Take = Callable[[], CellFolder[Cell] | None]


def useful_processes(threads: int) -> int:
    """One per GPU, or as many as there are cores for."""
    return torch.cuda.device_count() or max(1, available_cores() // threads)


def in_turn(cells: Sequence[CellFolder[Cell]]) -> Take:
    waiting = iter(cells)
    return lambda: next(waiting, None)


class Runner:
    def __init__(self, take: Take, processes: int) -> None:
        self._take = take
        self._heard: SimpleQueue[tuple[int, News]] = SimpleQueue()
        self.stopping = False
        self._processes: set[subprocess.Popen[str]] = set()
        self._training: dict[str, subprocess.Popen[str]] = {}  # by the name of the cell
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

    def prune(self, cell_folder: CellFolder[Cell]) -> None:
        """Let this cell end its round and write a checkpoint; the others go on."""
        process = self._training.get(cell_folder.name)
        if process is not None:
            _send(process, {"prune": str(cell_folder.path)})

    def news(self) -> Iterator[News]:
        """Train all cells; ends when all are done, or stopped. Cells are taken here, after the
        news that made room for them, so that what was learnt can decide which is next."""
        for thread in self._threads:
            thread.start()
        idle, busy = list(range(len(self._threads))), 0
        try:
            while True:
                while idle and not self.stopping and (cell_folder := self._take()) is not None:
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
                news = News(cell_folder, "failed", why=str(error), kind=WorkersLost.__name__)
            except Exception as error:  # whoever waits for news of this cell must hear of it
                news = News(cell_folder, "failed", why=f"{type(error).__name__}: {error}")
            self._heard.put((number, news))
        if process is not None:
            self._end(process)

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            python("-m", "dcfl.studies.cells.cell_worker"),
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
        self._training[cell_folder.name] = process
        experiment = self._with_its_share(cell_folder.experiment, number)
        job = {
            "folder": str(cell_folder.path),
            "config": as_text(experiment),
            "own": files_to_send(experiment),
        }
        answer: dict[str, Any] = {}
        if _send(process, job):
            for line in pipe(process.stdout):
                answer = _answer(line)
                if "state" in answer:
                    break
                if "round" in answer:
                    after = AfterRound.from_answer(answer)
                    self._heard.put((number, News(cell_folder, "round", after)))
        del self._training[cell_folder.name]
        state = answer.get("state")
        if state in ("finished", "pruned", "failed"):
            why, kind = answer.get("why", ""), answer.get("kind", "")
            return News(cell_folder, state, why=why, kind=kind)
        process.wait()  # it takes no more cells
        self._processes.discard(process)
        if self.stopping or state == "stopped":
            return News(cell_folder, "stopped")
        why = f"its process ended with {process.returncode}"
        return News(cell_folder, "failed", why=why, kind=WorkersLost.__name__)

    def _with_its_share(self, experiment: Experiment, number: int) -> Experiment:
        """With its share of the GPUs and cores."""
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
    """Empty for lines that a library printed on the worker's output."""
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
