"""Clients in several processes of this machine, with the same bits as in one.

Each worker trains one client at a time with a fixed number of threads. The longest clients start
first; replies are handed on in client order, so that sums have the same bits whatever the order of
completion. The slots in which replies wait are limited, so memory does not grow with the cohort:
with a large model, a client whose turn is far away starts later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

from dcfl.engines.allocator import give_freed_memory_back
from dcfl.engines.client_orders import ClientOrders
from dcfl.engines.engine import OwnScores, Remarks, Session
from dcfl.engines.memories import Memories
from dcfl.engines.pool_evaluation import PoolEvaluation
from dcfl.engines.regions import SharedRegions, slot_count
from dcfl.engines.tasks import ClientTask, PoolTask, Schedule, ScoreTask
from dcfl.engines.worker import Answer
from dcfl.engines.worker_processes import WorkerHandle, WorkerProcesses
from dcfl.errors import (
    CheckpointError,
    ClientFailure,
    ConfigError,
    WorkersLost,
)
from dcfl.evaluation import Evaluation
from dcfl.messages import Broadcast, ClientUpdate, Tensors, num_bytes

MAX_SCORE_ATTEMPTS = 3  # a worker that dies while it evaluates is no client's fault


class Pool:
    """An Engine with a worker for each device of the session's placement."""

    overlaps = True
    dropped = 0
    own_accuracies = None

    def __init__(self, session: Session, memories: Memories) -> None:
        runner, devices = session.runner, session.placement.devices
        self._deadline = session.experiment.federation.deadline
        self._runner, self.memories = runner, memories
        model_bytes = num_bytes(runner.model.state_dict())
        self._regions = SharedRegions(slot_count(model_bytes, len(devices)))
        self._orders = ClientOrders(self._regions, memories)
        self._schedule = Schedule()
        self._answers: dict[int, tuple[ClientTask, Answer]] = {}  # by position in the cohort
        self._evaluation = PoolEvaluation(runner.data.dataset, self._regions.evaluated)
        threads = session.experiment.engine.threads
        try:
            self._workers = WorkerProcesses(runner, self._regions, devices, threads)
        except BaseException:
            self._regions.close()
            raise

    def close(self) -> None:
        self._workers.close()
        self._regions.close()

    # Clients

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Replies in cohort order. A reply is in shared memory, which is reused as soon as the next
        one is asked for."""
        self._begin_round(broadcast)
        sizes = self._runner.data.partition.sizes
        self._schedule.begin_round(
            ClientTask(client, position, int(sizes[client]))
            for position, client in enumerate(cohort)
        )
        end = time.monotonic() + (self._deadline or inf)
        for position in range(len(cohort)):
            while position not in self._answers:
                if time.monotonic() >= end:
                    self._expire()
                    continue
                self._assign(position)
                self._nap()
                self._listen(end)
            yield self._orders.reply(*self._answers.pop(position))

    def _begin_round(self, broadcast: Broadcast) -> None:
        """Wait until nobody trains on the last broadcast any more (a round that was given up may
        have left such a client behind), then replace it."""
        self._schedule.end_round()
        while any(worker.client_tasks for worker in self._workers.handles):
            self._listen()
        self._answers.clear()
        self._orders.begin_round(broadcast)
        give_freed_memory_back()

    def _assign(self, next_position: int) -> None:
        """Give every worker enough to do. A client may start only when its slot is free."""
        workers = self._workers.handles
        before = next_position + len(self._regions.slots)
        while True:
            worker = min(workers, key=lambda worker: self._schedule.seconds_of(worker.tasks))
            if worker.tasks and self._schedule.enough(worker.tasks, len(workers)):
                return
            task = self._schedule.take(before)
            if task is None:
                return
            if isinstance(task, ClientTask):
                task.order = self._orders.order(task)
            worker.give(task)

    def _nap(self) -> None:
        """Let answers of short clients come in: reading several together costs this process, and
        the workers on the same cores, less than one by one."""
        queues = [worker.tasks for worker in self._workers.handles]
        if min(map(len, queues)) > 2:
            time.sleep(min(map(self._schedule.seconds_of, queues)) / 3)

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)

    # Evaluation

    def begin_evaluation(self, weights: Tensors) -> None:
        """Score the test images in whatever time the clients of the next round leave free."""
        self._schedule.begin_evaluation(self._evaluation.begin(weights))

    def end_evaluation(self) -> Evaluation:
        while not self._evaluation.complete:
            self._assign(0)
            self._listen()
        return self._evaluation.result()

    def take_remarks(self) -> Remarks:
        return Remarks()

    def own_scores(self, weights: Tensors) -> Sequence[OwnScores]:
        return ()

    def personal_parts(self) -> Iterator[tuple[int, Tensors]]:
        return self._runner.personal_parts(self.memories)

    def personal_accuracies(self, weights: Tensors) -> Mapping[int, float]:
        return {}

    # Answers and deaths

    def _listen(self, end: float = inf) -> None:
        for worker in self._workers.ready(end):
            answers, alive = worker.answers()
            for answer in answers:
                self._record(worker.tasks.popleft(), answer)
            if not alive:
                self._replace(worker)

    def _record(self, task: PoolTask, answer: Answer) -> None:
        if "refused" in answer:
            raise ConfigError(answer["refused"])
        if "lost" in answer:
            raise CheckpointError(answer["lost"])
        self._workers.have_answered()
        if isinstance(task, ScoreTask):
            self._evaluation.record(task, answer)
            return
        self._answers[task.position] = task, answer
        if "metrics" in answer:
            self._schedule.learn_pace(task, answer["metrics"]["seconds"])

    def _replace(self, worker: WorkerHandle) -> None:
        """It died: the task it was at has failed, the others go to other workers."""
        reason = self._workers.replace(worker)
        waiting = list(worker.tasks)
        if worker.busy[0] and waiting:
            self._blame(waiting.pop(0), reason)
        self._schedule.put_back(waiting)

    def _blame(self, task: PoolTask, reason: str) -> None:
        """A client has failed; a part of an evaluation is tried again."""
        if isinstance(task, ClientTask):
            self._record(task, {"died": f"its worker process {reason}"})
        elif task.attempts + 1 < MAX_SCORE_ATTEMPTS:
            task.attempts += 1
            self._schedule.put_back([task])
        else:
            raise WorkersLost(
                f"a worker process {reason} each time it evaluated the model: "
                f"if memory is short, use fewer engine.workers"
            )

    def _expire(self) -> None:
        """The round's time is over: whoever has not answered is late. Nothing but a kill is sure to
        end a client, so its worker is replaced."""
        late = self._schedule.end_round()
        for worker in list(self._workers.handles):
            if worker.client_tasks:
                late += worker.client_tasks
                worker.tasks = deque(task for task in worker.tasks if isinstance(task, ScoreTask))
                worker.process.kill()
                self._workers.replace(worker, killed=True)
                self._schedule.put_back(list(worker.tasks))
        for task in late:
            self._record(task, {"late": f"no reply within {self._deadline:g} s"})


@contextmanager
def worker_pool(session: Session, memories: Memories) -> Iterator[Pool]:
    pool = Pool(session, memories)
    try:
        yield pool
    finally:
        pool.close()
