"""The rows of a run's files: typed, checked when read, mappings for whoever picks by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from dcfl.data.readers.npz import read_arrays
from dcfl.engines.engine import SiteScore
from dcfl.errors import ConfigError, DatasetCorrupt, RunFolderError
from dcfl.messages import LOG
from dcfl.system.json_types import Count, Flag, Json, Number, Percent, Seconds, Seed, Text
from dcfl.system.wording import install_command

if TYPE_CHECKING:
    from pandas import DataFrame


T = TypeVar("T")


def parsed(text: str | bytes, path: Path) -> Json:
    """Parse a JSON object, without NaN and infinity."""

    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        value = json.loads(text, parse_constant=refused)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, f"{type(value).__name__} where an object should be")
    return value


def validated(kind: TypeAdapter[T], value: Json, path: Path, strict: bool | None = None) -> T:
    try:
        return kind.validate_python(value, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({' '.join(reason.split())[:200]})")


def read_partition(path: Path) -> dict[str, NDArray[Any]]:
    try:
        stored = read_arrays(path, ("counts", "class_names", "sha256"))
    except DatasetCorrupt as error:
        raise damaged(path, str(error).removeprefix(f"{path}: ")) from error
    counts, names, sha256 = stored["counts"], stored["class_names"], stored["sha256"]
    if counts.dtype.kind not in "iu" or counts.ndim != 2 or not counts.size:
        raise damaged(path, f"counts: {list(counts.shape)} of {counts.dtype}")
    if counts.min() < 0 or counts.max() > 2**31:
        raise damaged(path, f"counts from {counts.min()} to {counts.max()}")
    if names.dtype.kind != "U" or names.shape != counts.shape[1:]:
        raise damaged(path, f"class_names: {list(names.shape)} of {names.dtype}")
    if sha256.dtype.kind != "U" or sha256.ndim:
        raise damaged(path, f"sha256: {list(sha256.shape)} of {sha256.dtype}")
    return {**stored, "counts": counts.astype(np.int64)}


@dataclass(frozen=True)
class Row(Mapping[str, Any]):
    """A record with a JSON form. Also a mapping, for code that picks a quantity by name:
    `row["accuracy"]` is `row.accuracy`."""

    @classmethod
    def from_json(cls, value: Json, path: Path) -> Self:
        """Read and check a row; `path` is for the error message."""
        return validated(cls._adapter(), value, path)

    @classmethod
    @cache  # takes a millisecond to build
    def _adapter(cls) -> TypeAdapter[Self]:
        return TypeAdapter(cls)

    def to_json(self) -> Json:
        return {name: value for name, value in asdict(self).items() if self._is_written(name)}

    def _is_written(self, name: str) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return filter(self._is_written, self._names())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @classmethod
    @cache
    def _names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True, kw_only=True)
class RoundRow(Row):
    """A line of rounds.jsonl. Accuracies are percentages."""

    round: Count  # its number, counted from 1
    accuracy: Percent | None  # of the new global model; None: it was not scored
    max_accuracy: Percent | None  # the highest so far
    ema_accuracy: Percent | None  # the moving average so far
    # The mean over all clients, each on its own test images if there are `sites`, else on its own
    # mix of classes.
    client_accuracy: Percent | None = None
    max_client_accuracy: Percent | None = None  # the highest of that mean so far
    ema_client_accuracy: Percent | None = None  # its moving average so far
    worst_decile_accuracy: Percent | None = None  # the mean over the worst tenth of the clients
    loss: Number | None  # mean cross-entropy of the global model on the images of `accuracy`
    train_loss: Number | None = None  # mean over all steps of all clients whose reply is valid
    seconds: Seconds  # that training and evaluating took
    evaluation_seconds: Seconds = 0.0  # without those that overlapped with training
    bytes_up: Count  # that the clients sent
    bytes_down: Count  # that were sent to them
    sampled: Count  # clients that were asked
    ok: Count  # of those, with a valid reply
    failed: Count  # that reported an error, or were lost
    late: Count = 0  # that missed the deadline
    rejected: Count  # whose reply was refused
    used: Count  # replies that entered the new model; 0: it did not change
    dropped: Count = 0  # replies that came after the deadline
    sites: tuple[SiteScore, ...] = ()  # clients with test images of their own, on those
    # Clients whose test images belong to the accuracy and were not scored: there is none then.
    absent: tuple[Count, ...] = ()
    notices: tuple[Text, ...] = ()  # warnings of this round
    virtual_time: Seconds | None = None  # since the run's beginning, with a clock
    logged: Mapping[str, Number] = field(default_factory=dict)  # by `client.log` and the server

    def __post_init__(self) -> None:
        if self.accuracy is not None and None in (self.max_accuracy, self.ema_accuracy):
            raise ValueError("accuracy without max_accuracy or ema_accuracy")

    def _is_written(self, name: str) -> bool:
        if name == "virtual_time":
            return self.virtual_time is not None
        optional = ("sites", "absent", "notices", "logged")
        return name not in optional or bool(getattr(self, name))

    def __getitem__(self, name: str) -> Any:
        """A number of one's own is `row["log/NAME"]`; None if the round has none."""
        own = name.startswith(LOG)
        return self.logged.get(name.removeprefix(LOG)) if own else super().__getitem__(name)


