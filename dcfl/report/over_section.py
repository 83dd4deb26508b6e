"""Methods over a setting: the curves and the table of `dcfl compare --over`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import Interval, Paired
from dcfl.comparisons.space import plain
from dcfl.comparisons.standing import Standing
from dcfl.report import charts, text
from dcfl.report.document import Picture, Section, Table

Point = tuple[Any, ...]  # the value of each setting


class CurvePoint(NamedTuple):
    mean: float
    interval: Interval | None  # with 95 %


PointOf = Callable[[Standing, Group], CurvePoint]


def over_section(standing: Standing, keys: Sequence[str]) -> Section:
    """A line per method over the values of the first setting, a panel per value of the second."""
    first, accuracy = standing.groups[0].method, standing.yardstick.name
    about = "A point is the mean over seeds, its bar the 95 % interval (Student’s t)."
    pictures = [
        _picture(
            standing,
            keys,
            f"{accuracy} (%)",
            f"{about} Seeds share splits: whether methods differ is seen in their differences.",
            _own,
        )
    ]
    if len(_methods(standing)) > 1:
        label = f"{accuracy} against {first} (points)"
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
            **{
                key: plain(value) if value == math.inf else value
                for key, value in zip(keys, point, strict=True)
            },
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
    return (
        CurvePoint(pair.paired.spread.mean, pair.paired.interval)
        if pair
        else CurvePoint(math.nan, None)
    )


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
    standing: Standing, keys: Sequence[str], label: str, about: str, estimate: PointOf
) -> Picture:
    points, methods = _by_point(standing, keys), _methods(standing)
    across = list(dict.fromkeys(point[0] for point in points))
    names, rests = list(map(plain, across)), list(dict.fromkeys(point[1:] for point in points))
    shape = (len(rests), 3, len(methods), len(across))
    values: NDArray[np.float64] = np.full(shape, np.nan)
    for point, groups in points.items():
        for group in groups:
            mean, ends = estimate(standing, group)
            panel, row = rests.index(point[1:]), methods.index(group.method)
            values[panel, :, row, across.index(point[0])] = (mean, *(ends or (np.nan, np.nan)))
    panels = [_panel(keys, rest, names, methods, values[at]) for at, rest in enumerate(rests)]
    up = {"label": label, **charts.reach(values), "zero": estimate is _gain}
    title = label.partition(" (")[0]
    return Picture(
        title,
        f"Lines of {title} over {text.listed([*keys])}, a line per method.",
        about,
        charts.plot(charts.places(keys[0], names), up, panels),
        wide=True,
    )


def _panel(
    keys: Sequence[str],
    rest: Point,
    names: Sequence[str],
    methods: Sequence[str],
    values: NDArray[np.float64],
) -> dict[str, Any]:
    """`rest`: the value of the second setting, if there is one."""
    pairs = zip(keys[1:], rest, strict=True)
    lines = charts.lines_over(names, methods, values)
    known = [one for one in lines if any(y is not None for y in one["y"])]
    title = ", ".join(f"{key} = {plain(value)}" for key, value in pairs)
    return {"title": title, "series": known}


def _table(standing: Standing, keys: Sequence[str]) -> Table:
    methods = _methods(standing)
    rows = []
    for point, groups in _by_point(standing, keys).items():
        by_method = {group.method: group for group in groups}
        cells = [
            text.with_deviation(by_method[name].spread(standing.quantity))
            if name in by_method
            else "–"
            for name in methods
        ]
        rows.append([", ".join(map(plain, point)), *cells])
    name = standing.yardstick.name
    note = f"{name} in percent; with several seeds, the mean ± the sample standard deviation."
    return Table([", ".join(keys), *methods], rows, note=note)
