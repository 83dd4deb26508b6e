"""What the files of a run folder hold, and whether they do: nothing behind this asks again.

Keys that are not known here are another version's, and let through.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from dcfl.data.npz import read_arrays
from dcfl.errors import DatasetCorrupt, RunFolderError
from dcfl.models import ModelSettings

Row = dict[str, Any]
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=-1e100, le=1e100)]  # not NaN, and no picture breaks on it
Percent = Annotated[float, Field(ge=0, le=100.001)]  # rounding may add a little
Seconds = Annotated[float, Field(ge=0, le=1e12)]


def _text(value: object) -> object:
    """Not pydantic's own, which refuses what stands for bytes of a path that are not UTF-8."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError("a text of reasonable length is expected")
    return value


LONGEST_TEXT = 100_000
Text = Annotated[Any, PlainValidator(_text)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Plain = str | int | float | bool | None
Environment = dict[str, Plain | list[Plain] | dict[str, Plain]]


class Known(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class SiteScore(Known):
    client: Count
    accuracy: Percent
    images: Count
    weight: Annotated[float, Field(ge=0, le=1)]


class RoundRow(Known):
    """Of rounds.jsonl."""

    round: Count
    accuracy: Percent | None
    max_accuracy: Percent | None
    ema_accuracy: Percent | None
    loss: Number | None
    seconds: Seconds
    bytes_up: Count
    bytes_down: Count
    sampled: Count
    ok: Count
    failed: Count
    rejected: Count
    late: Count = 0
    dropped: Count = 0
    used: Count = 0
    client_accuracy: Percent | None = None
    max_client_accuracy: Percent | None = None
    ema_client_accuracy: Percent | None = None
    worst_decile_accuracy: Percent | None = None
    train_loss: Number | None = None
    evaluation_seconds: Seconds = 0.0
    notices: list[Text] = []
    sites: list[SiteScore] = []

    @model_validator(mode="after")
    def _whole(self) -> RoundRow:
        if self.accuracy is not None and None in (self.max_accuracy, self.ema_accuracy):
            raise ValueError("accuracy without max_accuracy or ema_accuracy")
        return self


class ClientRow(Known):
    """Of clients.jsonl."""

    round: Count
    client: Count
    outcome: Text
    reason: Text
    num_steps: Count = 0
    metrics: dict[str, Number | None] = {}


class Summary(Known):
    method: Text = ""
    dataset: Text = ""
    rounds: Count = 0
    max_accuracy: Percent | None = None
    ema_accuracy: Percent | None = None
    final_accuracy: Percent | None = None
    max_client_accuracy: Percent | None = None
    ema_client_accuracy: Percent | None = None
    seconds: Seconds = 0.0
    failed: Count = 0
    late: Count = 0
    rejected: Count = 0
    weights_sha256: Text = ""


class DataTable(Known):
    dataset: Text = ""
    clients: Annotated[int, Field(ge=1, lt=2**31)] = 1
    partition: Text = ""
    alpha: float = 1.0
    seed: Seed | Literal["federation"] = 0


class FederationTable(Known):
    rounds: Count = 1
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Seed = 0


class Named(Known):
    name: Text = ""


class Tables(Known):
    """Of config.toml: what is shown of it. A run that goes on has all of it checked as a config."""

    data: DataTable
    federation: FederationTable
    method: Named
    model: Named = Named()


class ModelShape(Known):
    """Of model.safetensors: how to build the model again."""

    settings: Row
    channels: Annotated[int, Field(ge=1, le=4096)]
    size: Annotated[int, Field(ge=1, le=4096)]
    classes: Annotated[int, Field(ge=2, le=10**6)]
    class_names: list[Text]
    mean: list[Number]
    std: list[Annotated[float, Field(gt=0, le=1e100)]]

    @model_validator(mode="after")
    def _lengths(self) -> ModelShape:
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} names of {self.classes} classes")
        if {len(self.mean), len(self.std)} != {self.channels}:
            raise ValueError("a mean and a std for each channel")
        return self


ENVIRONMENT: TypeAdapter[Environment] = TypeAdapter(Environment)
SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)


def parsed(text: str | bytes, path: Path) -> Row:
    """An object of JSON; NaN and infinity, which earlier versions wrote, are None."""
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(found, dict):
        raise damaged(path, f"{type(found).__name__} where an object should be")
    return found


def checked(kind: type[Known] | TypeAdapter[Any], value: Row, path: Path) -> Row:
    """The same value, if it is what it should be."""
    try:
        if isinstance(kind, TypeAdapter):
            kind.validate_python(value, strict=True)
        else:
            kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error
    return value


def damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({' '.join(reason.split())[:200]})")


def read_partition(path: Path) -> dict[str, NDArray[Any]]:
    """The samples per client and class, the classes' names, and the hash of the split."""
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
