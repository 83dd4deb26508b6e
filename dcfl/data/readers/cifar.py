"""CIFAR-10 and CIFAR-100 in their official layouts, read without trusting the files.

The official python files are pickles, and a pickle is a program. It is never run here: the opcodes
that the official files use build plain values, every other opcode and every other name is refused,
and what comes out is checked for shapes, counts and label range.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.data.readers.arrays import Arrays
from dcfl.errors import DatasetCorrupt, DatasetMissing


class Refused(Exception):
    """Why a file is refused."""


@dataclass
class PickledArray:
    """Stands for a numpy array that the pickle would build."""

    shape: Any = None
    content: memoryview | bytes = memoryview(b"")
    dtype: str = "u1"  # as numpy calls it; little-endian


@dataclass(frozen=True)
class _Dtype:
    """Stands for a dtype that is allowed."""

    code: str


_NAMES = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
}


@dataclass(frozen=True)
class _Name:
    """A name that the pickle looks up. It stands for nothing that could be called."""

    name: str


@dataclass(frozen=True)
class Dialect:
    """What a kind of file consists of. Anything else is refused."""

    steps: Mapping[str, Callable[[_Machine, Any, int], None]]  # by opcode
    names: Mapping[str, str]  # that it may look up, and what they stand for
    dtypes: frozenset[str]  # of its arrays


def unpickled(data: bytes, opcodes: int, dialect: Dialect | None = None) -> dict[str, Any]:
    """The dictionary that the pickle describes; at most `opcodes` steps and as many values. Without
    a dialect, that of CIFAR's files."""
    dialect = dialect or CIFAR
    machine = _Machine(data, opcodes, dialect)
    for count, (opcode, argument, position) in enumerate(genops(data)):
        step = dialect.steps.get(opcode.name)
        if step is None:
            raise Refused(f"the pickle opcode {opcode.name} has no business in it")
        if count >= opcodes:
            raise Refused(f"a pickle of more than {opcodes:,} opcodes")
        step(machine, argument, position or 0)
    value = machine.stack.pop()
    if type(value) is not dict or machine.stack or machine.outer or position != len(data) - 1:
        raise Refused("not one dictionary")
    return value