@dataclass(frozen=True)
class ClientRow(Row):
    """A line of clients.jsonl."""

    round: Count  # in which it was asked
    client: Count  # its number, counted from 0
    outcome: Text  # "ok", "failed", "late" or "rejected"
    reason: Text  # why it is not "ok"
    num_examples: Count = 0  # images that it trained on
    num_steps: Count = 0  # of its optimiser
    bytes_up: Count = 0  # that it sent
    bytes_down: Count = 0  # that it was sent
    metrics: Mapping[str, Number | None] = field(default_factory=dict)  # what it says of its visit
    used: Flag = False  # whether its reply entered the new model
    site: Text = ""  # its name, if sites have names
    own_accuracy: Percent | None = None  # of the new global model, as in client_accuracy
    began: Seconds | None = None  # its visit, in virtual seconds
    ended: Seconds | None = None  # likewise
    staleness: Count = 0  # steps of the server's model during the visit

    @property
    def seconds(self) -> float:
        """How long the client trained."""
        return self.metrics.get("seconds") or 0.0

    def _is_written(self, name: str) -> bool:
        if name in ("began", "ended", "staleness"):
            return self.began is not None
        return name != "site" or bool(self.site)


@dataclass(frozen=True)
class PersonalRow(Row):
    """A line of personal.jsonl: what the global model and its own are worth to a client after the
    last round, on its own mix of classes or its own test images."""

    client: Count
    global_accuracy: Percent | None = None
    personal_accuracy: Percent | None = None  # None: it has never trained
    site: Text = ""  # its name, if sites have names
    # Its own model on each client's test images, if clients have such; None: nobody may know it.
    on_sites: tuple[Percent | None, ...] = ()
    withheld: tuple[Text, ...] = ()  # its "personal" part from other sites, its "scores"

    def _is_written(self, name: str) -> bool:
        return name not in ("site", "on_sites", "withheld") or bool(getattr(self, name))


@dataclass(frozen=True)
class ClassRecall:
    """How many of a class's test images the final model recognises."""

    name: Text
    images: Count
    recall: Percent | None  # None without test images

    @property
    def missed(self) -> bool:
        """It has test images, and not one is recognised."""
        return self.recall == 0


