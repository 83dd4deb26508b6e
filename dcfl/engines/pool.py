"""Clients in several processes of this machine, with the same bits as in one.

Workers are forked, so they start at once and share the data, the code and the untouched memory of
this process; nothing is pickled. Each trains one client at a time with a fixed number of threads.
The longest clients start first; replies are handed on in client order, so that the sums have the
same bits whatever the order of completion. The slots that replies wait in are limited, so memory
does not grow with the cohort: with a large model, a client whose turn is far away starts later.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from mmap import mmap
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch

from dcfl.engines.allocator import give_freed_memory_back
from dcfl.engines.memories import Memories
from dcfl.engines.runner import ClientRunner
from dcfl.engines.worker import Desk, Message, work
from dcfl.errors import (
    CheckpointError,
    ClientFailure,
    ClientLate,
    ClientLost,
    ConfigError,
    WorkersLost,
)
from dcfl.evaluation import Evaluation, Score, evaluation, scored_parts
from dcfl.messages import Broadcast, ClientUpdate, Tensors, num_bytes
from dcfl.system.processes import signals_held_back
from dcfl.tensors import apart, together

# Of replies that wait for their turn: so much memory, two for each worker in any case, and not more
# than 32, because each holds up to four file descriptors.
SLOTS_BYTES, SLOTS = 64 * 2**20, 32
ADVANCE = 0.06  # seconds of work that wait at a worker
# This process's ends of all pipes of all pools. A worker that held on to one would keep the workers
# of another pool alive after this process has died.
NEAR_ENDS: set[Connection] = set()
TRIES = 3  # of scoring a part of the test images: a worker that dies at it is not a client's fault


@dataclass(eq=False)
class Seat:
    """A worker as the pool sees it."""

    device: torch.device
    process: BaseProcess
    orders: Connection
    busy: mmap  # one byte that the worker sets while it is at a task
    doing: deque[Task] = field(default_factory=deque)  # the first is under way, the others wait


@dataclass(eq=False)
class Task:
    order: Message
    client: int = -1  # none: a part of an evaluation
    place: int = -1  # in the cohort, or among the parts
    images: int = 0  # of the client
    tries: int = 0


class Pool:
    """An engine. `devices` has one entry per worker."""

    overlaps = True  # an evaluation goes on while the next round runs
    dropped = 0
    own_accuracies = None

    def __init__(
        self,
        runner: ClientRunner,
        memories: Memories,
        devices: Sequence[torch.device],
        threads: int,
        deadline: float = 0.0,
    ) -> None:
        self._deadline = deadline
        self._runner, self.memories, self._threads = runner, memories, threads
        self._desk = Desk(_slots(num_bytes(runner.model.state_dict()), len(devices)))
        self._lifeline, self._held_by_workers = multiprocessing.Pipe()
        NEAR_ENDS.add(self._lifeline)
        self._broadcast: Message = {"number": 0}
        self._clients: list[Task] = []  # of the round, not yet given to a worker; the longest first
        self._replies: dict[int, tuple[Task, Message]] = {}  # by place in the cohort
        self._parts: deque[Task] = deque()  # of the evaluation, not yet given to a worker
        self._scores: dict[int, Score] = {}
        self._evaluations = 0
        self._pace = inf  # seconds that an image takes, as far as is known
        self._idle_deaths = 0
        self._seats: list[Seat] = []
        # Python would send its daemons a SIGTERM, which they leave to it, and wait for them.
        self._at_exit = Finalize(None, self.close, exitpriority=1)
        try:
            for device in devices:
                self._seats.append(self._hire(device))
        except BaseException:
            self.close()
            raise

    # Clients

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Replies in cohort order. A reply's weights lie in shared memory, which is used again as
        soon as the next reply is asked for."""
        self._begin(broadcast)
        sizes = self._runner.data.partition.sizes
        self._clients = [
            Task({}, client, place, int(sizes[client])) for place, client in enumerate(cohort)
        ]
        self._clients.sort(key=lambda task: -task.images)
        end = time.monotonic() + (self._deadline or inf)
        for place in range(len(cohort)):
            while place not in self._replies:
                if time.monotonic() >= end:
                    self._expire()
                    continue
                self._assign(place)
                self._nap()
                self._hear(end)
            task, answer = self._replies.pop(place)
            yield self._reply(task, answer)

    def _begin(self, broadcast: Broadcast) -> None:
        """Put the broadcast where workers find it, once nobody trains on the last one any more: a
        round that was given up may have left such a client behind."""
        self._clients = []
        while any(task.client >= 0 for seat in self._seats for task in seat.doing):
            self._hear()
        self._replies.clear()
        sent = together(weights=broadcast.weights, shared=broadcast.shared)
        self._broadcast = {
            "number": self._broadcast["number"] + 1,
            "round": broadcast.round,
            "sent": self._desk.sent.put(sent),
        }
        give_freed_memory_back()

    def _assign(self, next_place: int) -> None:
        """Give every worker enough to do: clients, and parts of an evaluation where none is left.

        Only clients up to a slot's round trip ahead of the next one in turn may start.
        """
        limit = next_place + len(self._desk.slots)
        while True:
            seat = min(self._seats, key=self._ahead)
            if seat.doing and self._enough(seat):
                return
            task = next((task for task in self._clients if task.place < limit), None)
            if task is not None:
                self._clients.remove(task)
                self._prepare(task)
            elif self._parts:
                task = self._parts.popleft()
            else:
                return
            seat.doing.append(task)
            _send(seat, task.order)

    def _ahead(self, seat: Seat) -> float:
        """How many seconds of work a worker has, by guess; a task of unknown length is long."""
        known = self._pace < inf
        return sum(
            task.images * self._pace if known and task.client >= 0 else ADVANCE
            for task in seat.doing
        )

    def _enough(self, seat: Seat) -> bool:
        """Short clients are given out several at a time, so that nobody waits for the way here and
        back; the fewer are left, the fewer at a time, and the last ones to whoever is free."""
        share = len(self._clients) / len(self._seats)
        return self._ahead(seat) >= ADVANCE or len(seat.doing) >= share

    def _nap(self) -> None:
        """Let answers of short clients come in: taken together they cost this process, and with it
        the workers on the same cores, less than one by one."""
        if min(len(seat.doing) for seat in self._seats) > 2:
            time.sleep(min(map(self._ahead, self._seats)) / 3)

    def _prepare(self, task: Task) -> None:
        slot = task.place % len(self._desk.slots)
        held, version = self.memories.held(task.client), self.memories.version(task.client)
        memory: int | str = (
            str(self.memories.path(version))
            if held is None
            else self._desk.slots[slot].memory.put(held)
        )
        task.order = {
            "do": "train",
            "broadcast": self._broadcast,
            "client": task.client,
            "slot": slot,
            "memory": memory,
            "owner": version.owner,
        }

    def _reply(self, task: Task, answer: Message) -> ClientUpdate | ClientFailure:
        if "late" in answer:
            return ClientLate(task.client, answer["late"])
        if "died" in answer:
            return ClientLost(task.client, answer["died"])
        if "failed" in answer:
            return ClientFailure(task.client, answer["failed"])
        reply = self._desk.slots[task.order["slot"]].reply.get(answer["reply"])
        weights, upload, kept = apart(reply, "weights", "upload", "kept")
        if kept:
            self.memories.stage(task.client, self._broadcast["round"], _copies(kept))
        return ClientUpdate(
            client=task.client,
            weights=weights,
            upload=_copies(upload),  # the server keeps it for the merge
            num_examples=answer["num_examples"],
            num_steps=answer["num_steps"],
            metrics=answer["metrics"],
        )

    def remarks(self) -> dict[str, Any]:
        return {}

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)

    # Evaluation

    def begin_evaluation(self, weights: Tensors) -> None:
        """Score the test images in whatever time the clients of the next round leave free."""
        self._evaluations += 1
        self._parts.clear()
        self._scores.clear()
        judged = self._desk.judged.put(weights)
        for place, part in enumerate(scored_parts(self._runner.data.dataset)):
            order = {"evaluation": self._evaluations, "weights": judged, "part": part}
            self._parts.append(Task({"do": "score", **order}, place=place))

    def end_evaluation(self) -> Evaluation:
        parts = len(scored_parts(self._runner.data.dataset))
        while len(self._scores) < parts:
            self._assign(0)
            self._hear()
        return evaluation(
            [self._scores[place] for place in range(parts)], self._runner.data.dataset
        )

    # Workers

    def _hear(self, end: float = inf) -> None:
        """Wait for workers to answer or to die, until `end` at the latest."""
        left = None if end == inf else max(0.0, end - time.monotonic())
        for connection in wait([seat.orders for seat in self._seats], left):
            seat = next(seat for seat in self._seats if seat.orders is connection)
            answers, dead = [], False
            try:
                while seat.orders.poll():
                    answers.append(json.loads(seat.orders.recv_bytes()))
            except (EOFError, OSError):  # also in the middle of a message
                dead = True
            for answer in answers:
                self._note(seat.doing.popleft(), answer)
            if dead:
                self._replace(seat)

    def _note(self, task: Task, answer: Message) -> None:
        if "refused" in answer:
            raise ConfigError(answer["refused"])
        if "lost" in answer:
            raise CheckpointError(answer["lost"])
        self._idle_deaths = 0
        if task.client < 0:
            self._scores[task.place] = Score(**answer)
            return
        self._replies[task.place] = task, answer
        if "metrics" in answer:
            self._pace = answer["metrics"]["seconds"] / max(task.images, 1)

    def _replace(self, seat: Seat, counts: bool = True) -> None:
        """A worker died: what it was doing has failed, what waited is done by others."""
        _close(seat.orders)
        _end(seat.process)
        reason = _death(seat.process.exitcode)
        self._idle_deaths += counts and not seat.busy[0]
        if self._idle_deaths > TRIES * len(self._seats):
            raise WorkersLost(f"worker processes do not stay alive: the last one {reason}")
        self._seats[self._seats.index(seat)] = self._hire(seat.device)
        waiting = list(seat.doing)
        if seat.busy[0] and waiting:
            self._charge(waiting.pop(0), reason)
        self._clients[:0] = [task for task in waiting if task.client >= 0]
        self._parts.extend(task for task in waiting if task.client < 0)

    def _expire(self) -> None:
        """The round's time is over: who has not answered is late, and its worker is replaced."""
        late = self._clients
        self._clients = []
        for seat in list(self._seats):
            own = [task for task in seat.doing if task.client >= 0]
            if own:
                late = late + own
                seat.doing = deque(task for task in seat.doing if task.client < 0)
                seat.busy[0] = False  # nobody is charged for this death
                seat.process.kill()
                self._replace(seat, counts=False)
        for task in late:
            self._note(task, {"late": f"no reply within {self._deadline:g} s"})

    def _charge(self, broken: Task, reason: str) -> None:
        """A client has failed; a part of an evaluation is tried again."""
        if broken.client >= 0:
            self._note(broken, {"died": f"its worker process {reason}"})
        elif broken.tries + 1 < TRIES:
            broken.tries += 1
            self._parts.append(broken)
        else:
            raise WorkersLost(
                f"a worker process {reason} each time it evaluated the model: "
                f"if memory is short, use fewer engine.workers"
            )

    def _hire(self, device: torch.device) -> Seat:
        orders, far_end = multiprocessing.Pipe()
        busy = mmap(-1, 1)
        NEAR_ENDS.add(orders)
        process = multiprocessing.get_context("fork").Process(
            target=work,
            args=(
                self._runner,
                self._desk,
                device,
                self._threads,
                far_end,
                busy,
                self._held_by_workers,
                [connection for connection in NEAR_ENDS if not connection.closed],
            ),
            daemon=True,
            name="dcfl-worker",
        )
        try:
            _start_in_a_thread(process)
        except WorkersLost:
            _close(orders)
            raise
        finally:
            far_end.close()
        return Seat(device, process, orders, busy)

    def close(self) -> None:
        self._at_exit.cancel()
        for seat in self._seats:
            seat.process.kill()  # nothing of a worker's is worth waiting for
        for seat in self._seats:
            seat.process.join()
            _close(seat.orders)
        _close(self._lifeline)
        self._held_by_workers.close()
        self._desk.close()


