"""How far each method is from its authors' code: the table in `docs/audit.md`.

    python -m benchmarks.oracle_errors     run the tests with the stored numbers, then `dcfl check`

The numbers are those of `tests/methods/oracles/`. They are compared in the tests, so the tests are
run here, and the errors that they find are written to `results/oracle-errors.json`;
`python -m benchmarks.audit` makes the page of it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest

from benchmarks.oracles.problem import FIXTURES
from dcfl.methods import METHODS
from dcfl.testing.contract import check
from tests.methods.zoo import oracle

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "methods" / "zoo"
RESULTS = ROOT / "benchmarks" / "results" / "oracle-errors.json"


class Errors:
    """Largest errors by method. Tests also ask whether something *did* move: those are larger than
    any error that they accept, and are left out."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = defaultdict(dict)
        self.method = ""
        self._vectors, self._oracle = oracle.error, oracle.oracle
        self._loss = oracle.require_loss

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.method = item.path.stem.removeprefix("test_").replace("_", "-")

    def oracle(self, name: str) -> dict[str, Any]:
        self.method = name  # a test of several methods reads the numbers itself
        return self._oracle(name)

    def error(self, ours: oracle.Numbers, theirs: oracle.Numbers) -> float:
        return self._note("vectors", self._vectors(ours, theirs))

    def require_loss(
        self, ours: tuple[float, oracle.Numbers], theirs: Sequence[Any], *precision: float
    ) -> None:
        self._note("value", abs(ours[0] - theirs[0]) / abs(theirs[0]))
        self._loss(ours, theirs, *precision)

    def _note(self, kind: str, error: float) -> float:
        if error <= oracle.SINGLE:
            here = self.found[self.method]
            here[kind] = max(error, here.get(kind, 0.0))
        return error


def measure() -> None:
    errors = Errors()
    # Before the tests are imported: they take these names with them.
    oracle.error, oracle.oracle = errors.error, errors.oracle
    oracle.require_loss = errors.require_loss  # type: ignore[assignment]
    if pytest.main(["-q", "-p", "no:cacheprovider", str(TESTS)], plugins=[errors]):
        sys.exit("a test failed")
    names = sorted(path.stem for path in FIXTURES.glob("*.json"))
    rows = {
        name: {**errors.found[name], "checks": _checks(name), "lines": _lines(name)}
        for name in names
    }
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def _checks(name: str) -> list[int]:
    """How many checks hold, of how many."""
    verdicts = [verdict for found in check(name).values() for verdict in found]
    return [sum(verdict.holds for verdict in verdicts), len(verdicts)]


def _lines(name: str) -> int:
    """Of the file of the method, which a close relative may share."""
    module = import_module(METHODS[name].__module__)
    return len(getsource(module).splitlines())


if __name__ == "__main__":
    measure()
