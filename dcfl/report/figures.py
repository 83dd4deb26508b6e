"""Charts as figures for print, by matplotlib: SVG and PDF at the width of a column.

Only the object API: no GUI backend, no current figure, and nothing of the user's matplotlibrc.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from dcfl.report.charts import Chart
from dcfl.report.document import Section, shown
from dcfl.report.text import number
from dcfl.system.storage import storage
from dcfl.system.wording import printable

Points = dict[int, tuple[float, float]]  # x and y, by round

COLUMN, BOTH_COLUMNS = 3.4, 7.0  # inches
INK, GRID, GREY, PALE = "#33383d", "#e3e6e8", "#8a9299", "#f0f1f2"
# Okabe and Ito's, which the colour-blind can tell apart; without their yellow, faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DOTS = (*COLOURS, "#8c564b", "#7b5ea7", "#8a8b1b")  # which cannot be dashed
DASHES = ("-", "--", ":")  # once the colours have run out
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "dcfl",  # the same input gives the same bytes
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "grid.color": GRID,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
LEAST_POINTS = 5  # percentage points on an axis; fewer would make noise look like progress
MANY_METHODS = 4  # more crowd the axes, and are drawn thinner
MANY_NAMES, LONGEST_NAME = 12, 16  # names along an axis, and their characters
MANY_NUMBERS = 150  # more cells are too small for a number
MANY_POINTS = 400  # more would make a file of megabytes, and become pixels


def write_figures(sections: Iterable[Section], folder: Path) -> list[Path]:
    """Each chart as NAME.svg and NAME.pdf; curves also over traffic and time."""
    paths: list[Path] = []
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for picture in section.pictures:
            if picture.chart is None:
                continue
            axes = (
                [one["name"] for one in picture.chart["x"]] if _is_curves(picture.chart) else [""]
            )
            for at, across in enumerate(axes):
                name = _file_name(f"{section.title} {picture.title} {across if at else ''}", paths)
                for ending in (".svg", ".pdf"):
                    paths.append(folder / f"{name}{ending}")
                    save(figure(picture.chart, across), paths[-1])
    return paths


def save(drawn: Figure, path: Path) -> None:
    """In the format that the file's name ends in."""
    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    with style(), storage(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(path, dpi=150 if path.suffix == ".png" else 300, metadata=date)


def figure(chart: Chart, across: str = "") -> Figure:
    """`across`: what curves are drawn over; otherwise rounds."""
    clean = shown(dict(chart))
    with style():
        if _is_curves(clean):
            return _curves(clean, across or clean["x"][0]["name"])
        return _panels(clean) if clean["kind"] == "plot" else _matrix(clean)


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def _is_curves(chart: Chart) -> bool:
    return bool(chart["kind"] == "curves")


def _file_name(words: str, taken: Sequence[Path]) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:80] or "figure"
    names = {path.stem for path in taken}
    numbered = (f"{plain}-{count}" for count in range(2, len(names) + 3))
    return next(name for name in (plain, *numbered) if name not in names)


def _curves(chart: Chart, across: str) -> Figure:
    """Every round pale, the moving average bold; over rounds, below it the differences to the first
    method."""
    quantity, rounds = chart["y"][0], across == "round"
    methods = [(at, one) for at, one in enumerate(chart["methods"]) if not one.get("hidden")]
    leads = _leads(methods, quantity) if rounds else {}
    drawn = Figure(figsize=(COLUMN, 3.6 if leads else 2.3), layout="constrained")
    main, *below = drawn.subplots(
        2 if leads else 1, height_ratios=(5, 3) if leads else None, squeeze=False
    )[:, 0]
    for at, method in methods:
        bold = [_points(run, across, _smooth(quantity)) for run in method["runs"] if run["counted"]]
        if len(method["runs"]) > 1 or quantity["ema"]:
            for run in method["runs"]:
                line = [*_points(run, across, quantity["name"]).values()]
                _line(main, at, np.array(line).reshape(-1, 2).T, linewidth=0.6, alpha=0.4)
        _mean(main, at, bold, 0.9 if len(methods) > MANY_METHODS else 1.4, method["label"])
    _set_axis(main, "x", {"label": _named(chart["x"], across)["label"], "whole": rounds})
    _set_axis(main, "y", quantity)
    for axes in below:
        axes.axhline(0, color=GREY, linewidth=0.6)
        for at, points in leads.items():
            _mean(axes, at, points, 1.0)
        unit = "points" if quantity.get("percent") else "loss"
        _set_axis(axes, "x", {"label": "round", "whole": True})
        _set_axis(axes, "y", {"label": f"difference to\n{methods[0][1]['label']} ({unit})"})
    _add_legend(drawn, [main])
    return drawn