@contextmanager
def worker_pool(
    runner: ClientRunner,
    memories: Memories,
    devices: Sequence[torch.device],
    threads: int,
    deadline: float = 0.0,
) -> Iterator[Pool]:
    pool = Pool(runner, memories, devices, threads, deadline)
    try:
        yield pool
    finally:
        pool.close()


def _slots(update_bytes: int, workers: int) -> int:
    return max(2 * workers, min(SLOTS_BYTES // max(update_bytes, 1), SLOTS))


def _send(seat: Seat, order: Message) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it has died, which will be heard
        seat.orders.send_bytes(json.dumps(order).encode())


def _close(near_end: Connection) -> None:
    NEAR_ENDS.discard(near_end)
    near_end.close()


def _copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _start_in_a_thread(process: BaseProcess) -> None:
    """A forked process inherits the thread that forks it, with OpenMP's idea of the threads that it
    leads; those do not exist in the new process, and waiting for them would take for ever. A new
    thread leads none."""

    failed: list[OSError] = []

    def start() -> None:
        try:
            # Signals are ignored as soon as it runs, and until then they are not delivered.
            with signals_held_back(), warnings.catch_warnings():
                # Newer Pythons warn of forking with threads about. A worker uses nothing of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        except OSError as error:
            failed.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    if failed:
        raise WorkersLost(
            f"a worker process cannot be started ({failed[0].strerror}): use fewer engine.workers"
        )


def _end(process: BaseProcess) -> None:
    """Its connection has broken: it ends, or hangs in ending."""
    process.join(5)
    process.kill()
    process.join()


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was killed by signal {-exitcode}"
    return f"ended with exit code {exitcode}"
