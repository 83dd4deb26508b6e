"""Pickles of other programs: dictionaries, lists and arrays of whole numbers, and nothing else.

A pickle is a program. Of Python's unpickler only the opcodes that such files consist of are left,
and the names that a file may ask for stand for classes of this module, never for numpy or another
library. It is the unpickler that is written in Python: the one in C sets aside memory for whatever
the file claims, and hashes whatever the file has as a key.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):
    """Why a file is refused."""


class _Kind:
    """Stands for a dtype."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("u1", "u2", "u4", "u8", "i2", "i4", "i8"):
            raise Refused("an array that is not of whole numbers")
        self.dtype = np.dtype(f"<{code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if self.dtype.itemsize > 1 and state[1] != "<":
            raise Refused("numbers whose bytes are in another order")


class PickledArray:
    """Stands for an array, and holds its values as soon as the file has given them."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[Any] = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran_order, content = state
        if fortran_order is True or type(kind) is not _Kind:
            raise Refused("an array of another form")
        if isinstance(content, str):  # as Python 2 wrote bytes
            content = content.encode("latin-1")
        self.values = np.frombuffer(content, kind.dtype).reshape(shape)
        if self.values.shape != shape:
            raise Refused("an array whose shape is none")


def _from_buffer(content: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> PickledArray:
    array = PickledArray()
    array.__setstate__((1, shape, kind, order != "C", content))
    return array


def _scalar(kind: _Kind, content: bytes) -> int:
    (number,) = np.frombuffer(content, kind.dtype).tolist()
    return int(number)


class _Words(dict[str, Any]):
    """A dictionary whose keys are strings: to hash the nested tuples of a hostile file may take for
    ever."""

    def __setitem__(self, key: str, value: Any) -> None:
        if type(key) is not str:
            raise Refused("a dictionary whose keys are not strings")
        super().__setitem__(key, value)


_OPCODES = (
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
)  # fmt: skip
_NAMES = {
    "numpy ndarray": "ndarray",  # never called
    "numpy dtype": _Kind,
    "numpy.core.multiarray _reconstruct": PickledArray,
    "numpy.core.multiarray scalar": _scalar,
    "numpy.core.numeric _frombuffer": _from_buffer,
}


class _PlainUnpickler(pickle._Unpickler):
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module} {name}"
        try:
            return _NAMES[asked.replace("numpy._core.", "numpy.core.")]
        except KeyError:
            raise Refused(f"it asks for {asked[:60]!r}") from None

    def load_empty_dict(self) -> None:
        self.stack.append(_Words())

    def load_build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Kind, PickledArray):
            raise Refused("it changes what is not an array")
        self.stack[-1].__setstate__(state)

    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code]
        for (code,) in (getattr(pickle, name) for name in _OPCODES)
    } | {
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.BUILD[0]: load_build,
        # Of the same form as this one, which sets aside no memory before it reads.
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
    }


def unpickled(content: bytes) -> dict[str, Any]:
    """The dictionary that the pickle describes. A hostile one may raise any exception, and the size
    of the content limits what it costs."""
    stream = io.BytesIO(content)
    value = _PlainUnpickler(stream, encoding="latin-1").load()
    if type(value) is not _Words or stream.read(1):
        raise Refused("not one dictionary")
    return value
