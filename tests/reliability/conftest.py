from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.victims import end_all


@pytest.fixture(autouse=True)
def _no_victim_outlives_its_test() -> Iterator[None]:
    yield
    end_all()
