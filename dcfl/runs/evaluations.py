"""evaluation*.json in a run folder: the scores of its model on a data set."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, Field, InstanceOf, TypeAdapter
from torch import Tensor

from dcfl.engines.engine import OwnScores
from dcfl.evaluation import OWN_IMAGES, Fairness, fairness
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import damaged, parsed, validated
from dcfl.scores import ODDS_BINS, Scores, wilson
from dcfl.system.json_types import Count, Flag, Json, Number, Percent, Text
from dcfl.system.storage import read_whole, strict_json, write_whole
from dcfl.system.wording import some

STEM = "evaluation"
BASELINE = f"{STEM}-fine-tuned.json"  # what a comparison has found, whatever else is evaluated
WEIGHTING = "sites are weighted so that none counts more than the median one"
MOST_CLASSES = 10_000
ENOUGH_CLIENTS = 10  # a tenth of fewer would be no client
MOST_SITES = 10  # that a sentence names
LONGEST_NAME = 60  # characters, of data in a file's name and of a site in a sentence


Interval = tuple[Percent, Percent]


@dataclass(frozen=True)
class ClientScore:
    name: Text
    images: Count  # of its own; 0: it has none, and those of all count in its mix of classes
    accuracy: Percent
    interval: Interval | None = None  # with 95 %; None if the images are not its own
    fine_tuned_accuracy: Percent | None = None  # after training on the client's images
    by_class: tuple[Count, ...] = ()  # its images of each class, if it counted them itself


def worst_words(clients: int) -> str:
    return "worst tenth" if clients >= ENOUGH_CLIENTS else "worst"


class MostFrequent(NamedTuple):
    name: str
    share: float  # of all images, percent


class ClassRow(NamedTuple):
    """What is said of a class; NaN where nothing can be."""

    name: str
    images: float
    recall: float
    precision: float
    f1: float
    auc: float
    auc_error: float


@dataclass(frozen=True)
class EvaluationRecord:
    """A run's model on one data set."""

    data: Text  # the name of the data set
    own_data: Flag  # that of the run, not another data set
    kind: Text  # of its images: "test images", ...
    which: Literal["last", "best"] | Count  # of the run's models; a number: that of a client
    weights_sha256: Text
    class_names: tuple[Text, ...]
    scores: InstanceOf[Scores]
    clients: tuple[ClientScore, ...] = ()
    clients_kind: Text = ""  # the images that the clients' numbers are on
    fine_tuned: Count = 0  # for so many epochs, by each client for itself
    frozen: tuple[Text, ...] = ()  # the parts that this left as they were, because the run did
    # By site: what it keeps to itself, and for which it is not among the clients.
    withheld: Mapping[Text, tuple[Text, ...]] = field(default_factory=dict)
    interval: Interval | None = None  # of the accuracy, with 95 %
    groups: Count | None = None  # of images that belong together, by which it was taken
    trained_on: Count | None = None  # how many of the images the model has seen; None: not known

    @property
    def file_name(self) -> str:
        """The same for the same data set and model."""
        kind = "client-" if isinstance(self.which, int) else ""
        model = "" if self.which == "last" else f"-{kind}{self.which}"
        if self.own_data:
            return f"{STEM}{model}.json"
        last_part = re.split(r"[:/\\]", self.data.rstrip("/\\"))[-1]
        short = re.sub(r"[^\w.-]+", "-", last_part)[:LONGEST_NAME]
        digest = hashlib.sha256(self.data.encode(errors="surrogateescape")).hexdigest()[:8]
        return f"{STEM}{model}-{short}-{digest}.json"

    @property
    def model(self) -> str:
        """The model in words."""
        if isinstance(self.which, int):
            return f"client {self.which}'s own model"
        return f"{self.which} model"

    @property
    def images_words(self) -> str:
        """Which images they are."""
        return self.kind if self.data == "remote" else f"{self.kind} of {self.data}"

    @property
    def images(self) -> float:
        """How many there are. In the scores, those of a large site count less than 1 each."""
        return sum(self.images_by_class)

    @property
    def images_by_class(self) -> list[float]:
        counted = [client.by_class for client in self.clients if client.by_class]
        own: list[float] = self.scores.images_by_class.tolist()
        return [sum(counts) for counts in zip(*counted, strict=True)] if counted else own

    @property
    def weighted(self) -> bool:
        return abs(self.images - self.scores.images) > 0.5

    @property
    def notes(self) -> list[str]:
        """How the numbers are to be read; the same words wherever they are shown."""
        by_words: dict[tuple[str, ...], list[str]] = {}
        for name, words in self.withheld.items():
            by_words.setdefault(words, []).append(name)
        notes = [_about_withholding(names, words) for words, names in by_words.items()]
        if self.trained_on:
            notes.append(
                f"the model was trained on {self.trained_on:,} of these {self.images:,.0f} images: "
                f"this is no test of it"
            )
        elif self.trained_on is None and not self.own_data:
            notes.append(
                "whether the model was trained on some of these images is not known here: "
                "if it was, this is no test of it"
            )
        if self.frozen:
            notes.append(
                f"fine-tuning left {', '.join(self.frozen)} frozen, as the run did: --parts all, "
                f"or naming them, trains them"
            )
        return [*notes, *([WEIGHTING] if self.weighted else [])]

    @property
    def most_frequent(self) -> MostFrequent:
        """The class with the most images: naming it always is right so often."""
        counts = self.scores.images_by_class
        share = 100 * float(counts.max() / counts.sum())
        return MostFrequent(self.class_names[int(counts.argmax())], share)

    @property
    def interval_words(self) -> str:
        """Empty if there is none."""
        if self.interval is None:
            return ""
        by = "by Wilson" if self.groups is None else f"drawn from {self.groups:,} groups"
        low, high = self.interval
        return f"95 % interval {low:.2f} to {high:.2f}, {by}"

    @property
    def fairness(self) -> Fairness:
        return _fairness(client.accuracy for client in self.clients)

    @property
    def fine_tuned_fairness(self) -> Fairness:
        return _fairness(client.fine_tuned_accuracy for client in self.clients)

    def some_clients(self, most: int) -> list[ClientScore]:
        """All of them in their own order or, of more than so many, the worst."""
        if len(self.clients) <= most:
            return [*self.clients]
        return sorted(self.clients, key=lambda client: client.accuracy)[:most]

    @property
    def absent(self) -> list[str]:
        """The classes without images."""
        return [self.class_names[label] for label in self.scores.absent]

    @property
    def class_rows(self) -> list[ClassRow]:
        scores = self.scores
        columns = [scores.recall, scores.precision, scores.f1, scores.auc, scores.auc_error]
        values = zip(self.images_by_class, *(column.tolist() for column in columns), strict=True)
        return [ClassRow(name, *row) for name, row in zip(self.class_names, values, strict=True)]

    def to_json(self) -> Json:
        """First the numbers, then the counts that they follow from."""
        scores = self.scores
        found: Json = {
            **{name: getattr(self, name) for name in WRITTEN},
            "images": _whole(self.images),
            "accuracy": scores.accuracy,
            "most_frequent": self.most_frequent._asdict(),
            "balanced_accuracy": scores.balanced_accuracy,
            "macro_f1": scores.macro_f1,
            "auc": scores.mean_auc,
            "auc_error": scores.mean_auc_error,
            "calibration_error": scores.calibration_error,
            "loss": scores.loss,
            "classes_without_images": self.absent,
            "classes": [row._asdict() for row in self.class_rows],
            "notes": self.notes,
        }
        if self.clients:
            tuned = {"fine_tuned": self.fine_tuned_fairness._asdict()} if self.fine_tuned else {}
            found["clients"] = {
                "kind": self.clients_kind,
                **self.fairness._asdict(),
                **tuned,
                "scores": [
                    {
                        key: value
                        for key, value in asdict(client).items()
                        if key != "by_class" or value
                    }
                    for client in self.clients
                ],
            }
        return {**found, "counts": _counts_json(scores)}


