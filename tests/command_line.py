"""The command line in this process, as a person types it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import dcfl.cli.main

Call = Callable[..., tuple[int, str, str]]


def calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A function of words: exit code, standard output and standard error of `dcfl WORDS`."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dcfl", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            dcfl.cli.main.main()
        shown = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        assert "Traceback" not in shown.err or "--debug" in words
        return stop.value.code, shown.out, shown.err

    return call
