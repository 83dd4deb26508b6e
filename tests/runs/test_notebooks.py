"""Results that show themselves, DataFrames, and the bar of a notebook."""

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
from dcfl.experiment import Experiment, FederationSettings
from dcfl.report.notebook_html import run_html
from dcfl.runs.progress import Bar, in_notebook, shown
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
    assert "<img" not in Bar(evil, 3)._repr_html_()


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
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook's bar showed, one after the other."""
    seen: list[str] = []
    kernel = type("ZMQInteractiveShell", (), {})()
    handle = SimpleNamespace(update=lambda bar: seen.append(repr(bar)))

    def display(bar: Bar, display_id: bool) -> object:
        seen.append(repr(bar))
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return seen


def test_a_bar_in_a_notebook(result: Result, seen: list[str]) -> None:
    assert in_notebook()
    experiment = Experiment(federation=FederationSettings(3))
    with shown("fedavg", experiment, result.folder, None) as show:
        for row in result.rounds:
            show(row)
    assert seen[0] == "fedavg  round 0/3  starts"
    assert seen[-1].startswith("fedavg  round 3/3  accuracy ")
    with pytest.raises(KeyError), shown("fedavg", experiment, result.folder, None):
        raise KeyError
    assert seen[-1].endswith("not scored yet, stopped")


def test_a_comparison_has_one_bar_for_all_its_runs(seen: list[str], tmp_path: Path) -> None:
    dcfl.compare(methods=["fedavg", "fedprox"], out=tmp_path / "runs", parallel=1, **SMALL)
    assert seen[0] == "compare  round 0/6  starts"
    assert seen[-1].startswith("compare  round 6/6  [2/2] fedprox-seed0  finished")
