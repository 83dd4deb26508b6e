"""Every command of a tutorial is run, from the first to the last, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tutorials.steps import follow, shows

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = DOCS / "tutorials"


def labels(printed: str, path: str) -> list[str]:
    """What was said about a picture: label and percent."""
    lines = [line for line in printed.splitlines() if line.endswith(path)]
    return [" ".join(re.findall(r"ring|cross|square|[\d.]+ %", line)[:2]) for line in lines]


def test_what_a_page_leaves_out_is_in_order() -> None:
    printed = "first 1\nsecond 2\nthird 3\n"
    assert shows("first 1\n…\nthird 4\n…\n", printed)
    assert not shows("third 3\n…\nfirst 1\n", printed)
    assert not shows("first 1\nthird 3\n", printed)


@pytest.mark.slow
def test_start(tmp_path: Path) -> None:
    printed = follow(DOCS / "start.md", tmp_path)
    assert "scaffold is 26.64 points above fedavg" in printed
    assert (tmp_path / "runs" / "moon" / "report.html").is_file()


@pytest.mark.slow
def test_low_accuracy(tmp_path: Path) -> None:
    printed = follow(DOCS / "low-accuracy.md", tmp_path)
    assert "fedavg on digits" in printed


@pytest.mark.slow
def test_own_method(tmp_path: Path) -> None:
    printed = follow(TUTORIALS / "own-method.md", tmp_path)
    assert "✗" not in printed
    assert re.search(r"^calm +\d", printed, re.MULTILINE)  # its row of the comparison


@pytest.mark.slow
def test_fair_comparison(tmp_path: Path) -> None:
    printed = follow(TUTORIALS / "fair-comparison.md", tmp_path)
    assert "Chosen: training.lr = 0.01" in printed
    assert "4 seeds, mean ± deviation" in printed
    assert (tmp_path / "fair.tex").is_file()
    assert (tmp_path / "split.svg").is_file()


@pytest.mark.slow
def test_sweep(tmp_path: Path) -> None:
    printed = follow(TUTORIALS / "sweep.md", tmp_path)
    assert "[training]" in printed  # of best.toml
    assert {"best.toml", "report.html", "trials.csv"} <= set(printed.split())


@pytest.mark.slow
def test_paper_table(tmp_path: Path) -> None:
    printed = follow(TUTORIALS / "paper-table.md", tmp_path)
    assert "DCFL-PW align=0.3 uniform=0.7" in printed
    assert {"ablation.md", "ablation-runs.csv", "ablation.html"} <= set(printed.split())


@pytest.mark.slow
def test_own_pictures(tmp_path: Path) -> None:
    printed = follow(TUTORIALS / "own-pictures.md", tmp_path)
    accuracy = re.search(r"^accuracy +([\d.]+) %", printed, re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 85
    # dcfl and onnxruntime agree on the picture that both were shown.
    with_dcfl, with_onnxruntime = labels(printed, "pictures/south/cross/00.png")
    assert with_dcfl == with_onnxruntime


@pytest.mark.flower
def test_two_hospitals(tmp_path: Path) -> None:
    first = (TUTORIALS / "own-pictures.md").read_text()
    draw = re.search(r"<!-- file: draw.py -->\n```python\n(.*?)```", first, re.DOTALL)
    assert draw
    subprocess.run([sys.executable, "-c", draw[1]], cwd=tmp_path, check=True)
    dcfl = [sys.executable, "-m", "dcfl"]
    subprocess.run([*dcfl, "new", "model", "my-net"], cwd=tmp_path, check=True)
    try:
        printed = follow(TUTORIALS / "two-hospitals.md", tmp_path)
    finally:
        subprocess.run([*dcfl, "flower", "down"], cwd=tmp_path, check=False)
    assert "36 test images at the sites" in printed
