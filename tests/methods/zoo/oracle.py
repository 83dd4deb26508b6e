"""Compares a method with the numbers that its authors' code gave (`benchmarks/oracles/`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.oracles import problem
from benchmarks.oracles.problem import FIXTURES, numbers
from dcfl.messages import Tensors

Numbers = dict[str, list[float]]
# Nobody adds up in the same order: float64 leaves 1e-15 of that, float32 a few 1e-7.
DOUBLE, SINGLE = 1e-12, 3e-6


def oracle(name: str) -> dict[str, Any]:
    """What the authors' code computed on the problem as it is now."""
    record: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    assert record["inputs"] == problem.inputs_sha256(), "the fixture is of other inputs"
    return record


def error(ours: Numbers, theirs: Numbers) -> float:
    """The length of the difference of all numbers together, relative to theirs."""
    assert ours.keys() == theirs.keys()
    pairs = [pair for name, own in ours.items() for pair in zip(own, theirs[name], strict=True)]
    difference = sum((own - other) ** 2 for own, other in pairs)
    return float((difference / sum(other**2 for _, other in pairs)) ** 0.5)


def require_loss(
    ours: tuple[float, Numbers], theirs: Sequence[Any], precision: float = DOUBLE
) -> None:
    value, gradient = theirs
    assert abs(ours[0] - value) <= precision * abs(value)
    assert error(ours[1], gradient) <= precision


def require_rounds(
    ours: Sequence[Tensors], theirs: Sequence[Numbers], precision: float = DOUBLE
) -> None:
    """The server's weights after every round, and that the last is not where training began."""
    start = numbers(problem.Tiny().state_dict())
    common = {name: start[name] for name in theirs[0]}
    assert error(common, theirs[-1]) > 0.05
    for own, other in zip(ours, theirs, strict=True):
        assert error(numbers(own), other) <= precision