# Of a record, as they are; the others are written with what follows from them.
WRITTEN = tuple(
    field.name
    for field in fields(EvaluationRecord)
    if field.name not in ("class_names", "scores", "clients", "clients_kind")
)


def by_sites(
    data: str, class_names: tuple[str, ...], found: Sequence[OwnScores], weights_sha256: str
) -> EvaluationRecord:
    """The last model, scored by sites on test images that nobody else has."""
    return EvaluationRecord(
        data=data,
        own_data=True,
        kind="test images at the sites",
        which="last",
        weights_sha256=weights_sha256,
        class_names=class_names,
        scores=sum_of_sites(found),
        clients=tuple(
            ClientScore(
                one.name,
                int(one.scores.images),
                one.scores.accuracy,
                wilson(float(one.scores.confusion.trace()), one.scores.images),
                by_class=tuple(int(count) for count in one.scores.images_by_class.tolist()),
            )
            for one in found
            if not one.withheld
        ),
        clients_kind=OWN_IMAGES,
        withheld={one.name: one.withheld for one in found if one.withheld},
    )


def sum_of_sites(found: Sequence[OwnScores]) -> Scores:
    return reduce(add, (one.scores.weighted(one.weight) for one in found))


def scored_by_sites(run: RecordedRun) -> EvaluationRecord | None:
    """The last model as sites with test images of their own have scored it, if they have."""
    if run.summary is None or not run.at_sites:
        return None
    for record in read_evaluations(run.folder):
        its_model = record.weights_sha256 == run.summary.weights_sha256
        if its_model and record.own_data and any(client.by_class for client in record.clients):
            return record
    return None


