import math

import pytest

from dcfl.report import text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('dir = "/home/me/my runs/one"', 'dir = "…/one"'),
        ('dataset = "folder:/data/birds"', 'dataset = "folder:…/birds"'),
        ('dir = "C:\\\\Users\\\\me\\\\one"', 'dir = "…/one"'),
        ("cannot read '~/x/y.npz'", "cannot read '…/y.npz'"),
        ('dir = "runs/one"', 'dir = "runs/one"'),
        ("1.5 MB/s, and/or 3 / 4", "1.5 MB/s, and/or 3 / 4"),
    ],
)
def test_absolute_paths_lose_their_folders(before: str, after: str) -> None:
    assert text.without_folders(before) == after


def test_numbers() -> None:
    assert text.number(1234.567) == "1,234.57"
    assert text.number(math.nan) == "–"
    assert text.signed(-2.5) == "−2.50"
    assert text.signed(2.5) == "+2.50"
    assert text.data_unit(5e9) == ("MB", 1e6)
    assert text.data_unit(5e10) == ("GB", 1e9)


def test_lists_read_as_english() -> None:
    assert text.listed(["a"]) == "a"
    assert text.listed(["a", "b"]) == "a and b"
    assert text.listed(["a", "b", "c"], last="or") == "a, b or c"
