"""Verbs as a person types them, without measuring what they cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dcfl.cli.main
from dcfl.studies.cells import cell_costs
from tests.runs.rates import RATES

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def unmeasured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """Exit code, standard output and standard error of a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cell_costs, "measure", lambda prepared, placement=None: RATES)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dcfl", *words])
        with pytest.raises(SystemExit) as stop:
            dcfl.cli.main.main()
        shown = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        assert "Traceback" not in shown.err
        return stop.value.code, shown.out, shown.err

    return call
