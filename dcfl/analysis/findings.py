"""Everything that `dcfl analyse` finds out about a run, as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dcfl.analysis.drift import Drift, measure_drift
from dcfl.analysis.similarity import (
    Cosines,
    Dimensions,
    Features,
    Layout,
    Plane,
    Similarity,
    features_of,
    look_at,
    measure_similarity,
)
from dcfl.comparisons.groups import setting
from dcfl.models.output import Embedding
from dcfl.report.run_page import names_of
from dcfl.runs.folder import RecordedRun
from dcfl.system.wording import printable
from dcfl.trained.subject import Subject, kind_of_images, open_subject

# Percent: other kernels may change this much, half precision more, other data still more.
SAME_ACCURACY, SAME_IN_HALF_PRECISION = 0.011, 0.5
PLAIN = ("method", "embedding", "dataset", "rounds", "images", "kind_of_images", "accuracy")


@dataclass(frozen=True)
class Analysis:
    """The final global model of one run, on the images that the run was evaluated on."""

    label: str
    run: RecordedRun
    embedding: Embedding  # "projection": the output of a side head
    method: str
    dataset: str
    rounds: int
    images: int
    kind_of_images: str  # "test images" or "kept-back training images"
    images_id: tuple[str, int, float, int]  # equal for two runs if the images are the same
    class_names: tuple[str, ...]
    accuracy: float  # measured here, percent
    similarity: Similarity
    dimensions: Dimensions
    plane: Plane
    drift: Drift | None
    cautions: tuple[str, ...]

    @property
    def kinds(self) -> list[tuple[str, Cosines]]:
        return [("intra", self.similarity.intra), ("inter", self.similarity.inter)]

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.label,
            **{name: getattr(self, name) for name in PLAIN},
            "seed": setting(self.run, "federation.seed"),
            "weights_sha256": self.run.summary.weights_sha256 if self.run.summary else None,
            "similarity": self.similarity.as_json(),
            "dimensions": self.dimensions.as_json(),
            "plane": {"explained": list(self.plane.explained)},
            "drift": self.drift.as_json() if self.drift else None,
            "cautions": list(self.cautions),
        }


def analyse_runs(
    runs: Sequence[RecordedRun],
    clients: int = 10,
    drift: bool = True,
    tell: Callable[[str], None] = lambda _: None,
    layout: Layout = "pca",
) -> list[Analysis]:
    """One for each run, and a second one if it has a side head.

    `clients`: how many train a round for the drift; `tell`: called with what is being done;
    `layout`: of the picture."""
    subjects = [open_subject(run) for run in runs]  # refuses before any time is spent
    analyses = []
    for subject, label in zip(subjects, labels(runs), strict=True):
        kind = kind_of_images(subject.experiment.data)
        tell(f"{label}: embeddings of {len(subject.dataset.test):,} {kind}")

        def tell_of_this_run(text: str, label: str = label) -> None:
            tell(f"{label}: {text}")

        found = {which: features_of(subject, which) for which in subject.embeddings}
        moved = measure_drift(subject, clients, tell_of_this_run) if drift else None
        for which, features in found.items():
            if which == "projection":  # the clients and their models are the same
                label, moved = f"{label}, side head", None
            analyses.append(_analysis(subject, label, which, features, moved, layout))
    return analyses


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """The method's name, or the folder's where two runs share a method."""
    methods = [str(setting(run, "method.name")) for run in runs]
    uses, names = Counter(methods), names_of(runs)
    return [
        printable(method) if uses[method] == 1 else names[run]
        for run, method in zip(runs, methods, strict=True)
    ]


def _analysis(
    subject: Subject,
    label: str,
    which: Embedding,
    features: Features,
    drift: Drift | None,
    layout: Layout,
) -> Analysis:
    experiment, dataset = subject.experiment, subject.dataset
    data, seed = experiment.data, experiment.federation.seed
    plane, dimensions = look_at(features.embeddings, features.labels, seed, layout)
    return Analysis(
        label,
        subject.run,
        which,
        experiment.method.name,
        dataset.name,
        subject.round,
        len(features.labels),
        kind_of_images(data),
        # Which images are kept back depends on the seed of the split.
        (dataset.name, len(dataset.test), data.holdout, data.split_seed if data.holdout else 0),
        dataset.class_names,
        features.accuracy,
        measure_similarity(features.embeddings, features.labels, seed),
        dimensions,
        plane,
        drift,
        tuple(_cautions(subject, features, drift)),
    )


def _cautions(subject: Subject, features: Features, drift: Drift | None) -> Iterator[str]:
    experiment = subject.experiment
    if experiment.data.holdout:
        yield (
            f"the images are training images that data.holdout = {experiment.data.holdout:g} kept "
            f"back to choose settings by, not test images"
        )
    recorded = subject.run.rounds[-1].accuracy
    full = experiment.engine.precision == "float32"
    tolerance = SAME_ACCURACY if full else SAME_IN_HALF_PRECISION
    if recorded is not None and abs(recorded - features.accuracy) > tolerance:
        yield (
            f"the model's accuracy is {features.accuracy:.2f} % now and was {recorded:.2f} % "
            f"when the run ended: the images may have changed"
        )
    if drift is None:
        return
    if drift.failures:
        lost = "; ".join(drift.failures[:3])
        yield f"{len(drift.failures)} clients did not finish their round: {lost}"
    if experiment.privacy.active or experiment.attack.kind != "none":
        yield (
            "the drift is that of honest clients before anything is clipped or blurred: the run's "
            "attack and privacy settings play no part in it"
        )
