"""The life of one worker process: it trains clients and scores test images as it is ordered to.

Orders and answers are small JSON messages; tensors are in shared memory.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from dataclasses import dataclass
from mmap import mmap
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from dcfl.client import frozen
from dcfl.engines.memories import read_memory
from dcfl.engines.regions import ReplySlot, SharedRegions
from dcfl.engines.runner import ClientRunner
from dcfl.errors import CheckpointError, ClientFailure, ConfigError
from dcfl.evaluation import score
from dcfl.messages import Broadcast, Tensors
from dcfl.methods.method import addressed
from dcfl.models.output import FeatureModel
from dcfl.system.memory import keep_freed_memory
from dcfl.system.processes import first_to_be_killed, leave_signals_to_the_parent
from dcfl.tensors import apart, together

Order = dict[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True)
class WorkerSetup:
    """What all workers of a pool inherit."""

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
