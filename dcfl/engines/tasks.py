"""What the workers of a pool have to do, and which of it is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from dcfl.engines.worker import Order

ADVANCE_SECONDS = 0.06  # of work that wait at a worker


@dataclass(eq=False)
class ClientTask:
    client: int
    position: int  # in the cohort
    images: int
    order: Order = field(default_factory=dict)  # made when a worker gets the task


@dataclass(eq=False)
class ScoreTask:
    """A part of the test images."""

    part: int
    order: Order
    attempts: int = 0  # that ended with the death of a worker


PoolTask = ClientTask | ScoreTask


class Schedule:
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
