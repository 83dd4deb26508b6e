from collections.abc import Iterator

import pytest

from dcfl.methods import METHODS
from dcfl.simulation.instructions import avoid_broken_instructions


def pytest_configure() -> None:
    avoid_broken_instructions()  # before a test has torch convolve anything


@pytest.fixture(autouse=True)
def _methods_of_a_test_are_its_own() -> Iterator[None]:
    """`--method-file` makes methods known to the whole process."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