def _named(axes: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in axes if one["name"] == name)


def _smooth(quantity: dict[str, Any]) -> str:
    return str(quantity["ema"] or quantity["name"])


def _points(run: dict[str, Any], across: str, name: str) -> Points:
    places = zip(run["round"], run["x"][across], run["y"][name], strict=True)
    return {round: (x, y) for round, x, y in places if x is not None and y is not None}


def _leads(
    methods: Sequence[tuple[int, dict[str, Any]]], quantity: dict[str, Any]
) -> dict[int, list[Points]]:
    """What each method is above the first one, seed by seed."""
    column = _smooth(quantity)
    (_, first), *others = methods
    theirs = {run["seed"]: _points(run, "round", column) for run in first["runs"] if run["counted"]}
    found: dict[int, list[Points]] = {}
    for at, method in others:
        for run in method["runs"]:
            if run["counted"] and (other := theirs.get(run["seed"])):
                own = _points(run, "round", column).items()
                lead = {n: (x, y - other[n][1]) for n, (x, y) in own if n in other}
                found.setdefault(at, []).append(lead)
    return found


def _mean(axes: Axes, at: int, runs: Sequence[Points], width: float, label: str = "") -> None:
    """The mean over the runs where all have a value, in a band from least to greatest."""
    common = sorted(set.intersection(*map(set, runs))) if runs else []
    stacked = np.array([[points[round] for round in common] for points in runs])
    x, y = stacked.mean(axis=0).reshape(-1, 2).T if common else np.empty((2, 0))
    if len(runs) > 1 and common:
        ends = stacked[:, :, 1].min(axis=0), stacked[:, :, 1].max(axis=0)
        axes.fill_between(x, *ends, color=COLOURS[at % len(COLOURS)], alpha=0.15, linewidth=0)
    _line(axes, at, np.array([x, y]), linewidth=width, label=label)


