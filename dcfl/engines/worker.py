"""One process of the pool: it trains the clients and scores the test images that it is told to.

Orders and answers are small JSON messages; tensors lie in regions of shared memory.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from mmap import mmap
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from dcfl.client import frozen
from dcfl.engines.allocator import keep_freed_memory
from dcfl.engines.memories import read_memory
from dcfl.engines.regions import Region
from dcfl.engines.runner import ClientRunner
from dcfl.errors import CheckpointError, ClientFailure, ConfigError
from dcfl.evaluation import score
from dcfl.messages import Broadcast, Tensors
from dcfl.models.output import FeatureModel
from dcfl.system.processes import first_to_be_killed, leave_signals_to_the_parent
from dcfl.tensors import apart, together

Message = dict[str, Any]


class Slot:
    """The shared memory that one client's visit uses."""

    def __init__(self) -> None:
        self.memory = Region()  # in: what the client kept
        self.reply = Region()  # out: its weights, its upload and what it keeps now


class Desk:
    """The shared memory that all processes of a pool see; one is made before they are."""

    def __init__(self, slots: int) -> None:
        self.sent = Region()  # the broadcast: weights, and what the method shares
        self.judged = Region()  # the weights that are evaluated
        self.slots = [Slot() for _ in range(slots)]

    def close(self) -> None:
        for region in (self.sent, self.judged):
            region.close()
        for slot in self.slots:
            slot.memory.close()
            slot.reply.close()


class Worker:
    def __init__(self, runner: ClientRunner, desk: Desk, device: torch.device) -> None:
        self._runner, self._desk = runner.on(device), desk
        self._heard = 0  # the number of the broadcast that is here
        self._broadcast = Broadcast(0, {}, {})
        self._judging = 0  # the number of the evaluation whose model is here
        self._judged: FeatureModel = self._runner.model

    def answer(self, order: Message) -> Message:
        if order["do"] == "score":
            return self._score(order["evaluation"], order["weights"], *order["part"])
        self._hear(**order["broadcast"])
        slot = self._desk.slots[order["slot"]]
        memory = order["memory"]
        try:
            kept = (
                read_memory(Path(memory), order["owner"])
                if isinstance(memory, str)
                else slot.memory.get(memory)
            )
        except CheckpointError as error:  # not this client's fault
            return {"lost": str(error)}
        return self._train(order["client"], slot, kept)

    def _hear(self, number: int, round: int, sent: int) -> None:
        """Not before a task needs it: as long as one is under way, the pool leaves it alone."""
        if self._heard != number:
            here = self._runner.here(self._desk.sent.get(sent))
            self._broadcast = Broadcast(round, *apart(here, "weights", "shared"))
            self._heard = number

    def _train(self, client: int, slot: Slot, kept: Tensors) -> Message:
        try:
            reply, memory_after = self._runner.train(self._broadcast, client, kept)
        except ConfigError as error:
            return {"refused": str(error)}
        if isinstance(reply, ClientFailure):
            return {"failed": reply.reason}
        return {
            "reply": slot.reply.put(
                together(weights=reply.weights, upload=reply.upload, kept=memory_after)
            ),
            "num_examples": reply.num_examples,
            "num_steps": reply.num_steps,
            "metrics": dict(reply.metrics),
        }

    def _score(self, evaluation: int, weights: int, start: int, end: int) -> Message:
        if self._judging != evaluation:
            judged = self._runner.here(self._desk.judged.get(weights))
            self._judging, self._judged = evaluation, frozen(self._runner.model, judged)
        return score(self._judged, self._runner.data.dataset, start, end)._asdict()


def work(
    runner: ClientRunner,
    desk: Desk,
    device: torch.device,
    threads: int,
    orders: Connection,
    busy: mmap,
    lifeline: Connection,
    others: list[Connection],
) -> None:
    """The life of a worker process.

    `others` are ends of pipes that it inherited and must not hold: as long as it does, nobody can
    tell that the pool is gone. `busy` tells the pool whether it had begun with its first task.
    """
    for connection in others:
        connection.close()
    leave_signals_to_the_parent()
    first_to_be_killed()
    threading.Thread(target=_end_with_the_pool, args=(lifeline,), daemon=True).start()
    gc.freeze()  # what the pool made is shared as long as nobody touches it
    keep_freed_memory()
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    worker = Worker(runner, desk, device)
    while True:
        try:
            order = json.loads(orders.recv_bytes())
            busy[0] = True
            answer = worker.answer(order)
            busy[0] = False
            orders.send_bytes(json.dumps(answer).encode())
        except (EOFError, ConnectionError):  # the pool has gone
            return


def _end_with_the_pool(lifeline: Connection) -> None:
    """Nothing is ever sent over the lifeline; it breaks when the pool's process ends, even by a
    kill."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(0)
