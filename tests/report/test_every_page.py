"""Pages that are made from the code are what the code makes."""

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_speed_page_are_the_measured_ones() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "speed_page.py"))["page"]()
    assert (ROOT / "docs" / "speed.md").read_text() == made, "run benchmarks/speed_page.py"


def test_the_tables_of_the_reproduction_pages_are_the_measured_ones() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "reproduction_page.py"))
    for page in script["PAGES"]:
        written = page.read_text()
        assert written == script["made_anew"](page), "run benchmarks/reproduction_page.py"
        assert "| FedAvg |" in written


def test_the_headlines_are_computed_from_the_single_runs() -> None:
    """In the text of the pages: without the seed that chose, with intervals and corrected p."""
    rows_of = runpy.run_path(str(ROOT / "benchmarks" / "reproduction_page.py"))["rows_of"]
    text = (ROOT / "docs" / "reproduction.md").read_text().replace("\n", " ")

    def pair(recipe: str, row: str, without: tuple[int, ...] = ()) -> Any:
        found = [one for one in rows_of(recipe, without) if (one.column, one.row) == ("0.3", row)]
        return found[0].gain

    five = "reproduction/participation-5"
    for row in ("DCFL-PW", "DCFL-SW", "FedRCL"):
        fresh = pair(five, row, (0,)).paired
        low, high = fresh.interval
        said = f"{fresh.spread.mean:.2f}( points of EMA)? .*?{low:.2f} *to {high:.2f}"
        assert re.search(said, text), (row, said)
    pw, sw = (pair(five, row).p_value for row in ("DCFL-PW", "DCFL-SW"))
    assert f"p is {pw:.3f} (PW) and {sw:.3f} (SW)" in text
    pw, sw = (pair(five, row, (0,)).p_value for row in ("DCFL-PW", "DCFL-SW"))
    assert f"without it {pw:.3f} and {sw:.3f}" in text
    bounds = [
        pair("pretrained/participation-5", row).paired.bound for row in ("DCFL-PW", "DCFL-SW")
    ]
    assert f"within {max(bounds):.2f} points of FedAvg" in text
