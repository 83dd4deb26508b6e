"""Initial weights from a file: `model.weights`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from dcfl.errors import CheckpointError, ConfigError
from dcfl.messages import Tensors
from dcfl.models.parts import require_parts, within
from dcfl.system.storage import strict_json
from dcfl.system.tensor_files import read_stored
from dcfl.system.wording import some
from dcfl.tensors import checksum, load, not_finite

MODEL = "model.safetensors"  # in the folder of a run that has finished
DESCRIPTION = "dcfl"  # in the metadata of a run's model
TORCHS_OWN = (".pt", ".pth", ".bin", ".ckpt")


def weights_path(weights: str) -> Path:
    """The file that `model.weights` means: itself, or that of a run folder."""
    path = Path(os.path.abspath(os.path.expanduser(weights)))
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        without = f"has no {MODEL}: has the run finished?"
        reason = without if path.is_dir() else "no such file"
        raise ConfigError(f"model.weights: {path}: {reason}")
    return file


def weights_sha256(weights: str) -> str:
    """The hash of the file's bytes, wherever it lies."""
    path = weights_path(weights)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"model.weights: {path}: cannot be read ({error.strerror})") from error


def is_whole(weights: Tensors, description: str) -> bool:
    """Whether a run's model is as it was written: its description has the checksum of both."""
    try:
        shape = json.loads(description)
        claimed = shape.pop("checksum")
        return bool(claimed == checksum(dict(sorted(weights.items())), strict_json(shape)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def warm_start(model: nn.Module, weights: str, skipped: Sequence[str] = ()) -> None:
    """All tensors but those in `skipped` parts. Names and shapes must match; types may differ."""
    path = weights_path(weights)
    try:
        stored, metadata = read_stored(path)
    except CheckpointError as error:
        convert = (
            f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), "
            f"{path.with_suffix('.safetensors').name!r})"
        )
        how = f"; in Python, {convert} makes one of it" if path.suffix in TORCHS_OWN else ""
        raise ConfigError(f"model.weights: {path}: not a safetensors file{how}") from error
    if DESCRIPTION in metadata and not is_whole(stored, metadata[DESCRIPTION]):
        raise ConfigError(f"model.weights: {path}: damaged (its checksum is another one)")
    # A part may be the file's alone, such as a head that the model has not.
    unknown = [part for part in skipped if not any(within(name, [part]) for name in stored)]
    require_parts(model, unknown, "model.weights_skip")
    wanted, given = (
        {name: tensor for name, tensor in tensors.items() if not within(name, skipped)}
        for tensors in (model.state_dict(), stored)
    )
    _require_same(path, given, wanted)
    if odd := not_finite(given):
        raise ConfigError(f"model.weights: {path}: {odd} is not finite")
    load(model, given, model.state_dict().keys() - given.keys())


def _require_same(path: Path, given: Tensors, wanted: Tensors) -> None:
    shapes = [
        f"{name} is {list(given[name].shape)} and not {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    kinds = [
        f"{name} is {given[name].dtype} and not {tensor.dtype}"
        for name, tensor in wanted.items()
        if name in given and given[name].is_floating_point() != tensor.is_floating_point()
    ]
    lacking = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    problems = [
        f"it lacks {some(lacking, 3, 300)}" if lacking else "",
        f"the model has no {some(unknown, 3, 300)}" if unknown else "",
        some([*shapes, *kinds], 3, 300),
    ]
    if found := "; ".join(problem for problem in problems if problem):
        raise ConfigError(
            f"model.weights: {path} does not fit the model: {found}. model.weights_skip names "
            f'parts to leave as they are, such as ["classifier"]'
        )
