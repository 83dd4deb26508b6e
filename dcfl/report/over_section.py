"""Methods over a setting: the curves and the table of `dcfl compare --over`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import Interval, Paired
from dcfl.comparisons.space import plain
from dcfl.comparisons.standing import Standing
from dcfl.report import charts, text
from dcfl.report.document import Picture, Section, Table

Point = tuple[Any, ...]  # the value of each setting


class CurvePoint(NamedTuple):
    mean: float = math.nan
    interval: Interval | None = None  # with 95 %


def over_section(standing: Standing, keys: Sequence[str]) -> Section:
    """A line per method over the values of the first setting, a panel per value of the second."""
    accuracy = standing.yardstick.name
    about = "A point is the mean over seeds, its bar the 95 % interval (Student’s t)."
    own = f"{about} Seeds share splits: whether methods differ is seen in their differences."
    pictures = [_picture(standing, keys, f"{accuracy} (%)", own, _own)]
    if len(_methods(standing)) > 1:
        label = f"{accuracy} against {standing.groups[0].method} (points)"
        more = f"{about} Differences are taken seed by seed; a bar that reaches 0 may be chance."
        pictures.append(_picture(standing, keys, label, more, _gain))
    return Section(
        f"Over {text.listed([*keys])}", tables=[_table(standing, keys)], pictures=pictures
    )


def points_json(standing: Standing, keys: Sequence[str]) -> list[dict[str, Any]]:
    """A row per value and method; `gain` is the paired difference to the first method."""
    return [
        {
            # JSON has no infinity.
            **dict(zip(keys, ("inf" if one == math.inf else one for one in point), strict=True)),
            "method": group.method,
            "seeds": group.seeds,
            **_own(standing, group)._asdict(),
            "gain": _gain(standing, group)._asdict() if standing.gain(group) is not None else None,
        }
        for point, groups in _by_point(standing, keys).items()
        for group in groups
    ]


def _own(standing: Standing, group: Group) -> CurvePoint:
    values = Paired(tuple(group.scores(standing.quantity).values()))
    return CurvePoint(values.spread.mean, values.interval)


def _gain(standing: Standing, group: Group) -> CurvePoint:
    pair = standing.gain(group)
    return CurvePoint(pair.paired.spread.mean, pair.paired.interval) if pair else CurvePoint()


def _methods(standing: Standing) -> list[str]:
    return list(dict.fromkeys(group.method for group in standing.groups))


def _by_point(standing: Standing, keys: Sequence[str]) -> dict[Point, list[Group]]:
    """Numbers in their order, other values as they came."""
    found: dict[Point, list[Group]] = {}
    for groups in standing.tasks.values():
        for group in groups:
            point = tuple(setting(group.runs[0], key) for key in keys)
            found.setdefault(point, []).append(group)
    if all(isinstance(value, int | float) for point in found for value in point):
        return dict(sorted(found.items(), key=lambda item: item[0]))
    return found


def _picture(
    standing: Standing,
    keys: Sequence[str],
    label: str,
    about: str,
    estimate: Callable[[Standing, Group], CurvePoint],
) -> Picture:
    points, methods = _by_point(standing, keys), _methods(standing)
    across = list(dict.fromkeys(point[0] for point in points))
    rests = list(dict.fromkeys(point[1:] for point in points))  # values of the second setting
    values = np.full((len(rests), 3, len(methods), len(across)), np.nan)
    for point, groups in points.items():
        for group in groups:
            mean, ends = estimate(standing, group)
            panel, row = rests.index(point[1:]), methods.index(group.method)
            values[panel, :, row, across.index(point[0])] = (mean, *(ends or (np.nan, np.nan)))
    names = list(map(plain, across))
    panels = [
        {
            "title": ", ".join(
                f"{key} = {plain(one)}" for key, one in zip(keys[1:], rest, strict=True)
            ),
            "series": [
                line
                for line in charts.lines_over(names, methods, values[at])
                if any(y is not None for y in line["y"])
            ],
        }
        for at, rest in enumerate(rests)
    ]
    up = {"label": label, **charts.reach(values), "zero": estimate is _gain}
    title = label.partition(" (")[0]
    return Picture(
        title,
        f"Lines of {title} over {text.listed([*keys])}, a line per method.",
        about,
        charts.plot(charts.places(keys[0], names), up, panels),
        wide=True,
    )


def _table(standing: Standing, keys: Sequence[str]) -> Table:
    methods = _methods(standing)
    rows = []
    for point, groups in _by_point(standing, keys).items():
        shown = {
            group.method: text.with_deviation(group.spread(standing.quantity)) for group in groups
        }
        rows.append([", ".join(map(plain, point)), *(shown.get(name, "–") for name in methods)])
    name = standing.yardstick.name
    note = f"{name} in percent; with several seeds, the mean ± the sample standard deviation."
    return Table([", ".join(keys), *methods], rows, note=note)
