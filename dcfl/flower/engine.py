"""Clients at Flower's nodes, as an engine: messages go out, replies come back or do not.

Flower's strategies are not used: sampling, validation and aggregation are ours. Every message is
accounted for by its id. Replies are asked for in client order, one at a time; the others wait at
the SuperLink, so memory does not grow with the cohort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from dcfl.client import frozen
from dcfl.engines.memories import Index
from dcfl.engines.runner import ClientRunner
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
from dcfl.flower.nodes import Nodes
from dcfl.flower.post import Lost, Post
from dcfl.flower.roster import Roster
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic

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
        runner: ClientRunner,
        roster: Roster,
        deadline: float = 0.0,
        reveal: bool = False,
        alive: Callable[[], bool] = lambda: True,
        overlaps: bool = False,
        index: Mapping[int, int] | None = None,
        needed: Sequence[Index] = (),
    ) -> None:
        """`deadline`: seconds, 0 for none. `reveal`: the nodes are this user's,
        and may say what exactly went wrong. `alive`: see Post. `overlaps`: evaluate a round while
        the next one trains, which hides the time and shows each round's result later. `index`:
        of what clients have kept already; `needed`: by checkpoints."""
        self._run, self._runner, self._deadline, self._reveal = run, runner, deadline, reveal
        self._post = Post(grid, alive)
        self._nodes = Nodes(self._post, run, roster, runner.data.dataset.classes)
        self.memories = Remembered(index or {}, needed)
        self._late: set[str] = set()  # messages that no round waits for any more
        self.overlaps, self.dropped = overlaps, 0
        self.own_accuracies: Tensor | None = None
        self._judged: Tensors = {}  # still to be evaluated here
        self._judges: list[Sent] = []  # sites that evaluate
        self._scores: list[SiteScore] = []  # theirs, by the last evaluation
        self._told = 0  # notices that stand in a row
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
                reason = self._nodes.absence(client)
                yield ClientFailure(client, reason, traffic=Traffic(0, 0))
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
            Task(self._run, broadcast.round, client, *self.memories.wanted(client)).ticketed()
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
        return not len(self._runner.data.dataset.test)

    def begin_evaluation(self, weights: Tensors) -> None:
        if not self._sites_judge:
            self._judged = weights
            return
        record = codec.encode(weights)
        asked = [
            (node, task, codec.evaluate_content(task, record))
            for own, node in self._nodes.online().items()
            if own < len(self._runner.data.partition)
            for task in [Task(self._run, 0, own).ticketed()]
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
            model = frozen(self._runner.model, self._runner.here(self._judged))
            self._evaluation = evaluate(model, self._runner.data.dataset)
            self._judged = {}

    def _collected(self) -> Evaluation | None:
        """From the sites that answered in time; as it was, if none did."""
        end = time.monotonic() + (self._deadline or inf)
        scores: list[SiteScore] = []
        for sent in self._judges:
            site = sent.task.client
            answer = self._await(sent.id, end)
            if isinstance(answer, RecordDict):
                images = self._nodes.images[site]
                try:
                    read = codec.read_score(answer, sent.task, images)
                    scores.append(SiteScore(site, read, images))
                except ProtocolError as error:  # as if it had not answered
                    self._nodes.tell(f"{self._nodes.roster.title(site)} has no say: {error}")
        found = together(scores)
        if found is not None:
            clients = len(self._runner.data.partition)
            self.own_accuracies = torch.full((clients,), torch.nan, dtype=torch.float64)
            for score in scores:
                self.own_accuracies[score.site] = score.accuracy
            self._scores = scores
        return found or self._evaluation

    def remarks(self) -> dict[str, Any]:
        """For the row of a round: the sites' scores, if they are the judges, and the notices since
        the last row."""
        found: dict[str, Any] = {}
        if self._scores:
            found["sites"] = [
                {
                    "client": score.site,
                    "accuracy": score.accuracy,
                    "images": sum(score.images),
                    "weight": weight,
                }
                for score, weight in zip(self._scores, image_weights(self._scores), strict=True)
            ]
        if news := self._nodes.notices[self._told :]:
            found["notices"] = news
            self._told += len(news)
        return found

    # The end

    def forget(self) -> None:
        """The run has ended well: nodes need not keep its clients' memories."""
        if self.memories.rounds:
            task = Task(self._run, 0, 0)
            nodes = [
                (node, codec.task_content(task.ticketed()))
                for node in self._nodes.online().values()
            ]
            self._post.ask("query.forget", nodes, FORGET_SECONDS)


class SiteScore(NamedTuple):
    """A model on a site's own test images."""

    site: int
    score: Score
    images: Sequence[int]  # per class, as the site declared them

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.score.right) / max(sum(self.images), 1)


def image_weights(scores: Sequence[SiteScore]) -> list[float]:
    """Of each of a site's test images: 1, or less where the site has more of them than the middle
    one (the lower, if two are in the middle).

    Nobody can look whether a site has the images that it counts. Of n sites no one has more than
    1 / (n // 2 + 1) of the say by this, whatever it counts, and 1 / n where the others are alike.
    """
    counts = [sum(score.images) for score in scores]
    judges = sorted(count for count in counts if count)
    most = judges[(len(judges) - 1) // 2] if judges else 0
    return [min(most / count, 1.0) if count else 0.0 for count in counts]


def together(scores: Sequence[SiteScore]) -> Evaluation | None:
    """Several sites' scores as one evaluation; None without a single image."""
    weights = torch.tensor(image_weights(scores), dtype=torch.float64)
    if not weights.any():
        return None
    right = weights @ torch.tensor([score.score.right for score in scores], dtype=torch.float64)
    counts = weights @ torch.tensor([score.images for score in scores], dtype=torch.float64)
    losses = torch.tensor([sum(score.score.losses) for score in scores], dtype=torch.float64)
    images = float(counts.sum())
    loss = float(weights @ losses) / images
    return Evaluation(100 * float(right.sum()) / images, loss, 100 * right / counts)
