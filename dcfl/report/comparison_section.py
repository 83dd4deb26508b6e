"""How methods compare, also over a setting: as sections of a page, and as CSV and LaTeX for other
programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import Interval, Pair, Paired, Pairs
from dcfl.comparisons.space import plain
from dcfl.comparisons.standing import Ranking, Standing
from dcfl.comparisons.verdict import MANY_METHODS, about_correction, pair_sentences
from dcfl.methods import METHODS, Method
from dcfl.report import charts, text
from dcfl.report.document import Picture, Section, Table, latex_tables
from dcfl.report.methods_table import methods_table
from dcfl.report.text import (
    counted,
    data_unit,
    interval,
    number,
    p_cell,
    p_in_words,
    signed,
    wins_ties_losses,
)

ABOUT_PAIRS = (
    "Points, seed by seed, with 95 % intervals by Student's t, which takes the differences for "
    "normally distributed. p: how likely so large a difference is by chance, by the paired "
    "t-test. Within: a larger difference is ruled out, by the interval."
)
ABOUT_COSTS = (
    "Up to {} reaches the accuracy: one that was chosen, or the one that the first method ends "
    "with in the same seed. Means over the seeds that reach it. Client-seconds are what clients "
    "have trained, all together. Models: how many a client has in memory while it trains, the one "
    "that it received among them, and + how many it keeps between its rounds."
)
UP_TO = {
    "ema_accuracy": "the first scored round whose moving average (EMA)",
    "own_accuracy": "the last round, of runs whose clients’ own accuracy",
}
ABOUT_VIRTUAL = (
    " Virtual seconds are those of the clock's devices, and not of the machine that simulated them."
)
ABOUT_RANKS = (
    "In each data set and split the best method has rank 1, by its mean {}. Bars are as long as "
    "Nemenyi's critical difference at 5 %: methods whose bars overlap are not distinguishable, and "
    "no two are unless Friedman's test finds a difference."
)


def comparison_sections(standing: Standing, drawn: bool = True) -> Iterator[Section]:
    """Ranks over several data sets, how sure the differences are (`drawn`: also as pictures), what
    an accuracy costs."""
    if standing.ranking is not None:
        yield ranking_section(standing.ranking, standing.yardstick.name)
    compared = {task: pairs for task, pairs in standing.pairs.items() if pairs.pairs}
    if compared:
        tables = [
            pairs_table(pairs, task, standing.yardstick.name)
            for task, pairs in compared.items()
            if len(standing.tasks[task]) <= MANY_METHODS
        ]
        pictures = [
            differences_picture(pairs, task, standing.yardstick.name)
            for task, pairs in compared.items()
            if drawn
        ]
        yield Section(
            "Differences, seed by seed", pair_sentences(standing), _noted_once(tables), pictures
        )
    if len(standing.groups) > 1:
        tables = [costs_table(standing, task) for task in standing.tasks]
        yield Section("What an accuracy costs", tables=_noted_once(tables))


def _noted_once(tables: Sequence[Table]) -> list[Table]:
    """The tables with the last one's note only: all notes say the same."""
    return [*(replace(table, note="") for table in tables[:-1]), *tables[-1:]]


def pairs_table(pairs: Pairs, title: str, accuracy: str) -> Table:
    corrected = pairs.tested > 1
    p_values = ["p", *(["p, corrected"] if corrected else [])]
    columns = [
        "Methods",
        f"{accuracy} difference",
        "95 % (t)",
        *p_values,
        "w/t/l",
        "within",
    ]
    rows = [_pair_row(pair, corrected) for pair in pairs.pairs]
    correction = about_correction(pairs) if corrected else ""
    note = " ".join(filter(None, (ABOUT_PAIRS, correction)))
    return Table(columns, rows, title, note)


def differences_picture(pairs: Pairs, task: str, accuracy: str) -> Picture:
    known = sorted(pairs.pairs, key=lambda pair: pair.paired.spread.mean)
    names = [pair.method if pairs.reference else _minus(pair) for pair in known]
    means = [pair.paired.spread.mean for pair in known]
    ends = [pair.paired.interval or (math.nan, math.nan) for pair in known]
    what = f"difference to {pairs.reference}" if pairs.reference else "difference"
    up = {"label": f"{what} (points of {accuracy})", "zero": True}
    return Picture(
        task or "The differences with their intervals",
        "Differences with 95 % intervals: "
        + ", ".join(f"{name} {signed(mean)}" for name, mean in zip(names, means, strict=True)),
        "A dot is the mean over seeds, its bar the 95 % interval. A bar that does not reach 0 is a "
        "difference that chance explains badly.",
        charts.dots_over("difference", names, np.array([means, *zip(*ends, strict=True)]), up),
    )


def _minus(pair: Pair) -> str:
    return f"{pair.method} \N{MINUS SIGN} {pair.other}"


def _pair_row(pair: Pair, corrected: bool) -> list[str]:
    paired = pair.paired
    return [
        _minus(pair),
        signed(paired.spread.mean),
        "–" if paired.interval is None else interval(paired.interval),
        p_cell(paired.p_value),
        *([p_cell(pair.p_value)] if corrected else []),
        wins_ties_losses(paired),
        "–" if paired.bound is None else number(paired.bound),
    ]


