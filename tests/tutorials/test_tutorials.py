"""Every command of a tutorial is run, from the first to the last, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tutorials.steps import follow

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


def labels(printed: str, path: str) -> list[str]:
    """What was said about a picture: label and percent."""
    lines = [line for line in printed.splitlines() if line.endswith(path)]
    return [" ".join(re.findall(r"ring|cross|square|[\d.]+ %", line)[:2]) for line in lines]


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
