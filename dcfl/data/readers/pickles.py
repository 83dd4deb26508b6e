"""CIFAR's pickles: dictionaries, lists and arrays of bytes, and nothing else.

A pickle is a program. Of Python's unpickler only the opcodes that such files consist of are left,
and the names that a file may ask for stand for classes of this module, never for numpy or another
library. It is the unpickler that is written in Python: the one in C sets aside memory for whatever
the file claims, and hashes whatever the file has as a key.
"""

from __future__ import annotations

import io
import pickle
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):
    """Why a file is refused."""


class _Kind:
    """Stands for a dtype."""

    def __init__(self, code: str, *_: object) -> None:
        if code != "u1":
            raise Refused("an array that is not of bytes")

    def __setstate__(self, state: object) -> None:
        """Bytes have no order."""


class PickledArray:
    """Stands for an array. A file may give it a content as often as it likes: only the last one is
    looked at, and only when its values are asked for."""

    def __init__(self, *_: object) -> None:
        self.__setstate__((1, (0,), _Kind("u1"), False, b""))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self._shape, self._kind, self._fortran_order, self._content = state

    @cached_property
    def values(self) -> NDArray[np.uint8]:
        content = self._content
        if isinstance(content, str):  # as Python 2 wrote bytes
            content = content.encode("latin-1")
        if self._fortran_order is True or type(self._kind) is not _Kind:
            raise Refused("an array of another form")
        values = np.frombuffer(content, np.uint8).reshape(self._shape)
        if values.shape != self._shape:
            raise Refused("an array whose shape is none")
        return values


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
    "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
)  # fmt: skip
_NAMES = {
    "numpy ndarray": "ndarray",  # never called
    "numpy dtype": _Kind,
    "numpy.core.multiarray _reconstruct": PickledArray,
}


class _Limited(dict[int, Any]):
    """What opcodes do, as long as there are not too many of them."""

    def __init__(self, steps: dict[int, Any], most: int) -> None:
        super().__init__(steps)
        self.left = most

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Refused("a pickle of too many opcodes")
        if code not in self:
            raise Refused(f"the pickle opcode {bytes([code])!r} has no business in it")
        return super().__getitem__(code)


class _PlainUnpickler(pickle._Unpickler):
    stack: list[Any]

    def __init__(self, content: io.BytesIO, opcodes: int) -> None:
        super().__init__(content, encoding="latin-1")
        self.dispatch = _Limited(self.dispatch, opcodes)  # type: ignore[misc]  # of this one alone

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module} {name}"
        try:
            return _NAMES[asked.replace("numpy._core.", "numpy.core.")]
        except KeyError:
            raise Refused(f"it asks for {asked[:60]!r}") from None

    def load_empty_dict(self) -> None:
        self.stack.append(_Words())

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or len(arguments) > 4:
            raise Refused("it calls what cannot be called")
        self.stack.append(function(*arguments))

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
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
    }


def unpickled(content: bytes, opcodes: int) -> dict[str, Any]:
    """The dictionary that the pickle describes, in so many opcodes at most. A hostile one may raise
    any exception, and costs no more time and memory than one of that length must."""
    stream = io.BytesIO(content)
    value = _PlainUnpickler(stream, opcodes).load()
    if type(value) is not _Words or stream.read(1):
        raise Refused("not one dictionary")
    return value
