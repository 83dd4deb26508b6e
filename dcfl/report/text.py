"""How a report writes numbers, and names that it did not choose."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from dcfl.runs.groups import Spread

# From the root, a drive or ~ up to the last folder: "/home/me/data/birds" -> "…/birds".
FOLDERS = re.compile(r"""(?<![\w.…/\\])(?:~|[A-Za-z]:)?[/\\]+(?=[^\s/\\])(?:[^"'\n/\\]*[/\\]+)*""")


class DataUnit(NamedTuple):
    name: str
    bytes: float


def data_unit(largest: float) -> DataUnit:
    """Megabytes, or gigabytes where those would have five digits."""
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


def deviation(spread: Spread) -> str:
    return "" if spread.deviation is None else f"± {number(spread.deviation)}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))
