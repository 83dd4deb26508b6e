"""Plain values from a pickle, without running it.

A pickle is a program. Here a small stack machine follows only the opcodes that describe
dictionaries, lists, strings, numbers and arrays of bytes; nothing is imported or called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pickletools import genops
from typing import Any


class Refused(Exception):
    """Why a file is refused."""


@dataclass
class PickledArray:
    """Stands for a numpy array that the pickle would build."""

    shape: Any = None
    content: memoryview = memoryview(b"")


class _Dtype:
    """Stands for the dtype of unsigned bytes, the only one that is allowed."""


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


def unpickled(data: bytes, opcodes: int) -> dict[str, Any]:
    """The dictionary that the pickle describes; at most `opcodes` steps and as many values."""
    machine = _Machine(data, opcodes)
    for count, (opcode, argument, position) in enumerate(genops(data)):
        step = _STEPS.get(opcode.name)
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

    def __init__(self, data: bytes, indices: int) -> None:
        self.data = memoryview(data)
        self.indices = indices
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

    def push_list(self, argument: Any, position: int) -> None:
        self.stack.append([])

    def push_dict(self, argument: Any, position: int) -> None:
        self.stack.append({})

    def push_name(self, argument: str, position: int) -> None:
        if argument not in _NAMES:
            raise Refused(f"it asks for {argument[:60]!r}")
        self.stack.append(_Name(_NAMES[argument]))

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
        """Two calls are understood: the one that makes an array and the one that makes a dtype."""
        name, arguments = self.last(2)
        if type(name) is not _Name or type(arguments) is not tuple:
            raise Refused("it calls what cannot be called")
        if name.name == "reconstruct" and arguments[:1] == (_Name("ndarray"),):
            self.stack.append(PickledArray())
        elif name.name == "dtype" and arguments[:1] == ("u1",):
            self.stack.append(_Dtype())
        else:
            raise Refused("an array that is not of unsigned bytes")

    def build(self, argument: Any, position: int) -> None:
        state = self.last(1)[0]
        target = self.stack[-1]
        if type(target) is _Dtype and type(state) is tuple:
            return
        if type(target) is not PickledArray or type(state) is not tuple or len(state) != 5:
            raise Refused("it changes what is not an array")
        _, shape, dtype, fortran_order, content = state
        if type(dtype) is not _Dtype or type(content) is not memoryview or fortran_order is True:
            raise Refused("an array that is not of unsigned bytes")
        target.shape, target.content = shape, content


# What the official files consist of, and nothing else.
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
