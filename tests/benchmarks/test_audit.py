"""The audit's page is what its script makes of the stored numbers, and tells every difference."""

import json

import pytest

from benchmarks.audit.page import DIFFERENCES, DIGITS, PAGE, RESULTS, page, same

ROWS = json.loads(RESULTS.read_text())
EFFECTS = json.loads(DIGITS.read_text())


def test_the_page_is_the_scripts() -> None:
    assert PAGE.read_text() == page(ROWS, EFFECTS)


def test_a_difference_that_is_not_told_is_refused() -> None:
    odd = next(row for row in ROWS if same(row))
    with pytest.raises(SystemExit, match=odd["method"]):
        page([*ROWS, {**odd, "second": 0.1}], EFFECTS)
    told = next(row for row in ROWS if (row["framework"], row["method"]) in DIFFERENCES)
    with pytest.raises(SystemExit, match="no longer true"):
        page([row for row in ROWS if row is not told], EFFECTS)


def test_ours_is_the_authors_where_their_code_was_run() -> None:
    authors = [row for row in ROWS if row["framework"] == "the authors"]
    assert {row["method"] for row in authors} == {"moon", "feddyn"}
    assert all(same(row) for row in authors)
