"""The data of charts: a page draws them by its scripts, `figures.py` draws them for print.

There are three kinds: "curves" of training, over rounds, traffic or time; "plot", lines and points
in panels; "matrix", numbers by row and column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, seeds_of
from dcfl.comparisons.standing import bytes_so_far, client_seconds_so_far
from dcfl.data.dataset_summary import MANY_CLIENTS, Overview
from dcfl.messages import LOG
from dcfl.report.text import counted, data_unit, number
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow

Chart = Mapping[str, Any]
Numbers = Sequence[float] | NDArray[Any]

LONGEST_CLASS = 16  # characters of a class's name beside an axis
MOST_CELLS = 40_000  # of a matrix; more are smaller than a pixel
MANY_BARS = 60  # of a histogram; more are too thin
GREY = -1  # a colour that is no method's
NUMBERED_CELLS = 600  # more leave no room for a number in each
LOG_FROM = 50  # ratio of largest to smallest loss, above which a linear axis hides the small


def series(
    label: str, x: Numbers, y: Numbers, colour: int, style: str = "line", **more: Any
) -> dict[str, Any]:
    """`style` is "line", "points" or "steps". Also `dash`; `notes`, a text for each point, its
    first line the title; `low` and `high`, the ends of an interval about each point."""
    for end in {"low", "high"} & more.keys():
        more[end] = _rounded(more[end])
    return {
        "label": label,
        "x": _rounded(x),
        "y": _rounded(y),
        "colour": colour,
        "style": style,
        **more,
    }


def histogram(label: str, edges: Numbers, heights: Numbers, colour: int) -> dict[str, Any]:
    return series(label, edges, [*heights, 0.0], colour, "steps")


def plot(x: Mapping[str, Any], y: Mapping[str, Any], panels: Sequence[Chart], **more: Any) -> Chart:
    """Panels are {title, series}, and may have an `x` of their own. Axes have a `label`, and may
    have `low` and `high`, `log`, `percent`, `whole` (whole numbers alone), or `names` of the places
    0, 1, 2 ... A `bare` axis has no numbers. Also `height`, in pixels."""
    return {"kind": "plot", "x": x, "y": y, "panels": list(panels), **more}


def matrix(
    cells: NDArray[Any],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    value: str,
    shade: str = "",
    **more: Any,
) -> Chart:
    """Numbers by row and column. `rows` and `columns` say what they are and their names. `shade`:
    "row" for shares of the row, "range" for scores, from the lowest to the highest; else they are
    counts. Also `sizes`: bars with the columns' sums; `digits` of each number."""
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


def places(label: str, names: Sequence[str]) -> dict[str, Any]:
    """An axis of so many named places, with room beside the first and the last."""
    return {"label": label, "names": list(names), "low": -0.3, "high": len(names) - 0.7}


def reach(values: Numbers) -> dict[str, float]:
    """The ends of an axis that shows all of these: a chart knows its lines, not their intervals."""
    known = np.asarray(values)[np.isfinite(values)]
    if not known.size:
        return {}
    low, high = float(known.min()), float(known.max())
    room = 0.06 * (high - low) or 0.5
    return {"low": low - room, "high": high + room}


