"""Where the server has no test images, each site scores the model on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeVar

import torch
from flwr.app import RecordDict
from torch import Tensor

from dcfl.engines.engine import OwnScores, SiteScore
from dcfl.engines.memories import Index
from dcfl.errors import ProtocolError, TooFewClients
from dcfl.evaluation import Evaluation, Score
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.messenger import Messenger, SentTask
from dcfl.flower.nodes import Nodes
from dcfl.flower.withholding import (
    CLASS_COUNTS,
    SIZE_UNKNOWN,
    SIZES,
    Withheld,
    answers,
    in_order,
)
from dcfl.messages import Tensors
from dcfl.scores import Scores

T = TypeVar("T")
Read = Callable[[RecordDict, Task, list[int]], T]  # an answer, what was asked, the declared images


class SiteResult(NamedTuple):
    """A model on a site's own test images."""

    site: int
    score: Score
    images: Sequence[int]  # per class, as the site declared them
    withheld: Withheld = frozenset()

    @property
    def by_class(self) -> bool:
        """Whether the numbers are by class and not for all classes together."""
        return CLASS_COUNTS not in self.withheld

    @property
    def size(self) -> int | None:
        """How many test images it has; None if it does not tell."""
        return None if SIZES in self.withheld else sum(self.images)

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.score.right) / max(sum(self.images), 1)


class SiteEvaluation:
    """Asks the sites, and combines the scores of those that answer in time."""

    def __init__(
        self, messenger: Messenger, nodes: Nodes, run: str, clients: int, deadline: float
    ) -> None:
        self._messenger, self._nodes = messenger, nodes
        self._run, self._clients, self._deadline = run, clients, deadline
        self._sent: list[SentTask] = []
        self.round = 0  # the last that was trained here, for the sites' records; 0: none yet
        self._results: list[SiteResult] = []  # by the last evaluation
        self.own_accuracies = torch.full((clients,), torch.nan, dtype=torch.float64)

    def begin(self, weights: Tensors) -> None:
        self._sent = self._ask("evaluate", weights)

    def _ask(self, kind: str, weights: Tensors, rounds: Index | None = None) -> list[SentTask]:
        """With `rounds`, those sites alone that have a memory, of the round named there."""
        tasks = [
            (node, Task(self._run, self.round, site, rounds[site] if rounds else 0).ticketed())
            for site, node in self._nodes.online().items()
            if site < self._clients
            and (rounds is None or site in rounds)
            and answers(self._nodes.withheld[site], kind)
        ]
        record = codec.encode(weights)
        return self._messenger.send_tasks(kind, tasks, self._deadline, weights=record)

    def result(self) -> Evaluation | None:
        """None if no site has answered with the score of a single image."""
        nodes = self._nodes
        scores = [
            SiteResult(site, score, nodes.images[site], nodes.withheld[site])
            for site, score in self._answers(self._sent, codec.read_score)
        ]
        combined = combine(scores, nodes.classes)
        if combined is not None:
            self.own_accuracies = torch.full((self._clients,), torch.nan, dtype=torch.float64)
            for score in scores:
                self.own_accuracies[score.site] = score.accuracy
            self._results = scores
        return combined

    def _answers(self, sent: Sequence[SentTask], read: Read[T]) -> Iterator[tuple[int, T]]:
        """The answers, by site, that come in time and can be read."""
        end = time.monotonic() + (self._deadline or inf)
        for message, task, _ in sent:
            answer = self._messenger.wait_for(message, end)
            if isinstance(answer, RecordDict):
                try:
                    yield task.client, read(answer, task, self._nodes.images[task.client])
                except ProtocolError as error:  # as if it had not answered
                    title = self._nodes.roster.title(task.client)
                    self._nodes.notify(f"{title} has no say: {error}")

    def own_scores(self, weights: Tensors) -> list[OwnScores]:
        """All scores of a model on each site's own test images, then the sites that withhold them;
        empty if no site has scored an image."""
        sent = self._ask("evaluate.scores", weights)
        found = dict(self._answers(sent, codec.read_scores))
        weights_of_images = image_weights([scores.images for scores in found.values()])
        scored = [
            OwnScores(self._nodes.roster.name(site), scores, weight)
            for (site, scores), weight in zip(found.items(), weights_of_images, strict=True)
            if scores.images
        ]
        return [*scored, *self._withholding()] if scored else []

    def _withholding(self) -> list[OwnScores]:
        nothing = Scores.none(self._nodes.classes)
        return [
            OwnScores(self._nodes.roster.name(site), nothing, 0.0, tuple(in_order(words)))
            for site, words in sorted(self._nodes.withheld.items())
            if site < self._clients and not answers(words, "evaluate.scores")
        ]

    def personal_accuracies(self, weights: Tensors, rounds: Index) -> dict[int, float]:
        """Of each site's own model, on its own test images. `rounds`: of the memories that hold
        the personal parts."""
        sent = self._ask("evaluate.personal", weights, rounds)
        found = self._answers(sent, codec.read_scores)
        return {site: scores.accuracy for site, scores in found if scores.images}

    def require_judge(self) -> None:
        """Refuse a run in which nobody could ever say how good the model is."""
        online = self._nodes.online()
        if not any(answers(self._nodes.withheld[site], "evaluate") for site in online):
            raise TooFewClients(
                "all sites withhold scores, and there are no test images here: nobody can say how "
                "good the model is; ask a site to send its scores"
            )

    def scores(self) -> tuple[SiteScore, ...]:
        """The sites' scores of the last evaluation, for the row of a round."""
        sizes = _assumed_sizes(self._results)
        weights = image_weights(sizes)
        return tuple(
            SiteScore(result.site, result.accuracy, size, weight)
            for result, size, weight in zip(self._results, sizes, weights, strict=True)
        )