def _about_withholding(names: Sequence[str], words: Sequence[str]) -> str:
    verb = "withholds" if len(names) == 1 else "withhold"
    return f"without {some(names, MOST_SITES, LONGEST_NAME)}, which {verb} {', '.join(words)}"


def write_evaluation(folder: Path, record: EvaluationRecord, name: str = "") -> Path:
    path = folder / (name or record.file_name)
    write_whole(path, strict_json(record.to_json()) + "\n")
    return path


def read_evaluations(folder: Path) -> list[EvaluationRecord]:
    """All evaluations in a run folder: of the run's own data first, then by name."""
    paths = [path for path in sorted(folder.glob(f"{STEM}*.json")) if path.is_file()]
    records = [read_evaluation(path) for path in paths]
    return sorted(records, key=lambda record: (not record.own_data, record.which != "last"))


def read_evaluation(path: Path) -> EvaluationRecord:
    stored = parsed(read_whole(path), path)
    clients = stored.get("clients")
    try:
        names = [row["name"] for row in stored["classes"]]
        stored |= {
            "class_names": names,
            "clients": [] if clients is None else clients["scores"],
            "clients_kind": "" if clients is None else clients["kind"],
        }
        if len(names) > MOST_CLASSES:
            raise ValueError(f"{len(names)} classes")
        counts = validated(COUNTS, stored["counts"], path)
        stored["scores"] = counts.scores(len(names))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise damaged(path, str(error)) from error
    record = validated(EVALUATION, stored, path)
    if not record.scores.images:
        raise damaged(path, "it counts no image")
    if any(client.by_class and len(client.by_class) != len(names) for client in record.clients):
        raise damaged(path, "a client's images are not of these classes")
    return record


def _fairness(accuracies: Iterable[float | None]) -> Fairness:
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return fairness(torch.tensor(known, dtype=torch.float64))


# The counts. Most bins of odds are empty, so only the others are written: [bin, images].


def _counts_json(scores: Scores) -> Json:
    others, own = scores.odds.unbind(dim=1)
    return {
        "confusion": _numbers(scores.confusion),
        "odds_of_others": [_filled_bins(row) for row in others],
        "odds_of_own": [_filled_bins(row) for row in own],
        "confidence": _numbers(scores.confidence),
        "total_loss": scores.total_loss,
    }


def _filled_bins(bins: Tensor) -> list[list[float]]:
    filled = bins.nonzero().flatten().tolist()
    return [[place, _whole(bins[place].item())] for place in filled]


def _numbers(table: Tensor) -> list[list[float]]:
    return [[_whole(number) for number in row] for row in table.tolist()]


def _whole(number: float) -> float:
    """The number without a decimal point where there is nothing behind it."""
    return int(number) if number == int(number) else number


Bin = Annotated[list[Number], Field(min_length=2, max_length=2)]


class StoredCounts(BaseModel):  # the types of the fields are strict
    confusion: list[list[Number]]
    odds_of_others: list[list[Bin]]
    odds_of_own: list[list[Bin]]
    confidence: list[list[Number]]
    total_loss: Number

    def scores(self, classes: int) -> Scores:
        """ValueError if no images of so many classes can have these counts."""
        odds = torch.zeros(classes, 2, ODDS_BINS, dtype=torch.float64)
        for kind, rows in enumerate((self.odds_of_others, self.odds_of_own)):
            for row, bins in enumerate(rows):
                for place, images in bins:
                    if row >= classes or place not in range(ODDS_BINS):
                        raise ValueError(f"a bin {place:g} of class {row}")
                    odds[row, kind, int(place)] = images
        tables = {
            "confusion": self.confusion,
            "confidence": self.confidence,
            "total_loss": [self.total_loss],
        }
        tensors = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in tables.items()}
        return Scores.of_tensors({**tensors, "odds": odds}, classes)


COUNTS = TypeAdapter(StoredCounts)
EVALUATION = TypeAdapter(EvaluationRecord)
