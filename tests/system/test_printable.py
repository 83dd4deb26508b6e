"""One function makes other people's text fit to be read."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dcfl
from dcfl.system.wording import csv_line, printable, printable_lines, without_apostrophe

ANYTHING = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(ANYTHING, st.integers(8, 300))
def test_whatever_comes_is_one_plain_line(text: str, longest: int) -> None:
    shown = printable(text, longest)
    assert shown.isprintable()  # no control characters, line breaks, bidi marks, surrogates
    assert len(shown) <= longest
    if text.isprintable() and len(text) <= longest:
        assert shown == text


@given(ANYTHING)
def test_line_breaks_may_be_meant(text: str) -> None:
    shown = printable_lines(text).split("\n")
    assert len(shown) == text.count("\n") + 1
    assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 鳥 [/red] $x$", "café 鳥 [/red] $x$"),
        ("a\x1b[31m\nb", r"a\x1b[31m\nb"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("a\u202eb", r"a\u202eb"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_cannot_be_seen_is_spelt_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_too_long_keeps_its_beginning_and_its_end() -> None:
    shown = printable(f"first {'x' * 10_000} last")
    assert shown.startswith("first x")
    assert shown.endswith("x last")
    assert len(shown) == 2000


@given(st.lists(ANYTHING, min_size=1))
@example(["=cmd|'/c calc'!A0", "+1+1", "-2+cmd|x", "@A1", "\t=1", "\r=1", "＝1+1", "-x", "a\r=1"])
def test_no_cell_of_a_csv_file_is_a_formula(cells: list[str]) -> None:
    (read,) = csv.reader(io.StringIO(csv_line(cells), newline=""))
    for before, cell in zip(cells, read, strict=True):
        number = re.fullmatch(r"[-+]([\d.,]+(e[-+]?\d+)?( ?%)?|inf|nan)?", cell, re.IGNORECASE)
        assert number or not cell.startswith((*"=+-@\t\r\n＝＋－＠",))
        assert without_apostrophe(cell) == before or without_apostrophe(before) != before


@pytest.mark.parametrize(
    "number", [-1, -0.5, "-0.5", "+1.25", "-1e-05", "-inf", "-", "-3 %", "-1,234", "nan"]
)
def test_numbers_in_a_csv_file_stay_numbers(number: object) -> None:
    assert csv_line([number]) in (f"{number}\n", f'"{number}"\n')


def test_all_csv_files_are_written_by_one_function() -> None:
    package = Path(dcfl.__file__).parent
    found = [path.name for path in package.rglob("*.py") if "csv.writer" in path.read_text()]
    assert found == ["wording.py"]
