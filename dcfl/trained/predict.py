"""What a trained model says of pictures: a label, and how probable it and the next ones are. It
reads them as training has."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import DataSettings, Images, Preparation
from dcfl.data.catalogue import load_dataset, reading_of
from dcfl.data.client_data import normalises_by_batch
from dcfl.data.identical import Digests, are_among, read_digests
from dcfl.data.readers.npz import read_embedded
from dcfl.data.readers.pictures import Reading, decode_all, images, in_grey
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, DatasetMissing, require
from dcfl.models import FeatureModel, Output
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Network, Which, load_model
from dcfl.system.json_types import Json
from dcfl.system.transfers import on_device
from dcfl.system.wording import printable
from dcfl.trained.subject import data_settings, inputs_of, require_finite, sees_pictures

BLOCK = 100  # pictures in memory at a time, whatever their number


class Found(NamedTuple):
    path: Path
    label: int | None  # of the folder's class, if the picture lies in a folder of that name


def find_pictures(
    places: Iterable[str | Path], class_names: Sequence[str]
) -> Iterator[tuple[Found, ...]]:
    """The pictures in blocks, those of a folder in the order of their names. Refuses at once a
    place that does not exist, or where no picture is."""
    paths = [Path(place) for place in places]
    for path in paths:
        if not path.exists():
            raise DatasetMissing(f"{printable(path)}: no such file or folder")
        if path.is_dir() and next(images(path), None) is None:
            raise DatasetMissing(f"{printable(path)}: no picture in it")
    if not paths:
        raise DatasetMissing("no picture given: name some, or folders of them")
    labels = {name: label for label, name in enumerate(class_names)}
    pictures = (found for path in paths for found in _in(path, labels))
    return iter(lambda: tuple(islice(pictures, BLOCK)), ())


def _in(path: Path, labels: dict[str, int]) -> Iterator[Found]:
    if not path.is_dir():
        yield Found(path, None)
        return
    for picture in sorted(images(path)):
        # A class folder inside, or else the folder itself or, for CLASS/patient/left, one of the
        # two above. Class names are as they can be shown.
        around = [folder.name for folder in (path.resolve(), *path.resolve().parents)[:3]]
        below = (*picture.relative_to(path).parts[:-1], *around)
        folders = (printable(name) for name in below)
        yield Found(picture, next((labels[name] for name in folders if name in labels), None))


class Rows(NamedTuple):
    """Inputs that are no pictures in files of their own, such as feature vectors."""

    pixels: Tensor
    found: list[Found]


def rows_in(path: Path, class_names: Sequence[str]) -> Rows:
    """Of an .npz file: what `dcfl embed` has written of pictures, or a data set, to train on and to
    test on."""
    known: dict[str | None, int] = {name: label for label, name in enumerate(class_names)}
    if (embedded := read_embedded(path)) is not None:
        labels = (known.get(embedded.class_of(row)) for row in range(len(embedded.features)))
        found = [Found(Path(f), label) for f, label in zip(embedded.files, labels, strict=True)]
        return Rows(torch.from_numpy(embedded.features), found)
    dataset = load_dataset(DataSettings(dataset=f"npz:{path}"))
    parts = (("train", dataset.train), ("test", dataset.test))
    found = [
        Found(path / part / str(row), known.get(dataset.class_names[label]))
        for part, images in parts
        for row, label in enumerate(images.labels.tolist())
    ]
    return Rows(torch.cat([images.pixels for _, images in parts]), found)


class Seen(NamedTuple):
    output: Output | None  # on the CPU; None if no picture could be read
    # Each picture with its row of the output, or with why it could not be read.
    pictures: list[tuple[Found, int | str]]
    known: Sequence[bool | None]  # by row: whether the model was trained on it; None: not known


@dataclass(frozen=True)
class Classifier:
    folder: Path  # of the run
    model: FeatureModel
    preparation: Preparation
    reading: Reading | None  # None: it was not trained on what a picture's file holds
    seen: Digests | None = None  # of the pictures that it was trained on

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an input; see FeatureModel."""
        return inputs_of(self.model)[1]

    def pixels(self, paths: Sequence[Path]) -> tuple[Tensor, dict[int, str]]:
        """uint8 [n, H, W, C] of the pictures that can be read, and why the others cannot."""
        rows, reasons = decode_all(paths, self._pictures())
        if self.shape[2] == 1:
            rows = in_grey(rows)
        whole = [position for position in range(len(paths)) if position not in reasons]
        return torch.from_numpy(rows)[whole], reasons

    def _pictures(self) -> Reading:
        """Refuses a model that does not look at pictures."""
        if self.reading is not None:
            return self.reading
        where, shape = printable(self.folder), self.shape
        if sees_pictures(self.model):
            raise ConfigError(
                f"{where}: its images have {shape[2]} channels, and pictures have 1 or 3"
            )
        kind = "feature vectors" if shape[:2] == (1, 1) else f"inputs of {list(shape)}"
        raise ConfigError(f"{where}: it was trained on {kind}, not on pictures: give an .npz file")

    def look_at(self, places: Iterable[str | Path]) -> Iterator[Seen]:
        """A hundred inputs at a time, of all that are at these places."""
        paths = [Path(place) for place in places]
        files = [path for path in paths if path.suffix == ".npz" and path.is_file()]
        if not files:
            self._pictures()
            return map(self._see, find_pictures(paths, self.model.class_names))
        if len(files) < len(paths):
            raise ConfigError("pictures and .npz files: take one kind at a time")
        found = [self._fitting(path) for path in files]
        return (seen for rows in found for seen in self._of_rows(rows))

    def _fitting(self, path: Path) -> Rows:
        rows = rows_in(path, self.model.class_names)
        shape = tuple(rows.pixels.shape[1:])
        got = (1, 1, *shape) if len(shape) == 1 and len(self.shape) == 3 else shape
        if got != self.shape:
            raise ConfigError(
                f"{printable(path)} has inputs of {list(shape)}, and {printable(self.folder)} was "
                f"trained on {list(self.shape)}"
            )
        return rows

    def _of_rows(self, rows: Rows) -> Iterator[Seen]:
        for at in range(0, len(rows.found), BLOCK):
            block = rows.found[at : at + BLOCK]
            yield self._judged(rows.pixels[at : at + BLOCK], [*zip(block, count())])

    def _see(self, block: tuple[Found, ...]) -> Seen:
        pixels, reasons = self.pixels([found.path for found in block])
        row = count()
        places = enumerate(block)
        rows = [(found, reasons[at] if at in reasons else next(row)) for at, found in places]
        return self._judged(pixels, rows) if len(pixels) else Seen(None, rows, [])

    @torch.inference_mode()
    def _judged(self, pixels: Tensor, rows: list[tuple[Found, int | str]]) -> Seen:
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            output = self.model(self.preparation.clean(on_device(pixels, device)))
        output = output.mapped(lambda tensor: tensor.float().cpu())
        require_finite(self.folder, output.logits)
        if self.seen is None:
            return Seen(output, rows, [None] * len(pixels))
        digests = Images(pixels, torch.zeros(len(pixels), dtype=torch.int64)).digests
        return Seen(output, rows, are_among(digests, self.seen).tolist())


def open_classifier(folder: Path, which: Which = "last", network: Network = None) -> Classifier:
    """Open a run's model."""
    model = load_model(folder, which, model=network)
    preparation, shape = inputs_of(model)
    if normalises_by_batch(model):
        warnings.warn(
            'model.norm = "batch-nostats": what the model says of a picture depends on the '
            "pictures beside it; give it many at once that mix the classes",
            stacklevel=3,
        )
    reading = None
    if sees_pictures(model) and shape[2] in (1, 3):
        data = data_settings(RecordedRun.open(folder))
        reading = replace(reading_of(data), size=shape[0], broken="skip", unreadable="skip")
    model, seen = model.to(choose_devices("auto")[0]), read_digests(folder)
    return Classifier(folder, model, preparation, reading, seen)


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
