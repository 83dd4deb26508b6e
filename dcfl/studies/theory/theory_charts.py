"""The charts of the theory page; theory_figures.py has the pictures that they take the place of."""

from __future__ import annotations

from typing import Any

from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.studies.theory.theory_study import Study


def deviation_chart(study: Study) -> Chart:
    points, sphere = study.points, study.sphere
    across = [point.negatives for point in points]
    return _over_negatives(
        "deviation from the limit",
        [
            series("bound", across, [p.bound for p in points], 6),
            series(
                "most that is possible", across, list(map(sphere.certain_range, across)), 6, dash=2
            ),
            series("RMS of a draw", across, [p.rms for p in points], 2),
            series("spread of a draw", across, [p.spread for p in points], 1),
            series("mean deviation", across, [abs(p.deviation) for p in points], 0),
        ],
    )


def terms_chart(study: Study) -> Chart:
    points = study.points
    across = [point.negatives for point in points]
    return _over_negatives(
        "part of the deviation",
        [
            series("first term: e^(2/τ)/M", across, [p.positive_bound for p in points], 0, dash=1),
            series(
                "second term: e^(2/τ)/(2√M)", across, [p.sampling_bound for p in points], 1, dash=1
            ),
            series("positive's part", across, [p.positive_part for p in points], 0),
            series("negatives' part", across, [p.sampling_part for p in points], 1),
        ],
    )


def _over_negatives(up: str, lines: list[dict[str, Any]]) -> Chart:
    """Both axes are logarithmic, so that what is not above 0 is left out."""
    shown = [{**one, "y": [y if y and y > 0 else None for y in one["y"]]} for one in lines]
    axis = {"label": "negatives M", "log": True}
    return charts.plot(axis, {"label": up, "log": True}, [{"series": shown}])
