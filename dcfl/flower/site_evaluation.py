"""Where the server has no test images, each site scores the model on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
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
from dcfl.flower.site_rules import LENDS, LENT, PERSONAL
from dcfl.flower.withholding import SCORES, in_order, refusal_of
from dcfl.messages import Tensors
from dcfl.scores import Scores
from dcfl.tensors import split

T = TypeVar("T")
Read = Callable[[RecordDict, Task, list[int]], T]  # an answer, what was asked, the declared images


class SiteResult(NamedTuple):
    """A model on a site's own test images."""

    site: int
    score: Score
    images: Sequence[int]  # per class, as the site declared them

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.score.right) / max(sum(self.images), 1)


class SiteEvaluation:
    """Asks the sites, and combines the scores of those that answer in time."""

    def __init__(
        self,
        messenger: Messenger,
        nodes: Nodes,
        run: str,
        clients: int,
        deadline: float,
        judges: Sequence[int],
        unsent: Collection[str],
        memories: Index,
    ) -> None:
        """`judges`: the sites whose images make up the accuracy, in all rounds alike; none: those
        that answer first. `unsent`: the weights that no message has. `memories`: of which round
        each client keeps one, as the run goes on."""
        self._messenger, self._nodes = messenger, nodes
        self._unsent, self._memories = unsent, memories
        self._run, self._clients, self._deadline = run, clients, deadline
        self._judges, self.absent = tuple(judges), tuple[int, ...]()
        self._sent: list[SentTask] = []
        self.round = 0  # the last that was trained here, for the sites' records; 0: none yet
        self._results: list[SiteResult] = []  # by the last evaluation
        self.own_accuracies = torch.full((clients,), torch.nan, dtype=torch.float64)

    def begin(self, weights: Tensors) -> None:
        self._sent = self._ask("evaluate", self._federated(weights), self._sites())

    def _sites(self) -> range:
        return range(self._clients)

    def _federated(self, weights: Tensors) -> Tensors:
        return split(weights, self._unsent)[1]

    def _ask(self, kind: str, weights: Tensors, sites: Collection[int]) -> list[SentTask]:
        """Those of these sites that are there and do not withhold the answer."""
        tasks = [
            (node, Task(self._run, self.round, site, self._memories.get(site, 0)).ticketed())
            for site, node in self._nodes.online().items()
            if site in sites and not refusal_of(self._nodes.withheld[site], kind)
        ]
        records = {"weights": codec.encode(weights)} if weights else {}
        return self._messenger.send_tasks(kind, tasks, self._deadline, **records)

    def result(self) -> Evaluation | None:
        """None if a site has not answered whose images belong to the accuracy: of the others alone
        it would be another number, which rises or falls with an unchanged model."""
        images = self._nodes.images
        self._results = [
            SiteResult(site, score, images[site])
            for site, score in self._answers(self._sent, codec.read_score)
        ]
        answered = {one.site for one in self._results}
        self._judges = self._judges or tuple(s for s in sorted(answered) if sum(images[s]))
        expected = self._judges or [
            site
            for site in range(self._clients)
            if not refusal_of(self._nodes.withheld.get(site, frozenset()), "evaluate")
        ]
        self.absent = tuple(site for site in expected if site not in answered)
        self.own_accuracies = torch.full((self._clients,), torch.nan, dtype=torch.float64)
        for one in self._results:
            if one.site in self._judges:
                self.own_accuracies[one.site] = one.accuracy
        self._tell_of_others(answered)
        combined = combine([one for one in self._results if one.site in self._judges])
        if combined is None and not self.absent:
            raise TooFewClients("no site has test images to evaluate the model on")
        return None if self.absent else combined

    def _tell_of_others(self, answered: Collection[int]) -> None:
        """Than those whose images make up the accuracy."""
        title = self._nodes.roster.title
        if self.absent:
            missing = ", ".join(map(title, self.absent))
            self._nodes.notify(
                f"without the test images of {missing} a round has no accuracy, and counts neither "
                f"for MAX nor for EMA"
            )
        for site in answered:
            if self._judges and site not in self._judges and sum(self._nodes.images[site]):
                self._nodes.notify(
                    f"{title(site)} was not there when the model was first scored: the accuracy "
                    f"stays that of the other sites' test images, so that rounds can be compared"
                )

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
        sent = self._ask("evaluate.scores", self._federated(weights), self._sites())
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
            if site < self._clients and refusal_of(words, "evaluate.scores")
        ]

    def personal_accuracies(self, weights: Tensors) -> dict[tuple[int, int], float]:
        """Each site scores its own model, and those whose parts are lent, one after the other."""
        trained, common = {*self._sites()} & self._memories.keys(), self._federated(weights)

        def read_part(content: RecordDict, task: Task, _: list[int]) -> Tensors:
            return codec.read_part(content, task, weights)

        scored = self._answers(self._ask(PERSONAL, common, trained), codec.read_scores)
        found = {(site, site): scores.accuracy for site, scores in scored if scores.images}
        for owner in sorted(trained & self._nodes.lenders):
            lent = self._ask(LENDS, {}, {owner})
            for _, part in self._answers(lent, read_part):
                others = self._ask(LENT, {**common, **part}, {*self._sites()} - {owner})
                for site, score in self._answers(others, codec.read_score):
                    if sum(images := self._nodes.images[site]):
                        found[owner, site] = SiteResult(site, score, images).accuracy
        return found

    def kept_back(self, site: int) -> tuple[str, ...]:
        scores = SCORES in self._nodes.withheld.get(site, ())
        return ("personal",) * (site not in self._nodes.lenders) + (SCORES,) * scores

    def require_judge(self) -> None:
        """Refuse a run in which nobody could ever say how good the model is."""
        online = self._nodes.online()
        if all(refusal_of(self._nodes.withheld[site], "evaluate") for site in online):
            raise TooFewClients(
                "all sites withhold scores, and there are no test images here: nobody can say how "
                "good the model is; ask one site to withhold none of scores, class-counts and "
                "sizes (it need not train: it may withhold updates)"
            )

    def site_scores(self) -> tuple[SiteScore, ...]:
        """The sites' scores of the last evaluation, for the row of a round."""
        sizes = [sum(self._nodes.images.get(site, ())) for site in self._judges]
        weights = dict(zip(self._judges, image_weights(sizes), strict=True))
        return tuple(
            SiteScore(one.site, one.accuracy, sum(one.images), weights.get(one.site, 0.0))
            for one in self._results
        )


def image_weights(counts: Sequence[float]) -> list[float]:
    """The weight of each test image of sites that have so many: 1, or less where a site has more
    than the median site (the lower one, if two are in the middle).

    Nobody can check whether a site has the images that it counts. With these weights no one of n
    sites has more than 1 / (n // 2 + 1) of the say, whatever it counts, and 1 / n where the others
    are alike.
    """
    positive = sorted(count for count in counts if count)
    median = positive[(len(positive) - 1) // 2] if positive else 0
    return [min(median / count, 1.0) if count else 0.0 for count in counts]


def combine(results: Sequence[SiteResult]) -> Evaluation | None:
    """Several sites' scores as one evaluation; None without a single image."""
    weights = _float64(image_weights([sum(one.images) for one in results]))
    if not weights.any():
        return None
    right = weights @ _float64([one.score.right for one in results])
    counts = weights @ _float64([one.images for one in results])
    losses = weights @ _float64([sum(one.score.losses) for one in results])
    images = float(counts.sum())
    return Evaluation(
        100 * float(right.sum()) / images, float(losses) / images, 100 * right / counts
    )


def _float64(rows: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
