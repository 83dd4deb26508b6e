"""Orders to train clients, and the answers as replies. Tensors travel through shared memory."""

from __future__ import annotations

from dcfl.engines.memories import Memories
from dcfl.engines.regions import SharedRegions
from dcfl.engines.tasks import ClientTask
from dcfl.engines.worker import Answer, Order
from dcfl.errors import ClientFailure, ClientLate, ClientLost
from dcfl.messages import Broadcast, ClientUpdate
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
