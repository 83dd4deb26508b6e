"""One function makes other people's text fit to be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.system.wording import printable, printable_lines

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
