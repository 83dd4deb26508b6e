"""Plain values from a pickle, without running it.

A pickle is a program. Here a small stack machine follows only the opcodes that describe
dictionaries, lists, strings, numbers and arrays of whole numbers; nothing is imported or called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pickletools import genops
from typing import Any


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