class _Machine:
    """The pickle stack machine without its dangerous half: nothing is imported or called.

    Dictionary keys are strings, since hashing nested tuples of a hostile file may take for ever.
    """

    def __init__(self, data: bytes, indices: int, dialect: Dialect) -> None:
        self.data = memoryview(data)
        self.indices = indices
        self.dialect = dialect
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each open mark
        self.memo: dict[int, Any] = {}

    def nothing(self, argument: Any, position: int) -> None:
        pass

    def push(self, argument: Any, position: int) -> None:
        self.stack.append(argument)

    def push_content(self, argument: str, position: int) -> None:
        start = position + 5  # the opcode and a length of four bytes
        self.stack.append(self.data[start : start + len(argument)])

    def push_false(self, argument: Any, position: int) -> None:
        self.stack.append(False)

    def push_true(self, argument: Any, position: int) -> None:
        self.stack.append(True)

    def push_bytes(self, argument: bytes | bytearray, position: int) -> None:
        self.stack.append(bytes(argument))

    def push_tuple(self, argument: Any, position: int) -> None:
        self.stack.append(())

    def push_list(self, argument: Any, position: int) -> None:
        self.stack.append([])

    def push_dict(self, argument: Any, position: int) -> None:
        self.stack.append({})

    def push_name(self, argument: str, position: int) -> None:
        if argument not in self.dialect.names:
            raise Refused(f"it asks for {argument[:60]!r}")
        self.stack.append(_Name(self.dialect.names[argument]))

    def push_stacked_name(self, argument: Any, position: int) -> None:
        self.push_name(" ".join(map(str, self.last(2))), position)

    def memoize(self, argument: Any, position: int) -> None:
        self.put(len(self.memo), position)

    def put(self, index: int, position: int) -> None:
        if index > self.indices:
            raise Refused("a memo index out of all proportion")
        self.memo[index] = self.stack[-1]

    def get(self, index: int, position: int) -> None:
        self.stack.append(self.memo[index])

    def mark(self, argument: Any, position: int) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Refused("a pickle that takes more than it has")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def make_tuple(self, argument: Any, position: int) -> None:
        items = self.since_mark()  # changes which list is the stack
        self.stack.append(tuple(items))

    def tuple1(self, argument: Any, position: int) -> None:
        self.stack.append(tuple(self.last(1)))

    def tuple2(self, argument: Any, position: int) -> None:
        self.stack.append(tuple(self.last(2)))

    def tuple3(self, argument: Any, position: int) -> None:
        self.stack.append(tuple(self.last(3)))

    def append(self, argument: Any, position: int) -> None:
        self._extend(self.last(1))

    def appends(self, argument: Any, position: int) -> None:
        self._extend(self.since_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise Refused("values added to what is not a list")
        self.stack[-1].extend(items)

    def set_item(self, argument: Any, position: int) -> None:
        self._update(self.last(2))

    def set_items(self, argument: Any, position: int) -> None:
        self._update(self.since_mark())

    def _update(self, items: list[Any]) -> None:
        keys, values = items[::2], items[1::2]
        if type(self.stack[-1]) is not dict or any(type(key) is not str for key in keys):
            raise Refused("a dictionary whose keys are not strings")
        self.stack[-1].update(zip(keys, values, strict=True))

    def reduce(self, argument: Any, position: int) -> None:
        """The calls that make an array, a dtype or a number are understood, and no other."""
        name, arguments = self.last(2)
        if type(name) is not _Name or type(arguments) is not tuple:
            raise Refused("it calls what cannot be called")
        match name.name, arguments:
            case "reconstruct", (_Name("ndarray"), *_):
                made: Any = PickledArray()
            case "dtype", (str(code), *_) if code in self.dialect.dtypes:
                made = _Dtype(code)
            case "frombuffer", (bytes(content), _Dtype(code), shape, "C"):
                made = PickledArray(shape, content, code)
            case "scalar", (_Dtype(code), bytes(content)) if len(content) == int(code[1:]):
                made = int.from_bytes(content, "little", signed=code[0] == "i")
            case _:
                raise Refused(f"an array that is not of {self._allowed}")
        self.stack.append(made)

    def build(self, argument: Any, position: int) -> None:
        state = self.last(1)[0]
        target = self.stack[-1]
        if type(target) is _Dtype and type(state) is tuple:
            if target.code != "u1" and state[1:2] != ("<",):
                raise Refused("numbers whose bytes are in another order")
            return
        if type(target) is not PickledArray or type(state) is not tuple or len(state) != 5:
            raise Refused("it changes what is not an array")
        _, shape, dtype, fortran_order, content = state
        known = type(dtype) is _Dtype and type(content) in (memoryview, bytes)
        if not known or fortran_order is True:
            raise Refused(f"an array that is not of {self._allowed}")
        target.shape, target.content, target.dtype = shape, content, dtype.code

    @property
    def _allowed(self) -> str:
        return "unsigned bytes" if self.dialect.dtypes == {"u1"} else "whole numbers"


# What the official files of CIFAR consist of, and nothing else.
_STEPS: dict[str, Callable[[_Machine, Any, int], None]] = {
    "PROTO": _Machine.nothing,
    "STOP": _Machine.nothing,
    "MARK": _Machine.mark,
    "BININT": _Machine.push,
    "BININT1": _Machine.push,
    "BININT2": _Machine.push,
    "NONE": _Machine.push,  # its argument is None
    "NEWFALSE": _Machine.push_false,
    "SHORT_BINSTRING": _Machine.push,
    "BINSTRING": _Machine.push_content,
    "EMPTY_LIST": _Machine.push_list,
    "EMPTY_DICT": _Machine.push_dict,
    "GLOBAL": _Machine.push_name,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.make_tuple,
    "TUPLE1": _Machine.tuple1,
    "TUPLE2": _Machine.tuple2,
    "TUPLE3": _Machine.tuple3,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
CIFAR = Dialect(_STEPS, _NAMES, frozenset({"u1"}))

# What Python 3 and numpy write for dictionaries with lists and arrays of whole numbers.
_NEWER_STEPS: dict[str, Callable[[_Machine, Any, int], None]] = {
    "FRAME": _Machine.nothing,
    "NEWTRUE": _Machine.push_true,
    "LONG1": _Machine.push,
    "EMPTY_TUPLE": _Machine.push_tuple,
    "BINUNICODE": _Machine.push,
    "SHORT_BINUNICODE": _Machine.push,
    "BINBYTES": _Machine.push_bytes,
    "SHORT_BINBYTES": _Machine.push_bytes,
    "BINBYTES8": _Machine.push_bytes,
    "BYTEARRAY8": _Machine.push_bytes,
    "STACK_GLOBAL": _Machine.push_stacked_name,
    "MEMOIZE": _Machine.memoize,
}
_NEWER_NAMES = {
    f"{package}.{name}": meaning
    for package in ("numpy.core", "numpy._core")
    for name, meaning in (("multiarray scalar", "scalar"), ("numeric _frombuffer", "frombuffer"))
}
WHOLE_NUMBERS = Dialect(
    _STEPS | _NEWER_STEPS,
    _NAMES | _NEWER_NAMES,
    frozenset({"i2", "i4", "i8", "u2", "u4", "u8"}),
)


Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

ROW = 3 * 32 * 32  # the red, green and blue planes of one image
NAMES_BYTES = 50_000  # the official lists of class names have fewer than 2,000


@dataclass(frozen=True)
class Layout:
    """One official form of a data set: which files, and what is in them."""

    dataset: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str  # the file with the class names
    classes: int
    train_rows: int  # in each file
    test_rows: int
    names_key: str = ""  # in a pickle
    label_key: str = ""
    label_bytes: int = 0  # before the pixels of each row of a binary file; the last one counts

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_PYTHON = Layout(
    "cifar10", "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", 10, 10_000, 10_000,
    names_key="label_names", label_key="labels",
)  # fmt: skip
CIFAR10_BINARY = Layout(
    "cifar10", "cifar-10-batches-bin", tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin",
    "batches.meta.txt", 10, 10_000, 10_000, label_bytes=1,
)  # fmt: skip
CIFAR100_PYTHON = Layout(
    "cifar100", "cifar-100-python", ("train",), "test", "meta", 100, 50_000, 10_000,
    names_key="fine_label_names", label_key="fine_labels",
)  # fmt: skip
CIFAR100_BINARY = Layout(
    "cifar100", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt",
    100, 50_000, 10_000, label_bytes=2,
)  # fmt: skip
LAYOUTS = {
    "cifar10": (CIFAR10_PYTHON, CIFAR10_BINARY),
    "cifar100": (CIFAR100_PYTHON, CIFAR100_BINARY),
}

# MD5 as published for the python files; SHA-256 of the same rows in the binary layout.
CHECKSUMS = {
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "cifar-10-batches-bin/data_batch_1.bin": (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
    ),
    "cifar-10-batches-bin/data_batch_2.bin": (
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
    ),
    "cifar-10-batches-bin/data_batch_3.bin": (
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
    ),
    "cifar-10-batches-bin/data_batch_4.bin": (
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
    ),
    "cifar-10-batches-bin/data_batch_5.bin": (
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
    ),
    "cifar-10-batches-bin/test_batch.bin": (
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
    ),
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
}


def read_cifar10(folder: Path) -> Arrays:
    """CIFAR-10 from `folder`, which holds an official folder or is one."""
    return _read(*_locate("cifar10", folder))


def read_cifar100(folder: Path) -> Arrays:
    """CIFAR-100 with its 100 fine labels."""
    return _read(*_locate("cifar100", folder))


def cifar10_files(folder: Path) -> list[Path]:
    """The files that `read_cifar10` reads."""
    return _files(*_locate("cifar10", folder))


def cifar100_files(folder: Path) -> list[Path]:
    return _files(*_locate("cifar100", folder))


def verify(folder: Path, name: str) -> list[str]:
    """Compare the files with the official checksums; returns warnings, or raises DatasetCorrupt.

    A file with another checksum is accepted if its content is sound: rows may be in another order.
    """
    place, layout = _locate(name, folder)
    unknown = [path.name for path in _files(place, layout) if not _is_official(path, layout)]
    if not unknown:
        return []
    _read(place, layout)
    return [
        f"{name}: not the official checksum: {', '.join(unknown)} in {place}; "
        f"the content is sound and is used"
    ]


def _is_official(path: Path, layout: Layout) -> bool:
    if path.suffix == ".txt":
        return True  # class names in plain text, which are read and checked anyway
    known = CHECKSUMS.get(f"{layout.folder}/{path.name}", "")
    algorithm = "md5" if len(known) == 32 else "sha256"
    with _refusing(path, layout), path.open("rb") as stream:
        digest = hashlib.file_digest(
            stream, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()
    return digest == known


def _locate(name: str, folder: Path) -> tuple[Path, Layout]:
    """Where the data set is, and in which layout."""
    layouts = LAYOUTS[name]
    candidates = [
        (place, layout) for layout in layouts for place in (folder / layout.folder, folder)
    ]
    absent = [_absent(place, layout) for place, layout in candidates]
    for missing, candidate in zip(absent, candidates, strict=True):
        if not missing:
            return candidate
    best = min(range(len(candidates)), key=lambda index: len(absent[index]))
    place, layout = candidates[best]
    if len(absent[best]) < len(layout.files):
        what, where = ", ".join(absent[best]), place
    else:
        what, where = " or ".join(f"{layout.folder}/" for layout in layouts), folder
    raise DatasetMissing(f"{name}: no {what} in {where}: get it with `dcfl data get {name}`")


def _absent(place: Path, layout: Layout) -> list[str]:
    return [file for file in layout.files if not os.path.isfile(place / file)]


def _files(place: Path, layout: Layout) -> list[Path]:
    return [place / file for file in layout.files]


def _read(place: Path, layout: Layout) -> Arrays:
    train = [(place / file, layout.train_rows) for file in layout.train]
    test = [(place / layout.test, layout.test_rows)]
    names = _class_names(place / layout.names, layout)
    return Arrays(*_gathered(train, layout), *_gathered(test, layout), class_names=names)


def _gathered(parts: list[tuple[Path, int]], layout: Layout) -> tuple[Pixels, Labels]:
    """The files' rows one after another, each copied once."""
    total = sum(rows for _, rows in parts)
    pixels, labels = np.empty((total, 32, 32, 3), np.uint8), np.empty(total, np.int64)
    start = 0
    for path, rows in parts:
        planes, part = _batch(path, layout, rows)
        stop = start + rows
        pixels[start:stop] = planes.reshape(rows, 3, 32, 32).transpose(0, 2, 3, 1)
        labels[start:stop] = part
        start = stop
    return pixels, labels


def _batch(path: Path, layout: Layout, rows: int) -> tuple[Pixels, Labels]:
    """One file as channel planes [rows, 3072] and labels [rows]."""
    with _refusing(path, layout):
        form = _binary_batch if layout.label_bytes else _pickled_batch
        planes, labels = form(path, layout, rows)
        if not ((labels >= 0) & (labels < layout.classes)).all():
            raise Refused(f"a label is not between 0 and {layout.classes - 1}")
        return planes, labels


def _binary_batch(path: Path, layout: Layout, rows: int) -> tuple[Pixels, Labels]:
    width = layout.label_bytes + ROW
    data = _bytes(path, rows * width)
    if len(data) != rows * width:
        raise Refused(f"{len(data):,} bytes instead of {rows * width:,}")
    table = np.frombuffer(data, np.uint8).reshape(rows, width)
    return table[:, layout.label_bytes :], table[:, layout.label_bytes - 1].astype(np.int64)


def _pickled_batch(path: Path, layout: Layout, rows: int) -> tuple[Pixels, Labels]:
    # Beside the pixels the official files spend about 35 bytes on each row's file name and label.
    values = unpickled(_bytes(path, rows * (ROW + 400) + 10_000), opcodes=8 * rows + 1_000)
    array, labels = values.get("data"), values.get(layout.label_key)
    if not isinstance(array, PickledArray) or array.shape != (rows, ROW):
        raise Refused(f"no uint8 pixels of shape [{rows}, {ROW}] under 'data'")
    if len(array.content) != rows * ROW:
        raise Refused(f"{len(array.content):,} bytes of pixels instead of {rows * ROW:,}")
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise Refused(f"no list of integers under '{layout.label_key}'")
    if len(labels) != rows:
        raise Refused(f"{len(labels):,} labels for {rows:,} images")
    planes = np.frombuffer(array.content, np.uint8).reshape(rows, ROW)
    return planes, np.array(labels, np.int64)


def _class_names(path: Path, layout: Layout) -> tuple[str, ...]:
    with _refusing(path, layout):
        data = _bytes(path, NAMES_BYTES)
        names = (
            unpickled(data, opcodes=2_000).get(layout.names_key)
            if layout.names_key
            else data.decode("ascii").split()
        )
        if not isinstance(names, list) or any(type(name) is not str for name in names):
            raise Refused("no list of class names")
        if len(names) != layout.classes or len(set(names)) != layout.classes:
            raise Refused(f"not {layout.classes} different class names")
        if not all(name.isascii() and name.isprintable() and name.strip() for name in names):
            raise Refused("a class name that is empty or not plain text")
        return tuple(names)


def _bytes(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise Refused(f"larger than {limit:,} bytes")
        return stream.read(limit)


@contextmanager
def _refusing(path: Path, layout: Layout) -> Iterator[None]:
    """A hostile file may raise anything on the way; the user sees one kind of error, one line."""
    try:
        yield
    except OSError as error:
        raise DatasetCorrupt(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        reason = str(error) if isinstance(error, Refused) else "damaged, or not of that form"
        raise DatasetCorrupt(
            f"{path}: not an official {layout.dataset} file ({reason}): "
            f"move {path.parent} away, then run `dcfl data get {layout.dataset}`"
        ) from error
