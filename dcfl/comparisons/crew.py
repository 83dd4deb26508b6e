"""Who trains the cells, from the beginning or from where they stopped: several processes, or this
one."""

from __future__ import annotations

import json
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Literal, NamedTuple

import torch

from dcfl import errors
from dcfl.comparisons.cells import FAILED, Cell, CellFolder
from dcfl.comparisons.groups import Outcome
from dcfl.config import as_tables, from_toml, to_toml
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.engines.placement import available_cores
from dcfl.errors import (
    NO_LONGER_FINITE,
    ConfigError,
    DCFLError,
    Interrupted,
    LeakWarning,
    TooFewClients,
    WorkersLost,
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
from dcfl.system.processes import python
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable


class SentFile(NamedTuple):
    """A file that a person has named to this process, and that another one is to run too."""

    defines: str  # "method" or "model"
    path: str
    sha256: str  # as it was when it ran here: it may have been edited since


def can_travel(experiment: Experiment) -> bool:
    """Not if its method is an object of a class that is in no file: of a notebook or script."""
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
    """A method that was given as an object is known by its name while its run is opened."""
    before = METHODS.get(method.name)
    METHODS[method.name] = type(method)
    try:
        yield
    finally:
        if before is None:
            del METHODS[method.name]
        else:
            METHODS[method.name] = before


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
    processes = processes_for(cells, parallel)
    return Runner(cells, processes) if processes > 1 else ThisProcess(cells)


def processes_for(cells: Sequence[CellFolder[Cell]], parallel: int) -> int:
    """As many as asked for (0: as there are cores for), but not more than cells; one if some of
    them can be trained here only."""
    if parallel < 0:
        raise ConfigError(f"parallel must be 0 or more runs at the same time, not {parallel}")
    if not cells or not _can_leave(cells):
        return 1
    return min(parallel or useful_processes(cells[0].cell.experiment.engine.threads), len(cells))


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
