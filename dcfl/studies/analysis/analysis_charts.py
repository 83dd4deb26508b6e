"""The charts about analysed runs; figures.py has the pictures that they take the place of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.text import number
from dcfl.studies.analysis.drift import Drift
from dcfl.studies.analysis.figures import (
    DRIFTS,
    EDGES,
    DriftQuantity,
    apart,
    coloured_classes,
    cosine_range,
)
from dcfl.studies.analysis.findings import Analysis

PLANE_HEIGHT = 320  # pixels


def separation_chart(analyses: Sequence[Analysis]) -> Chart:
    """Both histograms of each run in a panel."""
    low, high = cosine_range(analyses)
    first = int(np.searchsorted(EDGES, low))
    panels = [
        {
            "title": f"{one.label}: overlap {number(100 * one.similarity.overlap, 1)} %",
            "series": [
                series(name, EDGES[first:-1], cosines.density[first:], colour, "steps")
                for colour, (name, (_, cosines)) in enumerate(
                    zip(("same class", "different classes"), one.kinds, strict=True)
                )
            ],
        }
        for one in analyses
    ]
    top = max(cosines.density.max() for one in analyses for _, cosines in one.kinds)
    return charts.plot(
        {"label": "cosine", "low": low, "high": high},
        {"label": "density", "low": 0, "high": float(1.05 * top or 1.0)},
        panels,
    )


def spectrum_chart(analyses: Sequence[Analysis]) -> Chart:
    lines = [
        series(one.label, range(1, len(held) + 1), 100 * held, colour)
        for colour, one in enumerate(analyses)
        if len(held := np.asarray(one.dimensions.explained))
    ]
    return charts.plot(
        {"label": "principal directions", "log": True},
        {"label": "variance held (%)", "low": 0, "high": 102},
        [{"series": lines}],
    )


def plane_chart(analyses: Sequence[Analysis]) -> Chart:
    """The embeddings in two dimensions; classes without a colour of their own are grey."""
    names = analyses[0].class_names
    chosen = coloured_classes(len(names))
    reach = max(float(np.abs(one.plane.points).max()) for one in analyses)
    edges = {"low": -1.05 * reach or -1.0, "high": 1.05 * reach or 1.0, "bare": True}
    panels = [
        {"title": one.label, "series": list(_classes(one, names, chosen))} for one in analyses
    ]
    return charts.plot(
        {"label": "first direction", **edges},
        {"label": "second direction", **edges},
        panels,
        height=PLANE_HEIGHT,
    )


def drift_chart(drifts: Sequence[tuple[str, Drift]]) -> Chart:
    """A row of dots per run in each panel, and its mean as a bar. The legend names the rows."""
    panels = []
    for quantity in DRIFTS:
        dots = [_drift_dots(quantity, at, *labelled) for at, labelled in enumerate(drifts)]
        means = [_mean_bar(one, -at) for at, one in enumerate(dots) if one["x"]]
        axis = {"label": quantity.label, **_drift_range(quantity, dots)}
        panels.append({"title": quantity.title, "x": axis, "series": [*means, *dots]})
    rows = {"label": "", "low": 0.6 - len(drifts), "high": 0.4, "bare": True}
    return charts.plot({"label": ""}, rows, panels, height=110 + 26 * len(drifts))


def _drift_dots(quantity: DriftQuantity, at: int, label: str, drift: Drift) -> dict[str, Any]:
    values = quantity.values(drift)
    notes = [
        f"{who}\n{quantity.label} {number(value, 4)}"
        for who, value in zip(quantity.owners(drift), values, strict=True)
    ]
    return series(label, values, apart(values) - at, at, "points", notes=notes)


def _drift_range(quantity: DriftQuantity, dots: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Distances begin at 0."""
    values = [value for one in dots for value in one["x"]]
    highest = max(values, default=1.0) or 1.0
    return {"low": -0.03 * highest, "high": 1.06 * highest} if quantity.distance else {}


def _mean_bar(dots: dict[str, Any], row: float) -> dict[str, Any]:
    mean = float(np.mean(dots["x"]))
    return series(dots["label"], [mean, mean], [row - 0.3, row + 0.3], 6, dash=0)


def _classes(one: Analysis, names: Sequence[str], chosen: Sequence[int]) -> list[dict[str, Any]]:
    points, labels = one.plane.points, one.plane.labels
    found = []
    for colour, label in enumerate(chosen):
        own = points[labels == label]
        notes = [names[label]] * len(own)
        found.append(series(names[label], own[:, 0], own[:, 1], colour, "points", notes=notes))
    rest = np.flatnonzero(~np.isin(labels, chosen))
    if len(rest):
        notes = [names[label] for label in labels[rest]]
        across, up = points[rest].T
        found.append(series("other classes", across, up, charts.GREY, "points", notes=notes))
    return found
