"""Reads JSON and arrays of a run folder, and checks them, because others may have written them.

The rest of the code relies on these checks. Unknown keys pass: they belong to other versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from dcfl.data.npz import read_arrays
from dcfl.errors import DatasetCorrupt, RunFolderError
from dcfl.system.json_types import Json

T = TypeVar("T")


def parsed(text: str | bytes, path: Path) -> Json:
    """Parse a JSON object; NaN and infinity, which earlier versions wrote, become None."""
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, f"{type(value).__name__} where an object should be")
    return value


def validated(kind: TypeAdapter[T], value: Json, path: Path, strict: bool | None = None) -> T:
    """Convert the value to its expected type; raises RunFolderError if it does not match."""
    try:
        return kind.validate_python(value, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({' '.join(reason.split())[:200]})")


def read_partition(path: Path) -> dict[str, NDArray[Any]]:
    """Read the samples per client and class, the class names and the hash of the split."""
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
