"""Named tensors in files with a checksum.

safetensors, because reading it runs no code. It has no checksum and sorts the names, so checksum
and order are in its metadata. Tensors have their own shape, row-major, as torch shows them.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from dcfl.errors import CheckpointError
from dcfl.messages import Tensors
from dcfl.system.memory import available_bytes
from dcfl.system.storage import replacing
from dcfl.system.transfers import to_host
from dcfl.tensors import canonical, checksum, copies, from_rows

LARGE = 2**30  # bytes
# What safetensors and torch raise for damaged or hostile bytes.
UNREADABLE = (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError)


def write_tensors(path: Path, tensors: Tensors, text: str, private: bool = False) -> None:
    """Write durably, with a text that `read_tensors` returns too. `private`: see `replacing`."""
    metadata = {
        "names": json.dumps(list(tensors)),
        "text": text,
        "layout": "own",
        "checksum": checksum(tensors, text),
    }
    rows = {name: tensor.contiguous() for name, tensor in to_host(tensors).items()}
    # Copied: safetensors refuses memory that two tensors share.
    write_stored(path, copies(rows), metadata, durable=True, private=private)


def write_stored(
    path: Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    durable: bool = False,
    private: bool = False,
) -> None:
    """Write contiguous CPU tensors as they are."""
    with replacing(path, durable, private) as partial:
        try:
            save_file(tensors, partial, metadata)
        except SafetensorError as error:  # what safetensors raises for a full disk
            raise OSError(str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Mapped and not copied: pages are read when used. CheckpointError if damaged."""
    stored, metadata = read_stored(path)
    try:
        # Files of dcfl 0.2 have the channels of kernels last.
        stored_tensors = canonical(stored) if "layout" in metadata else from_rows(stored)
        tensors = {name: stored_tensors[name] for name in json.loads(metadata["names"])}
        text = metadata["text"]
        same = metadata["checksum"] == checksum(tensors, text)
        whole = same and len(tensors) == len(stored_tensors)
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__})") from error
    if not whole:
        raise CheckpointError(f"{path}: damaged (its checksum is another one)")
    return tensors, text


def read_stored(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata as stored, mapped. CheckpointError if the file cannot be read."""
    if path.exists() and not path.is_file():  # a pipe would block for ever
        raise CheckpointError(f"{path}: damaged (not a file)")
    # Before it is mapped. That it is as long as its header says, safetensors checks itself.
    size = path.stat().st_size if path.exists() else 0
    if size > LARGE and size > available_bytes():
        raise CheckpointError(f"{path}: {size / 2**30:.0f} GB, more than the memory that is free")
    try:
        with safe_open(path, "pt") as stored:
            metadata = stored.metadata() or {}
        return load_file(path), metadata
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not there any more") from error
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__})") from error
