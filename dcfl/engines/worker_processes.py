"""The worker processes of a pool: their life, and how the pool forks, replaces and ends them.

They are forked, so they start at once and share the data, the code and the untouched memory of this
process; nothing is pickled. Orders and answers are small JSON messages; tensors are in shared
memory.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from mmap import mmap
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

from dcfl.client import frozen
from dcfl.engines.memories import read_memory
from dcfl.engines.placement import Placement, conducting_bytes
from dcfl.engines.regions import ReplySlot, SharedRegions
from dcfl.engines.runner import ClientRunner
from dcfl.errors import CheckpointError, ClientFailure, ConfigError, WorkersLost
from dcfl.evaluation import score
from dcfl.messages import Broadcast, Tensors
from dcfl.methods.method import addressed
from dcfl.models.output import FeatureModel
from dcfl.system.memory import available_bytes, keep_freed_memory
from dcfl.system.processes import (
    first_to_be_killed,
    forking,
    leave_signals_to_the_parent,
    signals_held_back,
)
from dcfl.tensors import apart, together

Order = dict[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class WorkerSetup:
    runner: ClientRunner
    regions: SharedRegions
    threads: int
    lifeline: Connection  # nothing is ever sent; it breaks when the pool's process ends


class Worker:
    def __init__(self, runner: ClientRunner, regions: SharedRegions, device: torch.device) -> None:
        self._runner, self._regions = runner.on(device), regions
        self._sent: Order = {}
        self._broadcast = Broadcast(0, {}, {})
        self._evaluation_number = 0
        self._evaluated: FeatureModel = self._runner.model

    def answer(self, order: Order) -> Answer:
        if order["do"] == "score":
            return self._score(order["evaluation"], order["weights"], *order["part"])
        # Read once, and only when a task needs it: until that task is done, the pool leaves the
        # region alone.
        if self._sent != (sent := order["broadcast"]):
            tensors = self._regions.broadcast.get(sent["sent"])
            broadcast = Broadcast(sent["round"], *apart(tensors, "weights", "shared"))
            self._broadcast, self._sent = self._runner.received(broadcast), sent
        slot = self._regions.slots[order["slot"]]
        memory = order["memory"]
        try:
            memory_before = (
                read_memory(Path(memory), order["owner"])
                if isinstance(memory, str)
                else slot.memory.get(memory)
            )
        except CheckpointError as error:  # not this client's fault
            return {"lost": str(error)}
        return self._train(order["client"], slot, memory_before)

    def _train(self, client: int, slot: ReplySlot, memory_before: Tensors) -> Answer:
        try:
            sent = addressed(self._broadcast, self._runner.method, client)
            reply, memory_after = self._runner.train(sent, client, memory_before)
        except ConfigError as error:
            return {"refused": str(error)}
        if isinstance(reply, ClientFailure):
            return {"failed": reply.reason}
        return {
            "reply": slot.reply.put(
                together(weights=reply.weights, upload=reply.upload, memory=memory_after)
            ),
            "num_examples": reply.num_examples,
            "num_steps": reply.num_steps,
            "metrics": dict(reply.metrics),
        }

    def _score(self, evaluation: int, weights: int, start: int, end: int) -> Answer:
        if self._evaluation_number != evaluation:
            evaluated = self._runner.here(self._regions.evaluated.get(weights))
            self._evaluated = frozen(self._runner.model, evaluated)
            self._evaluation_number = evaluation
        return score(self._evaluated, self._runner.data.dataset, start, end)._asdict()


def work(
    setup: WorkerSetup,
    device: torch.device,
    connection: Connection,
    busy: mmap,
    parent_ends: list[Connection],
) -> None:
    """`busy` tells the pool whether a worker that died had begun its first task. `parent_ends` of
    pipes are inherited and must be closed: while a worker held one, other workers could not tell
    that the pool is gone."""
    for parent_end in parent_ends:
        parent_end.close()
    leave_signals_to_the_parent()
    first_to_be_killed()
    threading.Thread(target=_end_with_the_pool, args=(setup.lifeline,), daemon=True).start()
    gc.freeze()  # memory inherited from the pool stays shared as long as nobody writes to it
    keep_freed_memory()
    torch.set_num_threads(setup.threads)
    connection.send_bytes(b"ready")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    worker = Worker(setup.runner, setup.regions, device)
    while True:
        try:
            order = json.loads(connection.recv_bytes())
            busy[0] = True
            answer = worker.answer(order)
            busy[0] = False
            connection.send_bytes(json.dumps(answer).encode())
        except (EOFError, ConnectionError):  # the pool has gone
            return


def _end_with_the_pool(lifeline: Connection) -> None:
    """Exit when the pool has gone, even in the middle of a client."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(0)


