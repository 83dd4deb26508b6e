"""The audit's page is what its script makes of the stored numbers, and tells every difference."""

import json

import pytest

from benchmarks.audit.page import AUTHORS, DIFFERENCES, DIGITS, ORACLES, PAGE, RESULTS, page, same
from tests.methods.zoo.oracle import SINGLE

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


def test_every_method_with_stored_numbers_has_its_errors() -> None:
    """If not: `python -m benchmarks.oracle_errors`, then `python -m benchmarks.audit`."""
    found = json.loads(AUTHORS.read_text())
    assert found.keys() == {path.stem for path in ORACLES.glob("*.json")}
    for name, row in found.items():
        assert f"](methods/{name}.md) | {row['lines']} |" in PAGE.read_text()
        assert row["vectors"] <= SINGLE
        assert row["checks"][0] == row["checks"][1] > 20