def _line(axes: Axes, at: int, points: NDArray[np.float64], **look: Any) -> None:
    marker = "o" if points.shape[1] == 1 else ""  # a line through one point is invisible
    dashes = DASHES[at // len(COLOURS) % len(DASHES)]
    axes.plot(*points, color=COLOURS[at % len(COLOURS)], linestyle=dashes, marker=marker, **look)


def _panels(chart: Chart) -> Figure:
    panels = chart["panels"]
    height = chart.get("height", 300) / 130
    size = (COLUMN if len(panels) == 1 else BOTH_COLUMNS, height)
    drawn = Figure(figsize=size, layout="constrained")
    grid = drawn.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(grid, panels, strict=True):
        for one in panel["series"]:
            _draw_series(axes, one)
        axes.set_title(panel.get("title", ""))
        _set_axis(axes, "x", panel.get("x", chart["x"]))
        _set_axis(axes, "y", chart["y"] if axes is grid[0] else {**chart["y"], "label": ""})
    _add_legend(drawn, grid)
    return drawn


def _draw_series(axes: Axes, one: dict[str, Any]) -> None:
    x, y = (np.array(one[name], dtype=float) for name in "xy")
    dots, index = one["style"] == "points", one["colour"]
    palette, look = DOTS if dots else COLOURS, dict[str, Any]()
    colour, label = GREY if index < 0 else palette[index % len(palette)], one["label"]
    if "low" in one:
        low, high = (np.array(one[name], dtype=float) for name in ("low", "high"))
        axes.vlines(x, low, high, color=colour, alpha=0.4, linewidth=2.5)
    if dots:
        many = len(x) > MANY_POINTS
        look = {"markersize": 1.5 if many else 3.0, "alpha": 0.6 if len(x) > 60 else 0.85}
        axes.plot(x, y, "o", color=colour, mew=0, label=label, rasterized=many, **look)
    elif one["style"] == "steps":
        axes.fill_between(x, y, step="post", color=colour, alpha=0.28, linewidth=0)
        axes.step(x, y, where="post", color=colour, linewidth=0.8, label=label)
    else:
        dashes = DASHES[one.get("dash", max(index, 0) // len(COLOURS) % len(DASHES))]
        marker, faint = "o" if 2 < len(x) < 12 else "", index < 0
        look = {"linewidth": 0.6, "alpha": 0.45} if faint else {"linewidth": 1.2}
        axes.plot(x, y, dashes, color=colour, marker=marker, markersize=2.5, label=label, **look)


def _set_axis(axes: Axes, which: str, spec: dict[str, Any]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    axis.set_label_text(spec["label"])
    if spec.get("log"):
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(10, numticks=8))
        axis.set_minor_formatter(NullFormatter())
    if "low" in spec:
        set_limits(spec["low"], spec["high"])
    elif "floor" in spec:
        set_limits(spec["floor"])
    elif spec.get("percent"):
        low, high = axes.dataLim.intervalx if which == "x" else axes.dataLim.intervaly
        if low <= high:
            margin = max(0.06 * (high - low), (LEAST_POINTS - (high - low)) / 2)
            set_limits(max(low - margin, 0.0), min(high + margin, 100.0))
    if spec.get("bare"):
        axis.set_ticks([])
    elif "names" in spec:
        _name(axes, which, spec["names"])
        axes.grid(visible=bool(spec.get("rules")), axis="x" if which == "x" else "y")
    else:
        if spec.get("whole"):
            axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _name(axes: Axes, which: str, names: Sequence[str], most: int = MANY_NAMES) -> None:
    """Every place, or every second, fifth, tenth ..."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    places = range(0, len(names), next(step for step in steps if len(names) <= most * step))
    words = [
        "\n".join(printable(line, LONGEST_NAME) for line in names[place].split("\n"))
        for place in places
    ]
    crowded = which == "x" and sum(map(len, words)) > 40 and "\n" not in "".join(words)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(places), words, rotation=90 if crowded else 0)


def _add_legend(drawn: Figure, grid: Iterable[Axes]) -> None:
    """Above the axes, where there is something to tell apart."""
    found: dict[str, Any] = {
        label: handle
        for axes in grid
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if len(found) > 1:
        names = [printable(label, 60) for label in found]
        columns = max(1, int(13 * drawn.get_figwidth() / (max(map(len, names)) + 6)))
        drawn.legend(found.values(), names, loc="outside upper left", ncols=min(columns, 5))
        rows = math.ceil(len(names) / min(columns, 5))
        drawn.set_figheight(drawn.get_figheight() + 0.17 * rows)


def _matrix(chart: Chart) -> Figure:
    cells = np.array(chart["cells"], dtype=float)
    rows, sized = len(cells), chart.get("sizes")
    height = min(max(0.17 * rows, 1.0), 3.4)
    drawn = Figure(figsize=(COLUMN, height + (1.1 if sized else 0.7)), layout="constrained")
    ratios = (0.5, height) if sized else (1,)
    *above, axes = drawn.subplots(len(ratios), height_ratios=ratios, squeeze=False, sharex=True)[
        :, 0
    ]
    shares, colours, norm = _shades(cells, chart["shade"])
    axes.imshow(shares, colours, norm, aspect="auto", interpolation="none")
    if chart["numbers"] and cells.size <= MANY_NUMBERS:
        _write_numbers(axes, cells, norm(shares), chart)
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xlabel(chart["column"])
    axes.set_ylabel(chart["row"])
    _name(axes, "x", chart["columns"])
    _name(axes, "y", chart["rows"], 25)
    for bars in above:
        bars.bar(range(len(cells.T)), np.nansum(cells, axis=0), color=GREY)
        bars.tick_params(labelbottom=False, bottom=False)
        bars.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.grid(visible=False)
    return drawn


def _shades(
    cells: NDArray[np.float64], shade: str
) -> tuple[NDArray[np.float64], Colormap, Normalize]:
    """What is shaded, by which colours, from where to where."""
    known = cells[np.isfinite(cells)]
    most = float(np.abs(known).max(initial=0.5))
    blues = mpl.colormaps["Blues"].with_extremes(bad=PALE)
    if shade == "signed":
        return cells, mpl.colormaps["RdBu"].with_extremes(bad=PALE), Normalize(-most, most)
    if shade == "range":
        return cells, blues, Normalize(float(known.min()), float(known.max()))
    held = np.where(cells > 0, cells, np.nan)
    if shade == "row":
        return held / np.maximum(cells.sum(axis=1, keepdims=True), 1e-9), blues, Normalize(0, 1)
    # The square root keeps a client's few samples of a class visible beside its hundreds.
    return held, blues, PowerNorm(0.5, vmin=0, vmax=max(most, 2))


def _write_numbers(
    axes: Axes, cells: NDArray[np.float64], depth: NDArray[np.float64], chart: Chart
) -> None:
    signed = chart["shade"] == "signed"
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value) and (value or chart["shade"] in ("signed", "range")):
            deep = abs(2 * depth[row, column] - 1) if signed else depth[row, column]
            text = ("+" if signed and value > 0 else "") + number(value, chart.get("digits", 0))
            colour = "white" if deep > 0.6 else INK
            axes.text(column, row, text, color=colour, fontsize=5.5, ha="center", va="center")