ADVANCE_SECONDS = 0.06  # of work that wait at a worker
START_SECONDS = 120  # until a forked process must be ready


@dataclass(eq=False)
class ClientTask:
    client: int
    position: int  # in the cohort
    images: int
    order: Order = field(default_factory=dict)  # made when a worker gets the task


@dataclass(eq=False)
class ScoreTask:
    part: int
    order: Order
    attempts: int = 0  # that ended with the death of a worker


PoolTask = ClientTask | ScoreTask


class TaskQueue:
    """The tasks that no worker has yet: clients first, the longest first, then test images.

    Short clients are given out several at a time, so that no worker idles while its answer and the
    next order travel.
    """

    def __init__(self) -> None:
        self._clients: list[ClientTask] = []
        self._parts: deque[ScoreTask] = deque()
        self._seconds_per_image = inf  # of training, until a client has answered

    def begin_round(self, clients: Iterable[ClientTask]) -> None:
        self._clients = sorted(clients, key=lambda task: -task.images)

    def end_round(self) -> list[ClientTask]:
        """The clients that nobody has begun."""
        clients, self._clients = self._clients, []
        return clients

    def begin_evaluation(self, parts: Iterable[ScoreTask]) -> None:
        self._parts = deque(parts)

    def put_back(self, tasks: Sequence[PoolTask]) -> None:
        """Tasks of a worker that has died before it began them."""
        self._clients[:0] = [task for task in tasks if isinstance(task, ClientTask)]
        self._parts.extend(task for task in tasks if isinstance(task, ScoreTask))

    def take(self, before: int) -> PoolTask | None:
        """The next task; among the clients only those up to a position in the cohort."""
        client = next((task for task in self._clients if task.position < before), None)
        if client is not None:
            self._clients.remove(client)
            return client
        return self._parts.popleft() if self._parts else None

    def learn_pace(self, task: ClientTask, seconds: float) -> None:
        self._seconds_per_image = seconds / max(task.images, 1)

    def seconds_of(self, tasks: Iterable[PoolTask]) -> float:
        """An estimate; a task of unknown length counts as a long one."""
        known = self._seconds_per_image < inf
        return sum(
            task.images * self._seconds_per_image
            if known and isinstance(task, ClientTask)
            else ADVANCE_SECONDS
            for task in tasks
        )

    def enough(self, tasks: Sequence[PoolTask], workers: int) -> bool:
        """Whether a worker with these tasks needs no more. The fewer clients are left, the fewer
        wait at a worker, so that the last ones go to whoever is free."""
        share = len(self._clients) / workers
        return self.seconds_of(tasks) >= ADVANCE_SECONDS or len(tasks) >= share


MAX_IDLE_DEATHS = 3  # per worker, without an answer in between
# This process's ends of the pipes of all pools. A worker that kept one open would keep the workers
# of another pool alive after this process has died.
PARENT_ENDS: set[Connection] = set()


@dataclass(eq=False)
class WorkerHandle:
    device: torch.device
    process: BaseProcess
    connection: Connection
    busy: mmap  # one byte that the worker sets while it is at a task
    tasks: deque[PoolTask] = field(default_factory=deque)  # it is at the first, the others wait

    @property
    def client_tasks(self) -> list[ClientTask]:
        return [task for task in self.tasks if isinstance(task, ClientTask)]

    def wait_until_ready(self) -> None:
        """Until it is the first to be killed, should memory run out. One that hangs is killed."""
        with suppress(EOFError, OSError):  # it died, which the pool will notice
            if self.connection.poll(START_SECONDS):
                self.connection.recv_bytes()
            else:
                self.process.kill()

    def give(self, task: PoolTask) -> None:
        self.tasks.append(task)
        with suppress(BrokenPipeError, ConnectionResetError):  # it died, which the pool will notice
            self.connection.send_bytes(json.dumps(task.order).encode())

    def answers(self) -> tuple[list[Answer], bool]:
        arrived: list[Answer] = []
        try:
            while self.connection.poll():
                arrived.append(json.loads(self.connection.recv_bytes()))
        except (EOFError, OSError):  # perhaps in the middle of a message
            return arrived, False
        return arrived, True


