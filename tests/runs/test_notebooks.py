"""Results that show themselves, DataFrames, and what a notebook prints."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dcfl
from dcfl.comparisons.comparison import Comparison
from dcfl.errors import ConfigError
from dcfl.report.notebook_html import run_html
from dcfl.runs.progress import in_notebook, shown
from dcfl.runs.rows import Summary
from dcfl.runs.run import Result

SMALL: dict[str, Any] = {
    "federation.rounds": 3,
    "training.epochs": 1,
    "data.holdout": 0.2,
    "engine.workers": 1,
    "output.report": False,
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("compared") / "runs"
    return dcfl.compare(methods=["fedavg", "fedprox"], seeds=[0], out=folder, **SMALL)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return dcfl.run(out=tmp_path_factory.mktemp("shown") / "run", method="fedavg", **SMALL)


class Balanced(HTMLParser):
    """Raises unless every element is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_result_shows_itself(result: Result) -> None:
    text = result._repr_html_()
    assert {"table", "svg", "polyline"} <= set(Balanced(text).tags)
    assert "accuracy on kept-back images" in text
    assert "test" not in text.replace(str(result.folder), "")
    assert f"{result.summary.final_accuracy:.2f} %" in text


def test_printed_it_is_short(result: Result) -> None:
    """Without the numbers of its weights."""
    assert str(result.folder) in repr(result)
    assert "tensor" not in repr(result)
    assert "Linear" not in repr(result)


@pytest.mark.slow
def test_a_comparison_and_its_groups_show_themselves(compared: Comparison) -> None:
    text = compared._repr_html_()
    assert Balanced(text).tags.count("tr") == 3
    assert "vs fedavg" in text
    alone = compared.groups[1]._repr_html_()
    assert Balanced(alone).tags.count("tr") == 2
    assert "vs " not in alone


def test_what_others_wrote_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>\x1b[31m"
    text = run_html(Summary(method=evil, dataset=evil, stopped=evil), [], "images", Path(evil))
    assert "img" not in Balanced(text).tags
    assert "\x1b" not in text


def test_rounds_as_a_data_frame(result: Result) -> None:
    pytest.importorskip("pandas", reason="needs pip install 'dcfl[pandas]'")
    frame = result.to_pandas()
    assert list(frame.index) == [1, 2, 3]
    assert list(frame["accuracy"]) == [row.accuracy for row in result.rounds]
    assert frame["ema_accuracy"].iloc[-1] == result.summary.ema_accuracy


def test_runs_as_a_data_frame(compared: Comparison) -> None:
    pytest.importorskip("pandas", reason="needs pip install 'dcfl[pandas]'")
    frame = compared.to_pandas()
    assert list(frame["method"]) == ["fedavg", "fedprox"]
    assert list(frame["seed"]) == [0, 0]
    ema = [group.spread("ema_accuracy").mean for group in compared.groups]
    assert list(frame["ema_accuracy"]) == ema


def test_without_pandas_it_says_what_to_install(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ConfigError, match=r"^to_pandas needs pandas: .*pip install .*'dcfl\[pandas\]' torch==.*$"
    ):
        result.to_pandas()


def test_text_only_on_request(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    experiment = dcfl.load_experiment(**SMALL)
    for progress in (None, False, True):
        with shown("fedavg", experiment, result.folder, progress) as show:
            show(result.rounds[-1])
        err = capsys.readouterr().err
        assert err.startswith("fedavg  round 3/3  accuracy on kept-back images") == bool(progress)
        assert bool(err) == bool(progress)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))


@pytest.mark.usefixtures("notebook")
def test_lines_in_a_notebook(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = dcfl.load_experiment(**SMALL)
    for progress in (None, False):
        with shown("fedavg", experiment, result.folder, progress) as show:
            for row in result.rounds:
                show(row)
        assert capsys.readouterr().err.count("fedavg  round") == (0 if progress is False else 3)


@pytest.mark.usefixtures("notebook")
def test_a_comparison_says_what_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dcfl.compare(methods=["fedavg", "fedprox"], out=tmp_path / "runs", parallel=1, **SMALL)
    assert "[2/2] fedprox-seed0  finished" in capsys.readouterr().err