def image_weights(counts: Sequence[float]) -> list[float]:
    """The weight of each test image of sites that have so many: 1, or less where a site has more
    than the median site (the lower one, if two are in the middle).

    Nobody can check whether a site has the images that it counts. With these weights no one of n
    sites has more than 1 / (n // 2 + 1) of the say, whatever it counts, and 1 / n where the others
    are alike.
    """
    median = _median(counts)
    return [min(median / count, 1.0) if count else 0.0 for count in counts]


def _median(counts: Iterable[float]) -> float:
    """The lower median of the counts above 0."""
    positive = sorted(count for count in counts if count)
    return positive[(len(positive) - 1) // 2] if positive else 0


def _assumed_sizes(results: Sequence[SiteResult]) -> list[int]:
    """A site that does not tell its size counts as the median one of those that do."""
    median = int(_median(result.size or 0 for result in results)) or SIZE_UNKNOWN
    return [
        (median if sum(result.images) else 0) if result.size is None else result.size
        for result in results
    ]


def combine(results: Sequence[SiteResult], classes: int) -> Evaluation | None:
    """Several sites' scores as one evaluation; None without a single image."""
    weights = _weights_in_score(results)
    if not weights.any():
        return None

    def by_class(counts: Callable[[SiteResult], Sequence[int]]) -> Tensor:
        rows = [counts(one) if one.by_class else [0] * classes for one in results]
        return weights @ torch.tensor(rows, dtype=torch.float64)

    def in_all(counts: Callable[[SiteResult], Sequence[float]]) -> float:
        rows = [0.0 if one.by_class else sum(counts(one)) for one in results]
        return float(weights @ torch.tensor(rows, dtype=torch.float64))

    right, counts = by_class(lambda one: one.score.right), by_class(lambda one: one.images)
    losses = torch.tensor([sum(one.score.losses) for one in results], dtype=torch.float64)
    images = float(counts.sum()) + in_all(lambda one: one.images)
    hits = float(right.sum()) + in_all(lambda one: one.score.right)
    loss = float(weights @ losses) / images
    return Evaluation(100 * hits / images, loss, 100 * right / counts)


def _weights_in_score(results: Sequence[SiteResult]) -> Tensor:
    """The weight of each image that a site speaks of; one that does not tell its size speaks of a
    hundred."""
    sizes = _assumed_sizes(results)
    weights = [
        weight * size / max(sum(one.images), 1) if one.size is None else weight
        for one, size, weight in zip(results, sizes, image_weights(sizes), strict=True)
    ]
    return torch.tensor(weights, dtype=torch.float64)
