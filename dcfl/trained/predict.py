"""What a trained model says of pictures: a label, and how probable it and the next ones are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from dcfl.errors import require
from dcfl.runs.model_file import Network, Which
from dcfl.system.json_types import Json
from dcfl.trained.classifier import Seen, open_classifier


class Candidate(NamedTuple):
    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What the model says of one picture."""

    picture: Path
    ranking: tuple[Candidate, ...]  # the most probable first; empty if the picture was skipped
    truth: str | None = None  # the class of the folder it lies in, if it lies in one
    skipped: str = ""  # why it could not be read
    trained_on: bool | None = None  # whether the model has seen it in training; None: not known

    @property
    def label(self) -> str | None:
        return self.ranking[0].label if self.ranking else None

    @property
    def right(self) -> bool | None:
        """None if the truth is not known, or nothing was predicted."""
        return None if self.truth is None or not self.ranking else self.label == self.truth

    def to_json(self) -> Json:
        return {
            "picture": str(self.picture),
            "label": self.label,
            "ranking": [candidate._asdict() for candidate in self.ranking],
            "truth": self.truth,
            "skipped": self.skipped or None,
            "trained_on": self.trained_on,
        }


def predict(
    run_folder: str | Path,
    pictures: str | Path | Iterable[str | Path],
    *,
    top: int = 1,
    which: Which = "last",
    model: Network = None,
) -> Iterator[Prediction]:
    """The labels of pictures, by the model of a finished run.

    Pictures may have any size and mode: each is prepared as the run prepared those it was trained
    on. They are read and classified a hundred at a time, so that there may be any number.

    Args:
        run_folder: The folder of a run that has finished.
        pictures: Files, and folders with pictures in or below them. Or .npz files of feature
            vectors or other inputs: data sets, or what `dcfl embed` writes.
        top: How many labels to rank for each picture.
        which: "last" or "best", see `load_model`.
        model: The network, if it is one of your own, see `load_model`.

    Returns:
        An iterator over `Prediction`s, in the order of the pictures. A picture that cannot be read
        is among them, with the reason in `skipped`.

    Raises:
        RunMissing: There is no such model in the folder.
        DatasetMissing: A file or folder does not exist, or holds no picture.

    Example:
        >>> import dcfl
        >>> from PIL import Image
        >>> result = dcfl.run(federation={"rounds": 1})
        >>> Image.new("RGB", (640, 480), "white").save("photo.png")
        >>> (prediction,) = dcfl.predict(result.folder, "photo.png", top=3)
        >>> len(prediction.ranking), prediction.label in "0123456789"
        (3, True)
    """
    require(top >= 1, f"top must be at least 1 label, not {top}")
    places = [pictures] if isinstance(pictures, str | Path) else list(pictures)
    classifier = open_classifier(Path(run_folder), which, model)
    blocks = classifier.look_at(places)
    return (one for seen in blocks for one in _predictions(seen, classifier.model.class_names, top))


def _predictions(seen: Seen, names: tuple[str, ...], top: int) -> Iterator[Prediction]:
    rankings = _rankings(seen.output.logits, names, top) if seen.output is not None else []
    for found, row in seen.pictures:
        truth = None if found.label is None else names[found.label]
        if isinstance(row, str):
            yield Prediction(found.path, (), truth, skipped=row)
        else:
            yield Prediction(found.path, rankings[row], truth, trained_on=seen.known[row])


def _rankings(
    logits: Tensor, class_names: tuple[str, ...], top: int
) -> list[tuple[Candidate, ...]]:
    # Sorted stably: of two equal scores the first class wins, as argmax decides in training.
    ordered = logits.double().softmax(dim=1).sort(dim=1, descending=True, stable=True)
    best, labels = ordered.values[:, :top].tolist(), ordered.indices[:, :top].tolist()
    return [
        tuple(Candidate(class_names[label], p) for label, p in zip(*row, strict=True))
        for row in zip(labels, best, strict=True)
    ]


@dataclass
class Tally:
    """What all predictions together amount to; of one size, however many there were."""

    pictures: int = 0
    skipped: int = 0
    labelled: int = 0  # classified, and the truth is known
    right: int = 0
    trained_on: int = 0
    unknown: int = 0  # whether the model has seen them

    def add(self, prediction: Prediction) -> None:
        self.pictures += 1
        self.skipped += bool(prediction.skipped)
        self.labelled += prediction.right is not None
        self.right += bool(prediction.right)
        self.trained_on += bool(prediction.trained_on)
        self.unknown += not prediction.skipped and prediction.trained_on is None

    @property
    def accuracy(self) -> float | None:
        """Percent; None if no picture lies in a class folder."""
        return 100 * self.right / self.labelled if self.labelled else None
