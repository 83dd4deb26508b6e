"""An evaluation that several workers share: the test images in parts, the scores in order."""

from __future__ import annotations

from dcfl.data import Dataset
from dcfl.engines.regions import Region
from dcfl.engines.tasks import ScoreTask
from dcfl.engines.worker import Answer
from dcfl.evaluation import Evaluation, Score, evaluation, scored_parts
from dcfl.messages import Tensors


class PoolEvaluation:
    def __init__(self, dataset: Dataset, region: Region) -> None:
        """`region`: where workers find the weights."""
        self._dataset, self._region = dataset, region
        self._number = 0
        self._scores: dict[int, Score] = {}  # by part

    def begin(self, weights: Tensors) -> list[ScoreTask]:
        self._number += 1
        self._scores.clear()
        order = {"do": "score", "evaluation": self._number, "weights": self._region.put(weights)}
        return [
            ScoreTask(number, {**order, "part": part})
            for number, part in enumerate(scored_parts(self._dataset))
        ]

    def record(self, task: ScoreTask, answer: Answer) -> None:
        self._scores[task.part] = Score(**answer)

    @property
    def complete(self) -> bool:
        return len(self._scores) >= len(scored_parts(self._dataset))

    def result(self) -> Evaluation:
        scores = [self._scores[number] for number in range(len(scored_parts(self._dataset)))]
        return evaluation(scores, self._dataset)
