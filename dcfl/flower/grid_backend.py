"""Clients at Flower's nodes, as an engine: messages go out, replies come back or do not.

Flower's strategies are not used: sampling, validation and aggregation are ours. Every message is
accounted for by its id. Replies are asked for in client order, a few at a time; the others wait at
the SuperLink, so memory does not grow with the cohort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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
    ClientRejected,
    ProtocolError,
    TooFewClients,
)
from dcfl.evaluation import Evaluation, Score, evaluate
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.post import Lost, Nodes, Post
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.simulation.workbench import Workbench

WINDOW = 8  # replies that are here at a time
PATIENCE = 2.0  # deadlines after which a late message is given up by Flower too
FORGET_SECONDS = 30  # for nodes to clear up after a run


class Sent(NamedTuple):
    """A message that is under way."""

    id: str
    task: Task
    bytes_down: int


class GridEngine:
    """An engine."""

    overlaps = True  # nodes train while this process evaluates the round before

    def __init__(
        self,
        grid: Grid,
        run: str,
        bench: Workbench,
        deadline: float = 0.0,
        nodes: int = 0,
        reveal: bool = False,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`deadline`: seconds, 0 for none. `nodes`: see Nodes. `reveal`: the nodes are this user's,
        and may say what exactly went wrong. `alive`: see Post."""
        self._run, self._bench, self._deadline, self._reveal = run, bench, deadline, reveal
        self._post = Post(grid, alive)
        self._nodes = Nodes(self._post, run, nodes)
        self._remembered: dict[int, int] = {}  # the round of each client's memory, if it has one
        self._late: set[str] = set()  # messages that no round waits for any more
        self.dropped = 0
        self.own_accuracies: Tensor | None = None
        self._judged: Tensors = {}  # still to be evaluated here
        self._judges: list[Sent] = []  # sites that evaluate
        self._evaluation: Evaluation | None = None

    # Clients

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        end = time.monotonic() + (self._deadline or inf)
        self._nodes.refresh()
        sent = self._send(broadcast, cohort)
        self._evaluate_here()
        answers: dict[str, RecordDict | Lost] = {}
        for place, client in enumerate(cohort):
            message = sent.get(client)
            if message is None:
                yield ClientFailure(client, "its node is not online", traffic=Traffic(0, 0))
                continue
            soon = [sent[other].id for other in cohort[place : place + WINDOW] if other in sent]
            self._await(message.id, soon, answers, end)
            yield self._reply(message, answers.pop(message.id, None))

    def _send(self, broadcast: Broadcast, cohort: Sequence[int]) -> dict[int, Sent]:
        weights, shared = codec.encode(broadcast.weights), codec.encode(broadcast.shared)
        tasks = [
            Task(self._run, broadcast.round, client, self._remembered.get(client, 0))
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

    def _await(
        self, wanted: str, soon: Sequence[str], answers: dict[str, RecordDict | Lost], end: float
    ) -> None:
        """Until the wanted answer is there or the time is over. `soon`: it, and those after it."""
        began, looked = time.monotonic(), False
        while wanted not in answers:
            now = time.monotonic()
            if looked and now >= end:
                return
            if looked:  # soon at first: in a simulation a client may take milliseconds
                time.sleep(max(0.0, min(0.005 + (now - began) / 50, 0.25, end - now)))
            found = self._post.collect({*soon} - answers.keys() | self._late)
            for message, reply in found.items():
                if message in self._late:
                    self._late.discard(message)
                    self.dropped += not isinstance(reply, Lost)
                else:
                    answers[message] = reply
            looked = True

    def _reply(self, sent: Sent, answer: RecordDict | Lost | None) -> ClientUpdate | ClientFailure:
        client, down = sent.task.client, sent.bytes_down
        if answer is None:
            self._late.add(sent.id)
            reason = f"no reply within {self._deadline:g} s"
            return ClientLate(client, reason, traffic=Traffic(0, down))
        if isinstance(answer, Lost):
            return ClientFailure(client, answer.reason, traffic=Traffic(0, down))
        try:
            reply = codec.read_reply(answer, sent.task, self._reveal, down)
            if isinstance(reply, ClientUpdate) and codec.has_kept(answer):
                self._remembered[client] = sent.task.round
        except ProtocolError as error:
            traffic = Traffic(codec.num_bytes(answer), down)
            return ClientRejected(client, str(error), traffic=traffic)
        return reply

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
        answers: dict[str, RecordDict | Lost] = {}
        scores: list[tuple[int, Score, list[int]]] = []
        for sent in self._judges:
            self._await(sent.id, [other.id for other in self._judges], answers, end)
            answer = answers.get(sent.id)
            if isinstance(answer, RecordDict):
                try:
                    score, totals = codec.read_score(answer, sent.task, dataset.classes)
                except ProtocolError:
                    continue  # as if it had not answered
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
        if self._remembered:
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
