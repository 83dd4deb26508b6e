"""Pages that are made from the code are what the code makes."""

import csv
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_speed_page_are_the_measured_ones() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "speed_page.py"))["page"]()
    assert (ROOT / "docs" / "speed.md").read_text() == made, "run benchmarks/speed_page.py"


def test_the_tables_of_the_reproduction_pages_are_the_measured_ones() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "reproduction_page.py"))
    for page in script["PAGES"]:
        written = page.read_text()
        assert written == script["made_anew"](page), "run benchmarks/reproduction_page.py"
        assert "| FedAvg |" in written or script["NOT_RUN"] in written


def test_the_order_from_the_single_runs_is_the_one_that_was_recorded_with_them() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "reproduction_page.py"))
    recipe = "reproduction/participation-5"
    recorded = (script["RESULTS"] / f"{recipe}-order.csv").read_text().splitlines()[1:]
    made = script["order"](recipe).splitlines()[2:]
    claims = [line.strip("| ").split(" | ") for line in made]
    assert len(claims) > 3
    assert claims == list(csv.reader(recorded))[: len(claims)]  # then DCFL against every other
