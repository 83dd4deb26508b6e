"""The charts of a sweep; sweep_figures.py has the pictures that they take the place of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcfl.report import charts
from dcfl.report.charts import GREY, Chart, series
from dcfl.report.text import number, with_deviation
from dcfl.runs.groups import Group
from dcfl.studies.sweep.space import Choices, Dimension, plain, short_names
from dcfl.studies.sweep.sweep_figures import (
    NAMED_CURVES,
    SCORE,
    places_of,
    score_table,
    shares_of,
    two_lists,
)
from dcfl.studies.sweep.trials import By, Trial

MOST_CURVES = 20  # in a legend; a reader looks for the good ones
MARGIN = 0.04  # beside the first and the last value, as a share of the axis
FEW_VALUES = 4  # are named below their axis; of more, the first and the last


def scores_chart(dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By) -> Chart | None:
    """Of finished trials, the best first."""
    if len(dimensions) == 1:
        return _over_one_key(dimensions[0], trials, by)
    if lists := two_lists(dimensions):
        rows, columns = ((one.key, list(map(plain, one.values))) for one in lists)
        table = score_table(*lists, trials, by)
        return charts.matrix(table, rows, columns, "accuracy, %", "range", digits=2)
    return _parallel_coordinates(dimensions, trials, by)


def trial_groups(ranked: Sequence[Trial], labels: Sequence[str]) -> list[Group]:
    """The best trials that have begun, for a chart of their curves."""
    begun = (
        Group(label, tuple(cell.run for cell in trial.cells if cell.run is not None))
        for trial, label in zip(ranked, labels, strict=True)
        if trial.rounds
    )
    return list(begun)[:MOST_CURVES]


def _over_one_key(dimension: Dimension, trials: Sequence[Trial], by: By) -> Chart:
    places = places_of(dimension, trials)
    means = [trial.score(by) for trial in trials]
    label = "mean over seeds" if any(len(trial.cells) > 1 for trial in trials) else "trials"
    line = sorted(zip(places, means, strict=True))
    shown = [
        series(label, [x for x, _ in line], [y for _, y in line], 0),
        series(label, places, means, 0, "points", notes=[_note(one, by) for one in trials]),
    ]
    seeds = [
        (place, score, f"trial {trial.number}, one seed: {number(score)} %")
        for place, trial in zip(places, trials, strict=True)
        if len(trial.cells) > 1
        for score in trial.scores(by)
    ]
    if seeds:
        x, y, notes = zip(*seeds, strict=True)
        shown.append(series("each seed", x, y, GREY, "points", notes=notes))
    axis = {"label": dimension.key, **_scale(dimension)}
    return charts.plot(axis, {"label": SCORE, "percent": True}, [{"series": shown}])


def _scale(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choices):
        last = len(dimension.values) - 1
        return {"names": list(map(plain, dimension.values)), "low": -0.3, "high": last + 0.3}
    if dimension.log:
        room = (dimension.high / dimension.low) ** MARGIN
        return {"log": True, "low": dimension.low / room, "high": dimension.high * room}
    room = (dimension.high - dimension.low) * MARGIN
    return {"low": dimension.low - room, "high": dimension.high + room}


def _parallel_coordinates(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By
) -> Chart:
    """A line per trial through its settings to its score; the best have the colours that they have
    among the curves."""
    scores = [trial.score(by) for trial in trials]
    low, high = min(scores), max(scores)
    heights = [shares_of(one, [trial.point[one.key] for trial in trials]) for one in dimensions]
    heights.append([(score - low) / (high - low or 1) for score in scores])
    lines = [
        series(
            f"trial {trial.number}" if rank < NAMED_CURVES else "other trials",
            range(len(heights)),
            [column[rank] for column in heights],
            rank if rank < NAMED_CURVES else GREY,
            notes=[_note(trial, by)] * len(heights),
        )
        for rank, trial in enumerate(trials)
    ]
    drawn = [*lines[NAMED_CURVES:], *lines[:NAMED_CURVES]]  # the best on top
    names = [
        f"{name}\n{_values(one)}"
        for name, one in zip(short_names([one.key for one in dimensions]), dimensions, strict=True)
    ]
    names.append(f"accuracy, %\n{number(low, 1)} to {number(high, 1)}")
    across = {"label": "", "names": names, "low": -0.4, "high": len(names) - 0.6, "rules": True}
    up = {"label": "each from low to high", "low": -0.06, "high": 1.06, "bare": True}
    return charts.plot(across, up, [{"series": drawn}])


def _values(dimension: Dimension) -> str:
    if isinstance(dimension, Choices) and len(dimension.values) <= FEW_VALUES:
        return ", ".join(map(plain, dimension.values))
    return f"{plain(dimension.ends[0])} to {plain(dimension.ends[-1])}"


def _note(trial: Trial, by: By) -> str:
    settings = [f"{key} = {plain(value)}" for key, value in trial.point.items()]
    return "\n".join([f"trial {trial.number}: {with_deviation(trial.spread(by))} %", *settings])
