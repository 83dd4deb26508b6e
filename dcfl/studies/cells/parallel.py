"""Cells in parallel, in processes that each take the next cell when they have finished one.

A cell that is stopped or killed continues from its checkpoint the next time.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import IO, Any, Literal

import torch

from dcfl.config import as_tables, to_toml
from dcfl.engines.placement import available_cores
from dcfl.experiment import Experiment
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.system.processes import python

State = Literal["round", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class News:
    """What has happened to a cell."""

    cell_folder: CellFolder[Cell]
    state: State
    round: int = 0
    why: str = ""


def useful_processes(threads: int) -> int:
    """One per GPU, or as many as there are cores for."""
    return torch.cuda.device_count() or max(1, available_cores() // threads)


class Runner:
    def __init__(self, cells: Sequence[CellFolder[Cell]], processes: int) -> None:
        self._waiting = deque(cells)
        self._news: SimpleQueue[News | None] = SimpleQueue()
        self.stopping = False
        self._processes: set[subprocess.Popen[str]] = set()
        count = min(processes, len(cells))
        # With a cell in each process, a cell needs no processes of its own.
        self._alone = count > 1
        self._threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(count)
        ]

    def stop(self) -> None:
        """Let every cell end its round and write a checkpoint."""
        self.stopping = True
        for process in list(self._processes):
            process.terminate()

    def news(self) -> Iterator[News]:
        """Train all cells; ends when all are done, or stopped."""
        for thread in self._threads:
            thread.start()
        try:
            working = len(self._threads)
            while working:
                news = self._news.get()
                if news is None:
                    working -= 1
                else:
                    yield news
        finally:
            self._waiting.clear()
            for process in list(self._processes):
                process.kill()  # its checkpoints are on the disk

    def _work(self, number: int) -> None:
        process: subprocess.Popen[str] | None = None
        try:
            while self._waiting and not self.stopping:
                cell_folder = self._waiting.popleft()
                try:
                    if process is None or process.poll() is not None:
                        process = self._started()
                    self._news.put(self._trained(process, cell_folder, number))
                except OSError as error:  # no process could be started
                    self._news.put(News(cell_folder, "failed", why=str(error)))
        except IndexError:  # another thread took the last one
            pass
        finally:
            if process is not None:
                self._end(process)
            self._news.put(None)

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
        config = to_toml(as_tables(self._with_its_share(cell_folder.experiment, number)))
        job = json.dumps({"folder": str(cell_folder.path), "config": config})
        answer: dict[str, Any] = {}
        with suppress(BrokenPipeError):  # it is dead
            pipe(process.stdin).write(job + "\n")
            pipe(process.stdin).flush()
            for line in pipe(process.stdout):
                answer = _answer(line)
                if "state" in answer:
                    break
                if "round" in answer:
                    self._news.put(News(cell_folder, "round", answer["round"]))
        state = answer.get("state")
        if state in ("finished", "failed"):
            return News(cell_folder, state, why=answer.get("why", ""))
        process.wait()  # it takes no more cells
        self._processes.discard(process)
        if self.stopping or state == "stopped":
            return News(cell_folder, "stopped")
        return News(cell_folder, "failed", why=f"its process ended with {process.returncode}")

    def _with_its_share(self, experiment: Experiment, number: int) -> Experiment:
        """With its share of the GPUs and cores."""
        if not self._alone:
            return experiment
        engine = replace(experiment.engine, workers=1)
        if engine.device in ("auto", "cuda") and (gpus := torch.cuda.device_count()):
            engine = replace(engine, device=f"cuda:{number % gpus}")
        return replace(experiment, engine=engine)


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
