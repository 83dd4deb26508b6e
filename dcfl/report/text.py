"""How a report writes numbers, and names that it did not choose."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from dcfl.comparisons.pairs import Paired, Spread

# From the root, a drive or ~ up to the last folder: "/home/me/data/birds" -> "…/birds".
FOLDERS = re.compile(r"""(?<![\w.…/\\])(?:~|[A-Za-z]:)?[/\\]+(?=[^\s/\\])(?:[^"'\n/\\]*[/\\]+)*""")

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class DataUnit(NamedTuple):
    name: str
    bytes: float


def data_unit(largest: float) -> DataUnit:
    return DataUnit("GB", 1e9) if largest >= 1e10 else DataUnit("MB", 1e6)


def without_folders(text: str) -> str:
    """Pages are passed on, and the folders of the machine that wrote one are private."""
    return FOLDERS.sub("…/", text)


def number(value: float, digits: int = 2) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    return number(value) if value <= 0 or math.isnan(value) else f"+{number(value)}"


def interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"{signed(low)} to {signed(high)}"


def wins_ties_losses(paired: Paired) -> str:
    return f"{paired.wins}/{paired.ties}/{paired.losses}"


def p_in_words(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {number(p_value, 3)}"


def p_cell(p_value: float | None) -> str:
    return "–" if p_value is None else p_in_words(p_value).removeprefix("p ").removeprefix("= ")


def with_deviation(spread: Spread) -> str:
    known = "" if spread.deviation is None else f" ± {number(spread.deviation)}"
    return f"{number(spread.mean)}{known}"


def on_images(quantity: str, images: str) -> str:
    """`test accuracy`, but `accuracy on kept-back images`."""
    return f"test {quantity}" if images == "test images" else f"{quantity} on {images}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted(count: int, noun: str = "") -> str:
    """Like `plural`, with small numbers as words. Without a noun, the number alone."""
    figure = WORDS[count] if count < len(WORDS) else f"{count:,}"
    return " ".join(filter(None, (figure, noun and plural(count, noun).split(" ", 1)[1])))


def listed(items: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))