class WorkerProcesses:
    """One per device of the placement as long as there is memory, each with so many `threads`."""

    def __init__(
        self,
        runner: ClientRunner,
        regions: SharedRegions,
        placement: Placement,
        threads: int,
    ) -> None:
        self._lifeline, workers_end = multiprocessing.Pipe()
        PARENT_ENDS.add(self._lifeline)
        self._setup = WorkerSetup(runner, regions, threads, workers_end)
        self.idle_deaths = 0  # since the last answer
        self.handles: list[WorkerHandle] = []
        # At exit Python would send its daemons a SIGTERM, which they ignore, and wait for them.
        self._at_exit = Finalize(None, self.close, exitpriority=1)
        try:
            self._start_all(placement)
        except BaseException:
            self.close()
            raise

    def _start_all(self, placement: Placement) -> None:
        """One by one against what is free; results do not depend on their number."""
        need, took = placement.worker_bytes, 0
        own = conducting_bytes(self._setup.runner.model)
        for device in placement.devices:
            free = available_bytes()
            count = len(self.handles)
            if count and need and free < took + own + (count + 1) * need:  # none has begun to train
                warnings.warn(
                    f"memory for {count} of {len(placement.devices)} worker processes: a client "
                    f"takes about {need / 1e9:.1f} GB",
                    stacklevel=2,
                )
                return
            self.handles.append(self._start(device))
            took = max(took, free - available_bytes())

    def ready(self, end: float = inf) -> list[WorkerHandle]:
        """Wait, until `end` at the latest, for workers to answer or to die."""
        seconds = None if end == inf else max(0.0, end - time.monotonic())
        by_connection = {worker.connection: worker for worker in self.handles}
        return [
            by_connection[connection]  # type: ignore[index]
            for connection in wait(list(by_connection), seconds)
        ]

    def replace(self, worker: WorkerHandle, killed: bool = False) -> str:
        """Start another in place of one that has died or was `killed` here; how it died."""
        _close(worker.connection)
        worker.process.join(5)  # it is about to end, or hangs while it does
        worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode or 0
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self.idle_deaths += not killed and not worker.busy[0]
        if self.idle_deaths > MAX_IDLE_DEATHS * len(self.handles):
            raise WorkersLost(f"worker processes do not stay alive: the last one {reason}")
        self.handles[self.handles.index(worker)] = self._start(worker.device)
        return reason

    def _start(self, device: torch.device) -> WorkerHandle:
        connection, workers_end = multiprocessing.Pipe()
        busy = mmap(-1, 1)
        PARENT_ENDS.add(connection)
        parent_ends = [parent_end for parent_end in PARENT_ENDS if not parent_end.closed]
        process = multiprocessing.get_context("fork").Process(
            target=work,
            args=(self._setup, device, workers_end, busy, parent_ends),
            daemon=True,
            name="dcfl-worker",
        )
        try:
            _start(process)
        except WorkersLost:
            _close(connection)
            raise
        finally:
            workers_end.close()
        worker = WorkerHandle(device, process, connection, busy)
        worker.wait_until_ready()
        return worker

    def close(self) -> None:
        self._at_exit.cancel()
        for worker in self.handles:
            worker.process.kill()  # a worker has nothing to tidy up
        for worker in self.handles:
            worker.process.join()
            _close(worker.connection)
        _close(self._lifeline)
        self._setup.lifeline.close()


def _close(parent_end: Connection) -> None:
    PARENT_ENDS.discard(parent_end)
    parent_end.close()


def _start(process: BaseProcess) -> None:
    errors: list[OSError] = []

    def start() -> None:
        try:
            with signals_held_back():  # the worker ignores them once it runs, and gets none before
                process.start()
        except OSError as error:
            errors.append(error)

    forking(start)
    if errors:
        raise WorkersLost(
            f"a worker process cannot be started ({errors[0].strerror}): use fewer engine.workers"
        )