def lines_over(
    names: Sequence[str], labels: Sequence[str], values: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """A line for each label over the named places. `values`: means and the ends of intervals about
    them, [3, labels, places]; NaN where there is none. Lines stand a little beside each other, so
    that no interval hides another."""
    step = min(0.06, 0.3 / max(len(labels), 1))
    found = []
    for at, label in enumerate(labels):
        beside = step * (at - (len(labels) - 1) / 2)
        x = [place + beside for place in range(len(names))]
        found.append(_with_intervals(label, x, names, values[:, at], at, "line"))
    return found


def dots_over(label: str, names: Sequence[str], values: NDArray[np.float64], up: Any) -> Chart:
    """A dot for each name, with its interval: `values` is [3, names], as in `lines_over`."""
    dots = _with_intervals(label, range(len(names)), names, values, 0, "points")
    across = {"label": "", "names": list(names), "low": -0.5, "high": len(names) - 0.5}
    return plot(across, up, [{"series": [dots]}])


def _with_intervals(
    label: str,
    x: Numbers,
    names: Sequence[str],
    values: NDArray[np.float64],
    colour: int,
    style: str,
) -> dict[str, Any]:
    mean, low, high = values
    notes = [
        f"{name}: {number(y)}" + ("" if math.isnan(a + b) else f"\nfrom {number(a)} to {number(b)}")
        for name, y, a, b in zip(names, mean, low, high, strict=True)
    ]
    return series(label, x, mean, colour, style, low=low, high=high, notes=notes)


def partition_chart(
    counts: NDArray[np.int64], class_names: Sequence[str], clients_called: Sequence[str] = ()
) -> Chart:
    """Samples per client and class [clients, classes]; for many clients, histograms."""
    if not summed_up(counts):
        clients = clients_called or [str(client) for client in range(len(counts))]
        named = (("class", class_names), ("client", clients))
        return matrix(counts.T, *named, "samples", sizes=True)
    split = Overview(counts)
    values = {
        "samples of a client": split.sizes,
        "classes of a client": split.held,
        "share of its largest class (%)": 100 * split.largest_shares,
    }
    panels = [
        {"x": {"label": label, "whole": True}, "series": [_over_clients(one)]}
        for label, one in values.items()
    ]
    return plot({"label": ""}, {"label": "clients", "floor": 0}, panels, height=200)


def summed_up(counts: NDArray[np.int64]) -> bool:
    return len(counts) > MANY_CLIENTS or counts.size > MOST_CELLS


def _over_clients(values: NDArray[Any]) -> dict[str, Any]:
    """Whole numbers get a bar each as long as there is room."""
    low, high = float(values.min()), float(values.max())
    width = max(1.0, (high - low) / MANY_BARS)
    if values.dtype.kind == "i":
        width = math.ceil(width)
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    return histogram("clients", edges, np.histogram(values, edges)[0], GREY)


def _rounded(values: Numbers) -> list[float | None]:
    """To six significant digits; what is not finite is None."""
    return [rounded(float(value)) for value in values]


def rounded(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short


MOST_POINTS = 1000  # of a curve
MOST_TOGETHER = 20_000  # of all curves of a chart
FEWEST_POINTS = 200  # of a curve, however many there are
MANY_CURVES = 12  # more cannot be told apart
DRAWN_OF_MANY = 5
Across = Callable[[RecordedRun], Sequence[float]]

ACCURACIES = {  # what is drawn, by name
    "accuracy": "accuracy (%)",
    "client_accuracy": "accuracy of clients, each on its own (%)",
    "worst_decile_accuracy": "accuracy, worst tenth of clients (%)",
}
EMAS = {name: f"ema_{name}" for name in ("accuracy", "client_accuracy")}
LOSSES = {"loss": "loss of the global model", "train_loss": "training loss of the clients"}


def accuracy_chart(groups: Sequence[Group]) -> Chart | None:
    return _curves(groups, ACCURACIES)


def loss_chart(groups: Sequence[Group]) -> Chart | None:
    return _curves(groups, LOSSES)


def logged_chart(groups: Sequence[Group]) -> Chart | None:
    rows = (row for group in groups for run in group.runs for row in run.rounds)
    return _curves(groups, {f"{LOG}{name}": name for row in rows for name in row.logged})


def chart_note(groups: Sequence[Group]) -> str:
    """What a reader must know of a chart of many curves or rounds; empty where all are drawn."""
    note, step = "", _step(groups)
    if len(drawn_first(groups)) < len(groups):
        note = (
            f" The first curve and those with the {counted(DRAWN_OF_MANY)} highest EMA are drawn, "
            "and the legend adds the others."
        )
    if step > 1:
        note += (
            f" Of the rounds that were scored, one in {step} is drawn, the last, and the best and "
            "worst of every run; the moving averages are over all of them."
        )
    return note


def drawn_first(groups: Sequence[Group]) -> set[str]:
    """The labels of the groups whose curves are drawn; a reader calls the others by the legend.
    The first, with which all are compared, and of many those with the highest EMA."""
    if len(groups) <= MANY_CURVES:
        return {group.label for group in groups}
    begun = [one for one in groups if not math.isnan(one.spread("ema_accuracy").mean)]
    best = sorted(begun, key=lambda one: -one.spread("ema_accuracy").mean)
    return {one.label for one in (groups[0], *best[:DRAWN_OF_MANY])}


def _curves(groups: Sequence[Group], known: Mapping[str, str]) -> Chart | None:
    percent = known is ACCURACIES
    quantities: list[dict[str, Any]] = []
    for name, label in known.items():
        if values := _values(groups, name):
            log = not percent and max(values) > LOG_FROM * min(values) > 0
            look = {"percent": percent, "smoothing": 0.9 if percent else 0, "log": log}
            quantities.append({"name": name, "ema": EMAS.get(name, ""), "label": label, **look})
    if not quantities:
        return None
    axes, across = _axes(groups)
    kept, drawn = _kept_rounds(groups), drawn_first(groups)
    columns = [name for one in quantities for name in (one["name"], one["ema"]) if name]
    methods = [
        {
            "label": group.label,
            "runs": [
                {**_run(run, across, columns, kept), "counted": run in group.counted}
                for run in group.runs
            ],
            **({} if group.label in drawn else {"hidden": True}),
        }
        for group in groups
    ]
    return {"kind": "curves", "x": axes, "y": quantities, "methods": methods}


def _run(
    run: RecordedRun, across: dict[str, Across], columns: Sequence[str], kept: set[int]
) -> dict[str, Any]:
    rows = enumerate(run.rounds)
    chosen = [(at, row) for at, row in rows if row.accuracy is not None and row.round in kept]
    places = {name: measure(run) for name, measure in across.items()}
    return {
        "seed": str(seeds_of(run)),
        "round": [row.round for _, row in chosen],
        "x": {name: [rounded(values[at]) for at, _ in chosen] for name, values in places.items()},
        "y": {name: [rounded(row[name]) for _, row in chosen] for name in columns},
    }


def _axes(groups: Sequence[Group]) -> tuple[list[dict[str, str]], dict[str, Across]]:
    runs = [run for group in groups for run in group.runs]
    unit = data_unit(max((sent[-1] for run in runs if (sent := bytes_so_far(run))), default=0.0))
    known: list[tuple[str, str, str, Across]] = [
        ("round", "round", "", lambda run: [row.round for row in run.rounds]),
        (
            "sent",
            f"{unit.name} sent, up and down",
            unit.name,
            lambda run: [sent / unit.bytes for sent in bytes_so_far(run)],
        ),
        ("seconds", "seconds", "s", lambda run: [*accumulate(row.seconds for row in run.rounds)]),
        ("work", "seconds of clients’ work", "s of work", client_seconds_so_far),
    ]
    if runs and all(row.virtual_time is not None for run in runs for row in run.rounds):
        label = "virtual seconds, by the clock"
        known.append(
            ("virtual", label, "s", lambda run: [row.virtual_time or 0.0 for row in run.rounds])
        )
    axes = [{"name": name, "label": label, "unit": of} for name, label, of, _ in known]
    return axes, {name: measure for name, _, _, measure in known}


def _values(groups: Sequence[Group], name: str) -> list[float]:
    return [
        row[name]
        for group in groups
        for run in group.runs
        for row in _scored(run)
        if row[name] is not None and math.isfinite(row[name])
    ]


def _scored(run: RecordedRun) -> list[RoundRow]:
    return [row for row in run.rounds if row.accuracy is not None]


def _step(groups: Sequence[Group]) -> int:
    runs = [run for group in groups for run in group.runs]
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_TOGETHER // max(len(runs), 1)))
    longest = max((len(_scored(run)) for run in runs), default=0)
    return max(1, math.ceil(longest / most))


def _kept_rounds(groups: Sequence[Group]) -> set[int]:
    """The same rounds for all runs, because means are over runs that have the round."""
    runs = [rows for group in groups for run in group.runs if (rows := _scored(run))]
    rounds = sorted({row.round for rows in runs for row in rows})
    kept = set(rounds[:: _step(groups)])
    for rows in runs:
        ranked = sorted(rows, key=lambda row: row.accuracy or 0.0)
        kept |= {rows[-1].round, ranked[0].round, ranked[-1].round}
    return kept
