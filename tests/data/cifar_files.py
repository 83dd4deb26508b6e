"""Small CIFAR files in the official form: pickles as Python 2 wrote them."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcfl.data.readers import cifar

SMALL10 = replace(cifar.CIFAR10_PYTHON, train_rows=3, test_rows=2)
SMALL100 = replace(cifar.CIFAR100_PYTHON, train_rows=4, test_rows=2)
SMALL = {"cifar10": SMALL10, "cifar100": SMALL100}

PUT = b"q\x01"


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode("latin-1")


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    return b"J" + struct.pack("<i", value)


def several(items: list[bytes]) -> bytes:
    return b"]" + PUT + b"(" + b"".join(items) + b"e"


def array(content: bytes, shape: bytes, dtype: str = "u1", module: str = "numpy.core") -> bytes:
    return (
        f"c{module}.multiarray\n_reconstruct\n".encode()
        + (b"q\x07cnumpy\nndarray\nq\x08K\x00\x85" + text("b") + b"\x87Rq\x09(K\x01" + shape)
        + (b"cnumpy\ndtype\nq\x0a" + text(dtype) + b"K\x00K\x01\x87Rq\x0b(K\x03" + text("|"))
        + (b"NNN" + integer(-1) * 2 + b"K\x00tb\x89")
        + (b"T" + struct.pack("<i", len(content)) + content + b"tb")
    )


def pixels_of(planes: NDArray[np.uint8]) -> bytes:
    rows, width = planes.shape
    return array(planes.tobytes(), integer(rows) + integer(width) + b"\x86")


def dictionary(items: dict[str, bytes]) -> bytes:
    pairs = b"".join(text(key) + PUT + value for key, value in items.items())
    return b"\x80\x02}" + PUT + b"(" + pairs + b"u."


def batch(
    planes: NDArray[np.uint8], labels: NDArray[np.int64], key: str = "labels", **other: bytes
) -> bytes:
    values = several([integer(int(label)) for label in labels])
    names = several([text(f"image_{row}.png") for row in range(len(labels))])
    return dictionary({key: values, "data": pixels_of(planes), "filenames": names, **other})


def random_batch(rows: int, classes: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    planes = generator.integers(0, 256, (rows, 3072), dtype=np.uint8)
    return planes, generator.integers(0, classes, rows)


def write(folder: Path, layout: cifar.Layout) -> Path:
    """A whole small data set in that layout; returns its own folder."""
    place = folder / layout.folder
    place.mkdir(parents=True)
    for number, file in enumerate((*layout.train, layout.test)):
        rows = layout.test_rows if file == layout.test else layout.train_rows
        planes, labels = random_batch(rows, layout.classes, number)
        (place / file).write_bytes(batch(planes, labels, layout.label_key))
    names = [f"class_{label}" for label in range(layout.classes)]
    content = dictionary({layout.names_key: several([text(name) for name in names])})
    (place / layout.names).write_bytes(content)
    return place
