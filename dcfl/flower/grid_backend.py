"""Clients at Flower's nodes, as an engine: messages go out, replies come back or do not.

Flower's strategies are not used: sampling, validation and aggregation are ours. Every message is
accounted for by its id. Replies are asked for in client order, one at a time; the others wait at
the SuperLink, so memory does not grow with the cohort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from dcfl.client import frozen
from dcfl.errors import (
    ClientFailure,
    ClientLate,
    ClientLost,
    ClientRejected,
    ProtocolError,
    TooFewClients,
)
from dcfl.evaluation import Evaluation, Score, evaluate
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.post import Lost, Nodes, Post
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.simulation.memories import Index
from dcfl.simulation.workbench import Workbench

PATIENCE = 2.0  # deadlines after which a late message is given up by Flower too
FORGET_SECONDS = 30  # for nodes to clear up after a run


class Sent(NamedTuple):
    """A message that is under way."""

    id: str
    task: Task
    bytes_down: int


class Remembered:
    """Which round's memory each client has, on its node's disk."""

    def __init__(self, rounds: Mapping[int, int], needed: Sequence[Index] = ()) -> None:
        self.rounds: Index = dict(rounds)
        self.staged: Index = {}  # of this round, whose replies are not used yet
        self._needed = list(needed)  # by checkpoints

    def wanted(self, client: int) -> tuple[int, int]:
        """The round to go on from, and the oldest that may still be asked for."""
        now = self.rounds.get(client, 0)
        return now, min([now, *(index.get(client, 0) for index in self._needed)])

    def settle(self, accepted: Collection[int]) -> None:
        staged = self.staged.items()
        self.rounds |= {client: round for client, round in staged if client in accepted}
        self.staged.clear()

    def save(self) -> Index:
        self._needed.append(dict(self.rounds))
        return dict(self.rounds)

    def saved(self) -> None:
        """A node has written its memory before it replies."""

    def keep_only(self, indexes: Collection[Index]) -> None:
        self._needed = list(indexes)


class GridEngine:
    """An engine."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        bench: Workbench,
        deadline: float = 0.0,
        nodes: int = 0,
        reveal: bool = False,
        alive: Callable[[], bool] = lambda: True,
        overlaps: bool = False,
        index: Mapping[int, int] | None = None,
        needed: Sequence[Index] = (),
    ) -> None:
        """`deadline`: seconds, 0 for none. `nodes`: see Nodes. `reveal`: the nodes are this user's,
        and may say what exactly went wrong. `alive`: see Post. `overlaps`: evaluate a round while
        the next one trains, which hides the time and shows each round's result later. `index`:
        of what clients have kept already; `needed`: by checkpoints."""
        self._run, self._bench, self._deadline, self._reveal = run, bench, deadline, reveal
        self._post = Post(grid, alive)
        self._nodes = Nodes(self._post, run, nodes)
        self.memories = Remembered(index or {}, needed)
        self._late: set[str] = set()  # messages that no round waits for any more
        self.overlaps, self.dropped = overlaps, 0
        self.own_accuracies: Tensor | None = None
        self._judged: Tensors = {}  # still to be evaluated here
        self._judges: list[Sent] = []  # sites that evaluate
        self._evaluation: Evaluation | None = None

    # Clients

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        self._drop_late()
        self._nodes.refresh()
        end = time.monotonic() + (self._deadline or inf)
        sent = self._send(broadcast, cohort)
        self._evaluate_here()
        for client in cohort:
            message = sent.get(client)
            if message is None:
                yield ClientFailure(client, "its node is not online", traffic=Traffic(0, 0))
            else:
                yield self._reply(message, self._await(message.id, end))

    def _drop_late(self) -> None:
        for message in list(self._late):
            reply = self._post.collect(message)
            if reply is not None:
                self._late.discard(message)
                self.dropped += not isinstance(reply, Lost)

    def _send(self, broadcast: Broadcast, cohort: Sequence[int]) -> dict[int, Sent]:
        weights, shared = codec.encode(broadcast.weights), codec.encode(broadcast.shared)
        tasks = [
            Task(self._run, broadcast.round, client, *self.memories.wanted(client))
            for client in cohort
        ]
        addressed = [
            (node, task, codec.train_content(task, weights, shared))
            for task in tasks
            if (node := self._nodes.of(task.client)) is not None
        ]
        ids = self._post.send(
            "train", [(node, content) for node, _, content in addressed], self._patience
        )
        return {
            task.client: Sent(message, task, codec.num_bytes(content))
            for message, (_, task, content) in zip(ids, addressed, strict=True)
            if message is not None
        }

    @property
    def _patience(self) -> float:
        return PATIENCE * self._deadline

    def _await(self, message: str, end: float) -> RecordDict | Lost | None:
        """The reply, or None when the time is over; there is always time for one look."""
        began = time.monotonic()
        while (reply := self._post.collect(message)) is None:
            now = time.monotonic()
            if now >= end:
                break
            # Soon at first: in a simulation a client may take milliseconds.
            time.sleep(min(0.005 + (now - began) / 50, 0.25, end - now))
        return reply

    def _reply(self, sent: Sent, answer: RecordDict | Lost | None) -> ClientUpdate | ClientFailure:
        client, down = sent.task.client, sent.bytes_down
        if answer is None:
            self._late.add(sent.id)
            reason = f"no reply within {self._deadline:g} s"
            return ClientLate(client, reason, traffic=Traffic(0, down))
        if isinstance(answer, Lost):
            return ClientLost(client, answer.reason, traffic=Traffic(0, down))
        try:
            reply = codec.read_reply(answer, sent.task, self._reveal, down)
            if isinstance(reply, ClientUpdate) and codec.has_kept(answer):
                self.memories.staged[client] = sent.task.round
        except ProtocolError as error:
            traffic = Traffic(codec.num_bytes(answer), down)
            return ClientRejected(client, str(error), traffic=traffic)
        return reply

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)

    # Evaluation

    @property
    def _sites_judge(self) -> bool:
        """There are no test images here: each site has its own."""
        return not len(self._bench.data.dataset.test)

    def begin_evaluation(self, weights: Tensors) -> None:
        if not self._sites_judge:
            self._judged = weights
            return
        record = codec.encode(weights)
        asked = [
            (node, task, codec.evaluate_content(task, record))
            for own, node in self._nodes.online().items()
            if own < len(self._bench.data.partition)
            for task in [Task(self._run, 0, own)]
        ]
        ids = self._post.send(
            "evaluate", [(node, content) for node, _, content in asked], self._patience
        )
        self._judges = [
            Sent(message, task, codec.num_bytes(content))
            for message, (_, task, content) in zip(ids, asked, strict=True)
            if message is not None
        ]

    def end_evaluation(self) -> Evaluation:
        if self._sites_judge:
            self._evaluation = self._collected()
        self._evaluate_here()
        if self._evaluation is None:
            raise TooFewClients("no site has evaluated the model on its test images")
        return self._evaluation

    def _evaluate_here(self) -> None:
        if self._judged:
            model = frozen(self._bench.model, self._bench.here(self._judged))
            self._evaluation = evaluate(model, self._bench.data.dataset)
            self._judged = {}

    def _collected(self) -> Evaluation | None:
        """From the sites that answered in time; as it was, if none did."""
        dataset, clients = self._bench.data.dataset, len(self._bench.data.partition)
        end = time.monotonic() + (self._deadline or inf)
        scores: list[tuple[int, Score, list[int]]] = []
        for sent in self._judges:
            answer = self._await(sent.id, end)
            if isinstance(answer, RecordDict):
                with suppress(ProtocolError):  # as if it had not answered
                    score, totals = codec.read_score(answer, sent.task, dataset.classes)
                    scores.append((sent.task.client, score, totals))
        found = together(scores)
        if found is not None:
            self.own_accuracies = torch.full((clients,), torch.nan, dtype=torch.float64)
            for client, score, totals in scores:
                self.own_accuracies[client] = 100 * sum(score.right) / max(sum(totals), 1)
        return found or self._evaluation

    # The end

    def forget(self) -> None:
        """The run has ended well: nodes need not keep its clients' memories."""
        if self.memories.rounds:
            content = codec.task_content(Task(self._run, 0, 0))
            nodes = [(node, content) for node in self._nodes.online().values()]
            self._post.ask("query.forget", nodes, FORGET_SECONDS)


def together(scores: Sequence[tuple[int, Score, Sequence[int]]]) -> Evaluation | None:
    """Several sites' scores, each with its images per class, as one evaluation."""
    right = torch.tensor([score.right for _, score, _ in scores], dtype=torch.float64)
    counts = torch.tensor([totals for _, _, totals in scores], dtype=torch.float64)
    images = float(counts.sum())
    if not images:
        return None
    loss = sum(loss for _, score, _ in scores for loss in score.losses)
    by_class = 100 * right.sum(dim=0) / counts.sum(dim=0)
    return Evaluation(100 * float(right.sum()) / images, loss / images, by_class)
