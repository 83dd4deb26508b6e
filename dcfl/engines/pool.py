"""Clients in several processes of this machine, with the same bits as in one.

Each worker trains one client at a time with a fixed number of threads. The longest clients start
first; replies are handed on in client order, so that sums have the same bits whatever the order of
completion. The slots in which replies wait are limited, so memory does not grow with the cohort:
with a large model, a client whose turn is far away starts later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf

from dcfl.engines.embedded import OnThisMachine
from dcfl.engines.engine import Session
from dcfl.engines.memories import Memories
from dcfl.engines.regions import SharedRegions, slot_count
from dcfl.engines.worker_processes import (
    Answer,
    ClientTask,
    Order,
    PoolTask,
    ScoreTask,
    TaskQueue,
    WorkerHandle,
    WorkerProcesses,
)
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
from dcfl.system.memory import give_freed_memory_back
from dcfl.tensors import apart, copies, together


class ClientOrders:
    def __init__(self, regions: SharedRegions, memories: Memories) -> None:
        self._regions, self._memories = regions, memories
        self._broadcast: Order = {"number": 0}

    def begin_round(self, broadcast: Broadcast) -> None:
        """Replace the last broadcast, on which nobody may train any more."""
        sent = together(weights=broadcast.weights, shared=broadcast.shared)
        self._broadcast = {
            "number": self._broadcast["number"] + 1,
            "round": broadcast.round,
            "sent": self._regions.broadcast.put(sent),
        }

    def order(self, task: ClientTask) -> Order:
        slot = task.position % len(self._regions.slots)
        version, in_ram = self._memories.version(task.client), self._memories.in_ram(task.client)
        memory: int | str = (
            str(self._memories.path(version))
            if in_ram is None
            else self._regions.slots[slot].memory.put(in_ram)
        )
        return {
            "do": "train",
            "broadcast": self._broadcast,
            "client": task.client,
            "slot": slot,
            "memory": memory,
            "owner": version.owner,
        }

    def reply(self, task: ClientTask, answer: Answer) -> ClientUpdate | ClientFailure:
        """It stays in shared memory, which is reused once the next reply is asked for."""
        if "late" in answer:
            return ClientLate(task.client, answer["late"])
        if "died" in answer:
            return ClientLost(task.client, answer["died"])
        if "failed" in answer:
            return ClientFailure(task.client, answer["failed"])
        tensors = self._regions.slots[task.order["slot"]].reply.get(answer["reply"])
        weights, upload, memory = apart(tensors, "weights", "upload", "memory")
        if memory:
            self._memories.stage(task.client, self._broadcast["round"], copies(memory))
        return ClientUpdate(
            client=task.client,
            weights=weights,
            upload=upload,
            num_examples=answer["num_examples"],
            num_steps=answer["num_steps"],
            metrics=answer["metrics"],
        )


MAX_SCORE_ATTEMPTS = 3  # a worker that dies while it evaluates is no client's fault


class Pool(OnThisMachine):
    """An Engine with a worker for each device of the session's placement."""

    overlaps = True

    def __init__(self, session: Session, memories: Memories) -> None:
        super().__init__(session.runner, memories)
        runner, placement = session.runner, session.placement
        self._deadline = session.experiment.federation.deadline
        model_bytes = num_bytes(runner.model.state_dict())
        self._regions = SharedRegions(slot_count(model_bytes, len(placement.devices)))
        self._orders = ClientOrders(self._regions, memories)
        self._queue = TaskQueue()
        self._answers: dict[int, tuple[ClientTask, Answer]] = {}  # by position in the cohort
        self._parts = scored_parts(runner.data.dataset)
        self._evaluation, self._scores = 0, dict[int, Score]()  # its number, and those of its parts
        threads = session.experiment.engine.threads
        try:
            self._workers = WorkerProcesses(runner, self._regions, placement, threads)
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
        # A round that was given up may have left a client that trains on the last broadcast.
        self._queue.end_round()
        while any(worker.client_tasks for worker in self._workers.handles):
            self._listen()
        self._answers.clear()
        self._orders.begin_round(broadcast)
        give_freed_memory_back()
        sizes = self.runner.data.partition.sizes
        self._queue.begin_round(
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

    def _assign(self, next_position: int) -> None:
        """Give every worker enough to do. A client may start only when its slot is free."""
        workers = self._workers.handles
        before = next_position + len(self._regions.slots)
        while True:
            worker = min(workers, key=lambda worker: self._queue.seconds_of(worker.tasks))
            if worker.tasks and self._queue.enough(worker.tasks, len(workers)):
                return
            task = self._queue.take(before)
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
            time.sleep(min(map(self._queue.seconds_of, queues)) / 3)

    # Evaluation

    def begin_evaluation(self, weights: Tensors) -> None:
        """Score the test images in whatever time the clients of the next round leave free."""
        self._evaluation += 1
        self._scores.clear()
        sent = self._regions.evaluated.put(weights)
        order = {"do": "score", "evaluation": self._evaluation, "weights": sent}
        self._queue.begin_evaluation(
            ScoreTask(number, {**order, "part": part}) for number, part in enumerate(self._parts)
        )

    def end_evaluation(self) -> Evaluation:
        while len(self._scores) < len(self._parts):
            self._assign(0)
            self._listen()
        scores = [self._scores[number] for number in range(len(self._parts))]
        return evaluation(scores, self.runner.data.dataset)

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
        self._workers.idle_deaths = 0
        if isinstance(task, ScoreTask):
            self._scores[task.part] = Score(**answer)
            return
        self._answers[task.position] = task, answer
        if "metrics" in answer:
            self._queue.learn_pace(task, answer["metrics"]["seconds"])

    def _replace(self, worker: WorkerHandle) -> None:
        """It died: the task it was at has failed, the others go to other workers."""
        reason = self._workers.replace(worker)
        waiting = list(worker.tasks)
        if worker.busy[0] and waiting:
            self._blame(waiting.pop(0), reason)
        self._queue.put_back(waiting)

    def _blame(self, task: PoolTask, reason: str) -> None:
        """A client has failed; a part of an evaluation is tried again."""
        if isinstance(task, ClientTask):
            self._record(task, {"died": f"its worker process {reason}"})
        elif task.attempts + 1 < MAX_SCORE_ATTEMPTS:
            task.attempts += 1
            self._queue.put_back([task])
        else:
            raise WorkersLost(
                f"a worker process {reason} each time it evaluated the model: "
                f"if memory is short, use fewer engine.workers"
            )

    def _expire(self) -> None:
        """The round's time is over: whoever has not answered is late. Nothing but a kill is sure to
        end a client, so its worker is replaced."""
        late = self._queue.end_round()
        for worker in list(self._workers.handles):
            if worker.client_tasks:
                late += worker.client_tasks
                worker.tasks = deque(task for task in worker.tasks if isinstance(task, ScoreTask))
                worker.process.kill()
                self._workers.replace(worker, killed=True)
                self._queue.put_back(list(worker.tasks))
        for task in late:
            self._record(task, {"late": f"no reply within {self._deadline:g} s"})
