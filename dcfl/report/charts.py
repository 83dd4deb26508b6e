"""The data of charts, as plain values for charts.js. Three kinds: curves, plots, matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.system.printable import printable_lines

Chart = Mapping[str, Any]

MOST_CELLS = 40_000  # of a matrix; more are smaller than a pixel
GREY = -1  # a colour that is no method's
NUMBERED_CELLS = 600  # more leave no room for a number in each


def shown_chart(value: Any) -> Any:
    """With nothing in its texts that acts on a page."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {key: shown_chart(inner) for key, inner in value.items()}
    return [shown_chart(inner) for inner in value] if isinstance(value, list | tuple) else value


def series(
    label: str,
    x: Sequence[float] | NDArray[Any],
    y: Sequence[float] | NDArray[Any],
    colour: int,
    style: str = "line",
    **more: Any,
) -> dict[str, Any]:
    """`style` is "line", "points" or "steps". Also `dash`, and `notes`: a text for each point, its
    first line the title."""
    return {
        "label": label,
        "x": _rounded(x),
        "y": _rounded(y),
        "colour": colour,
        "style": style,
        **more,
    }


def plot(x: Mapping[str, Any], y: Mapping[str, Any], panels: Sequence[Chart], **more: Any) -> Chart:
    """Panels are {title, series}, and may have an `x` of their own. Axes have a `label`, and may
    have `low` and `high`, `log`, `percent`, `whole` (whole numbers alone), or `names` of the places
    0, 1, 2 ..., with `rules` at them. A `bare` axis has no numbers. Also `height`, in pixels."""
    return {"kind": "plot", "x": x, "y": y, "panels": list(panels), **more}


def matrix(
    cells: NDArray[Any],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    value: str,
    shade: str = "",
    **more: Any,
) -> Chart | None:
    """Numbers by row and column; None if there are too many. `rows` and `columns` say what they
    are and their names. `shade`: "row" for shares of the row, "signed" for gains and losses,
    "range" for scores, from the lowest to the highest; else they are counts. Also `sizes`: bars
    with the columns' sums; `digits` of each number."""
    if cells.size > MOST_CELLS:
        return None
    return {
        "kind": "matrix",
        "cells": [_rounded(row) for row in cells],
        "row": rows[0],
        "rows": list(rows[1]),
        "column": columns[0],
        "columns": list(columns[1]),
        "value": value,
        "shade": shade,
        "numbers": cells.size <= NUMBERED_CELLS,
        **more,
    }


def _rounded(values: Sequence[float] | NDArray[Any]) -> list[float | None]:
    """To six significant digits; what is not finite is None."""
    return [rounded(float(value)) for value in values]


def rounded(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