def costs_table(standing: Standing, task: str) -> Table:
    groups = standing.tasks[task]
    reached = {group.method: standing.reached(group) for group in groups}
    means = {method: costs.mean for method, costs in reached.items()}
    unit = data_unit(max((cost.bytes for cost in means.values() if cost), default=0.0))
    timed = any(
        run.rounds[-1].virtual_time is not None
        for one in groups
        for run in one.counted
        if run.rounds
    )
    rows = []
    for group in groups:
        method, cost = group.method, means[group.method]
        cells = ["–"] * (3 + timed)
        if cost is not None:
            cells = [
                number(cost.rounds, 0 if cost.rounds == int(cost.rounds) else 1),
                number(cost.bytes / unit.bytes, 1),
                number(cost.client_seconds, 1),
                *([number(cost.virtual_seconds or math.nan, 1)] if timed else []),
            ]
        of = f"{reached[method].count} of {len(reached[method].costs)}"
        rows.append([method, *cells, _models_held(group), of])
    virtual = ["virtual seconds"] if timed else []
    costs = ("rounds", unit.name, "client-seconds", *virtual, "models")
    columns = ("Method", *costs, "seeds that reach it")
    note = ABOUT_COSTS.format(UP_TO[standing.quantity]) + (ABOUT_VIRTUAL if timed else "")
    return Table(columns, rows, _target(standing, task), note)


def _models_held(group: Group) -> str:
    """Of a method that is not known here, a dash."""
    run = group.runs[0]
    method = METHODS.get(str(setting(run, "method.name")))
    personal = bool(setting(run, "federation.personal"))
    return "–" if method is None else models_of(method, personal)


def models_of(method: type[Method], personal: bool = False) -> str:
    """The memory that a client needs, in models. `personal`: a part of it is the client's own."""
    training, kept = method.cost.models
    part = "part" if method.personal or personal else ""
    return " + ".join(map(str, filter(None, (training, kept or part))))


def _target(standing: Standing, task: str) -> str:
    reference = standing.tasks[task][0]
    accuracy = f"{number(standing.target_of(task))} %"
    if standing.target is None:
        average = " on average" if reference.seeds > 1 else ""
        accuracy = f"{reference.method}'s {standing.yardstick.name}, {accuracy}{average}"
    return f"{task}: to reach {accuracy}" if task else f"To reach {accuracy}"


def ranking_section(ranking: Ranking, accuracy: str = "EMA") -> Section:
    names, ranks = list(ranking.mean_ranks), np.array([*ranking.mean_ranks.values()])
    half = ranking.critical_difference / 2
    ends = {"low": ranks.min() - half - 0.2, "high": ranks.max() + half + 0.2}
    up = {"label": "mean rank (1 is the best)", **ends}
    values = np.stack([ranks, ranks - half, ranks + half])
    rows = [[method, number(rank)] for method, rank in ranking.mean_ranks.items()]
    tests = (
        f"Friedman's test over {counted(ranking.tasks, 'data set')} or splits: "
        f"{p_in_words(ranking.p_value)}. Nemenyi's critical difference: "
        f"{number(ranking.critical_difference)} ranks."
    )
    picture = Picture(
        "Mean ranks",
        f"Mean ranks and their critical difference: {', '.join(map(' '.join, rows))}",
        ABOUT_RANKS.format(accuracy),
        charts.dots_over("mean rank", names, values, up),
    )
    table = Table(["Method", "mean rank"], rows)
    return Section("Ranks over data sets and splits", [tests], [table], [picture])


def csv_text(standing: Standing) -> str:
    rows = []
    found = standing.to_json()
    values_of = [*found["methods"], *found["baselines"]]
    for group, values in zip(standing.shown, values_of, strict=True):
        named = {"method": group.method, "task": group.task, "seeds": group.seeds}
        rows.append({**named, **dict(_flat(values))})
    columns = max((list(row) for row in rows), key=len)  # the reference has no gain
    return Table(columns, [[_plain(row.get(column)) for column in columns] for row in rows]).csv()


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """`ema_accuracy` and `ema_accuracy_deviation`, `gain` and `gain_interval_low`, and so on."""
    for name, value in values.items():
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key == "mean":
                yield name, inner
            elif key.endswith("interval"):
                ends = zip(("low", "high"), inner or (None, None), strict=True)
                yield from ((f"{name}_{key}_{end}", one) for end, one in ends)
            elif key not in ("count", "method"):
                yield f"{name}_{key}", inner


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.10g}"
    return "" if value is None else str(value)


LATEX_COLUMNS = ("gain", "interval", "p", "w/t/l", "worst")
ABOUT_MARKS = (
    "% Bold: the highest mean of the column. Dagger: not distinguishable from it at 5 %, by the "
    "paired t-test over seeds with Holm's correction.\n"
)


def latex_text(standing: Standing) -> str:
    tables = [_marked_table(standing, task) for task in standing.tasks]
    sections = [Section("Results", tables=tables), *comparison_sections(standing, drawn=False)]
    return ABOUT_MARKS + latex_tables(sections)


def _marked_table(standing: Standing, task: str) -> Table:
    groups = standing.tasks[task]
    baselines = [one for one in standing.baselines if one.task == task]
    marked = {"MAX": "max_accuracy", "EMA": "ema_accuracy"}
    if standing.quantity == "own_accuracy":
        marked = {"own final": standing.quantity}
    columns = ["method", "seeds", *marked, *LATEX_COLUMNS]
    table = methods_table(standing, [*groups, *baselines], columns)
    rows, bold = [list(row) for row in table.rows], set()
    for name, quantity in marked.items():
        column = columns.index(name)
        best, ties = standing.best(task, quantity), standing.ties(task, quantity)
        for at, group in enumerate(groups):
            if group is best and len(groups) > 1:
                bold.add((at, column))
            elif group.method in ties:
                rows[at][column] += "†"
    return replace(table, rows=rows, title=task, bold=frozenset(bold))


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
