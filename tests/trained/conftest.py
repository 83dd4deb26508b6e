"""The command line, in this process."""

import sys
from collections.abc import Callable

import pytest

import dcfl.cli.main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Exit code, standard output and standard error of `dcfl WORDS`."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dcfl", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            dcfl.cli.main.main()
        shown = capsys.readouterr()
        return stop.value.code, shown.out, shown.err  # type: ignore[return-value]

    return call