@dataclass(frozen=True)
class Summary(Row):
    """summary.json: the result of a run."""

    method: Text = ""  # its name
    dataset: Text = ""  # its name
    rounds: Count = 0  # that were trained
    max_accuracy: Percent | None = None  # of the global model in its best round
    ema_accuracy: Percent | None = None  # its moving average after the last round
    final_accuracy: Percent | None = None  # of the last global model
    recalls: tuple[ClassRecall, ...] = ()  # of the last global model, class by class
    client_accuracy: Percent | None = None  # of the last global model, as in a RoundRow
    max_client_accuracy: Percent | None = None  # of that mean in its best round
    ema_client_accuracy: Percent | None = None  # its moving average
    worst_decile_accuracy: Percent | None = None  # of the last global model, as in a RoundRow
    own_images: Flag = False  # client accuracies are on the clients' own test images
    personal_accuracy: Percent | None = None  # mean over the clients' own models, if they have such
    worst_decile_personal_accuracy: Percent | None = None  # the mean over the worst tenth of those
    personal_models: Count = 0  # how many; clients that never took part have none
    most_frequent_accuracy: Percent | None = None  # of always naming training's most frequent class
    most_frequent_client_accuracy: Percent | None = None  # of each client its own, on average
    worst_decile_most_frequent_accuracy: Percent | None = None  # likewise, over the worst tenth
    seconds: Seconds = 0.0  # that the run took
    bytes_up: Count = 0  # that all clients sent, over all rounds
    bytes_down: Count = 0  # that they were sent
    sampled: Count = 0  # how often a client was asked
    ok: Count = 0  # of those, with a valid reply
    failed: Count = 0  # with an error, or lost
    late: Count = 0  # past the deadline
    rejected: Count = 0  # with a reply that was refused
    dropped: Count = 0  # replies that came after the deadline
    parameters: Count = 0  # of the model
    clients: Count = 0  # that there are
    seed: Seed = 0  # federation.seed
    partition_sha256: Text = ""  # which client owned which image
    weights_sha256: Text = ""  # of the last global model
    best_round: Count | None = None  # that of best.safetensors, if it was kept
    best_accuracy: Percent | None = None  # of the global model in that round
    best_sha256: Text = ""  # of its weights
    stopped: Text = ""  # why the run ended before its last round
    evaluate_every: Count = 1  # MAX and EMA are over every so many rounds, and the last
    epsilon: Number | None = None  # the most privacy any client spent; None: no guarantee
    delta: Number | None = None  # at which; None: without [privacy]
    most_visits: Count | None = None  # of one client, which the privacy is accounted for
    secret_noise: Flag | None = None  # whether nobody can work the noise out again
    clock: Text = ""  # its settings in a line
    virtual_time: Seconds | None = None  # that the run took

    @property
    def judged_accuracy(self) -> float | None:
        """What the run is judged by: its last model or, if clients have models of their own, those,
        each on its client's own images."""
        return self.personal_accuracy if self.personal_models else self.final_accuracy

    @property
    def lost(self) -> int:
        """Replies that did not arrive or were unusable."""
        return self.failed + self.late + self.rejected

    @property
    def ending(self) -> str:
        """Why there is nothing to resume."""
        if self.stopped:
            return f"{self.stopped}; there is nothing to resume"
        return (
            f"the run has ended after round {self.rounds}; there is nothing to resume, but more "
            f"rounds make it longer"
        )

    def hash_of(self, which: Literal["last", "best"]) -> str:
        """The hash of that model's weights."""
        return self.best_sha256 if which == "best" else self.weights_sha256

    def _is_written(self, name: str) -> bool:
        if name == "evaluate_every":
            return self.evaluate_every != 1
        if name in ("stopped", "recalls", "own_images", "clock", "virtual_time"):
            return bool(getattr(self, name))
        if "personal" in name:
            return bool(self.personal_models)
        if name.startswith("best_"):
            return self.best_round is not None
        if "most_frequent" in name:
            return getattr(self, name) is not None
        private = name in ("epsilon", "delta", "most_visits", "secret_noise")
        return not private or self.delta is not None


def data_frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> DataFrame:
    """A row each; what a row lacks is missing there."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ConfigError(f"to_pandas needs {error.name}: {install_command('pandas')}") from error
    frame = pandas.DataFrame([dict(row) for row in rows])
    return frame.set_index(index) if index else frame
