"""Verbs as a person types them, without measuring what they cost."""

from __future__ import annotations

import pytest

from dcfl.comparisons import cell_costs
from tests.command_line import Call
from tests.runs.rates import RATES


@pytest.fixture
def unmeasured(cli: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setattr(cell_costs, "measure", lambda prepared, placement=None: RATES)
    return cli
