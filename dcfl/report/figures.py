"""Charts as figures for print, by matplotlib: SVG and PDF at the width of a column.

Only the object API: no GUI backend, no current figure, and nothing of the user's matplotlibrc.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dcfl.report.charts import Chart
from dcfl.report.document import Section, shown
from dcfl.report.text import number
from dcfl.system.storage import replacing, storage
from dcfl.system.wording import printable

with chdir(Path(__file__).parent):  # its import reads the matplotlibrc of the working folder
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

Points = dict[int, tuple[float, float]]  # x and y, by round

COLUMN, BOTH_COLUMNS = 3.4, 7.0  # inches
INK, GRID, GREY, PALE = "#33383d", "#e3e6e8", "#8a9299", "#f0f1f2"
# Okabe and Ito's, which the colour-blind can tell apart; without their yellow, faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DOTS = (*COLOURS, "#8c564b", "#7b5ea7", "#8a8b1b")  # of classes, of which ten have a colour
# Grey print, and some eyes, have no colours: each method has dashes and marks of its own too. Their
# numbers have no common divisor, so that the first 35 methods differ.
DASHES: Any = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1.5, 2)), (0, (10, 2)))
MARKS = ("o", "s", "^", "D", "v", "P", "X")
MARKED = 6  # places of a curve with its mark
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's own Type 3
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
COSTS = ("sent", "work", "virtual")  # that papers show an accuracy over
LEAST_POINTS = 5  # percentage points on an axis; fewer would make noise look like progress
MANY_NAMES, LONGEST_NAME = 12, 16  # names along an axis, and their characters
MANY_NUMBERS = 150  # more cells are too small for a number
MANY_POINTS = 400  # more would make a file of megabytes, and become pixels


def write_figures(sections: Iterable[Section], folder: Path) -> list[Path]:
    """Each chart as NAME.svg and NAME.pdf; accuracies also over what they cost."""
    paths: list[Path] = []
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for picture in section.pictures:
            if picture.chart is None or not picture.printed:
                continue
            for across in _drawn_over(picture.chart):
                name = _file_name(f"{section.title} {picture.title} {across}", paths)
                for ending in (".svg", ".pdf"):
                    paths.append(folder / f"{name}{ending}")
                    save(figure(picture.chart, across), paths[-1])
    return paths


def _drawn_over(chart: Chart) -> list[str]:
    """Empty stands for rounds, or for what the chart has."""
    if chart["kind"] != "curves" or not chart["y"][0]["percent"]:
        return [""]
    return ["", *(one["name"] for one in chart["x"] if one["name"] in COSTS)]


def _file_name(words: str, taken: Sequence[Path]) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:80] or "figure"
    names = {path.stem for path in taken}
    numbered = (f"{plain}-{count}" for count in range(2, len(names) + 3))
    return next(name for name in (plain, *numbered) if name not in names)


def save(drawn: Figure, path: Path) -> None:
    date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    dpi = 150 if path.suffix == ".png" else 300
    with _style(), replacing(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(partial, format=path.suffix[1:], dpi=dpi, metadata=date)


def figure(chart: Chart, across: str = "") -> Figure:
    """`across`: what curves are drawn over; otherwise rounds."""
    clean = shown(dict(chart))
    if chart["kind"] == "curves":
        clean = _panels_of_curves(clean, across or clean["x"][0]["name"])
    with _style():
        return _matrix(clean) if clean["kind"] == "matrix" else _panels(clean)


@contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def _panels_of_curves(chart: Chart, across: str) -> Chart:
    """Every round pale, the moving average bold; over rounds, below it the differences to the first
    method, seed by seed. A method that lacks the quantity is left out."""
    quantity, column = chart["y"][0], chart["y"][0]["ema"] or chart["y"][0]["name"]
    methods = [(at, one) for at, one in enumerate(chart["methods"]) if not one.get("hidden")]
    axis = next(one for one in chart["x"] if one["name"] == across)
    curves, leads = list[dict[str, Any]](), list[dict[str, Any]]()
    first: dict[str, Points] | None = None
    for at, method in methods:
        if len(method["runs"]) > 1 or quantity["ema"]:
            pale = [_points(run, across, quantity["name"]) for run in method["runs"]]
            curves += [{**line, "pale": True} for run in pale for line in _mean("", at, [run])]
        counted = [run for run in method["runs"] if run["counted"]]
        curves += _mean(method["label"], at, [_points(run, across, column) for run in counted])
        by_seed = {run["seed"]: _points(run, "round", column) for run in counted}
        if first is None:
            first = by_seed
        elif across == "round":
            gains = [
                {n: (x, y - first[seed][n][1]) for n, (x, y) in own.items() if n in first[seed]}
                for seed, own in by_seed.items()
                if seed in first
            ]
            leads += _mean("", at, gains)
    unit = "points" if quantity["percent"] else "loss"
    panels = [{"x": {**axis, "whole": across == "round"}, "y": quantity, "series": curves}]
    if leads:
        level = {"label": f"difference to\n{methods[0][1]['label']} ({unit})", "zero": True}
        panels.append({"x": {"label": "round", "whole": True}, "y": level, "series": leads})
    return {"kind": "plot", "panels": panels, "stacked": True, "height": 300}


def _points(run: dict[str, Any], across: str, name: str) -> Points:
    places = zip(run["round"], run["x"][across], run["y"][name], strict=True)
    return {round: (x, y) for round, x, y in places if x is not None and y is not None}


def _mean(label: str, colour: int, runs: Sequence[Points]) -> list[dict[str, Any]]:
    """Over the rounds that all runs have, in a band from least to greatest; empty without any."""
    common = sorted(set.intersection(*map(set, runs))) if runs else []
    if not common:
        return []
    stacked = np.array([[points[n] for n in common] for points in runs])
    x, y = stacked.mean(axis=0).T
    line = {"label": label, "x": x, "y": y, "colour": colour, "style": "band"}
    ends = {"low": stacked[..., 1].min(axis=0), "high": stacked[..., 1].max(axis=0)}
    return [{**line, **ends} if len(runs) > 1 else line]


def _panels(chart: Chart) -> Figure:
    panels, stacked = chart["panels"], chart.get("stacked")
    tall = len(panels) if stacked else 1
    size = (COLUMN if stacked or len(panels) == 1 else BOTH_COLUMNS, chart.get("height", 300) / 130)
    drawn = Figure(figsize=(size[0], size[1] + 1.3 * (tall - 1)), layout="constrained")
    ratios = (5, 3)[:tall]
    grid = drawn.subplots(tall, len(panels) // tall, squeeze=False, height_ratios=ratios).ravel()
    for axes, panel in zip(grid, panels, strict=True):
        for one in panel["series"]:
            _draw_series(axes, one)
        axes.set_title(panel.get("title", ""))
        up = panel.get("y") or (chart["y"] if axes is grid[0] else {**chart["y"], "label": ""})
        _set_axis(axes, "x", panel.get("x") or chart["x"])
        _set_axis(axes, "y", up)
    _add_legend(drawn, grid)
    return drawn


def _draw_series(axes: Axes, one: dict[str, Any]) -> None:
    x, y = (np.array(one[name], dtype=float) for name in "xy")
    style, index, label = one["style"], one["colour"], one["label"] or None
    palette = DOTS if style == "points" else COLOURS
    colour = GREY if index < 0 else palette[index % len(palette)]
    dashes = DASHES[one.get("dash", max(index, 0)) % len(DASHES)]
    mark = MARKS[max(index, 0) % len(MARKS)]
    faint = index < 0 or one.get("pale")
    look: dict[str, Any] = {"color": colour, "label": label, "linewidth": 0.6 if faint else 1.2}
    if "low" in one:
        low, high = (np.array(one[name], dtype=float) for name in ("low", "high"))
        if style == "band":
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        else:
            axes.vlines(x, low, high, color=colour, alpha=0.4, linewidth=2.5)
    if style == "points":
        many = len(x) > MANY_POINTS
        look |= {"markersize": 1.5 if many else 3.0, "alpha": 0.6 if len(x) > 60 else 0.85}
        axes.plot(x, y, mark, mew=0, rasterized=many, **look)
    elif style == "steps":
        axes.fill_between(x, y, step="post", color=colour, alpha=0.28, linewidth=0)
        axes.step(x, y, where="post", linestyle=dashes, **look)
    elif faint:  # a line through one point is invisible
        axes.plot(x, y, marker="o" if len(x) == 1 else "", markersize=2, alpha=0.45, **look)
    else:  # marks at places of its own, because curves may lie on each other
        step = max(1, len(x) // MARKED)
        places = (index * step // len(MARKS) % step, step)
        shown = "" if "dash" in one else mark
        axes.plot(
            x, y, linestyle=dashes, marker=shown, markersize=3, mew=0, markevery=places, **look
        )


def _set_axis(axes: Axes, which: Literal["x", "y"], spec: dict[str, Any]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.dataLim.intervalx if which == "x" else axes.dataLim.intervaly
    axis.set_label_text(spec["label"])
    if spec.get("zero"):
        axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
    if spec.get("log"):
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(10, numticks=8))
        axis.set_minor_formatter(NullFormatter())
    if "low" in spec:
        axes.set(**{f"{which}lim": (spec["low"], spec["high"])})
    elif "floor" in spec:
        axes.set(**{f"{which}lim": (spec["floor"], None)})
    elif spec.get("percent") and low <= high:
        margin = max(0.06 * (high - low), (LEAST_POINTS - (high - low)) / 2)
        axes.set(**{f"{which}lim": (max(low - margin, 0.0), min(high + margin, 100.0))})
    if spec.get("bare"):
        axis.set_ticks([])
    elif "names" in spec:
        _name(axes, which, spec["names"])
        axes.grid(visible=False, axis=which)
    else:
        if spec.get("whole"):
            axis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _name(axes: Axes, which: str, names: Sequence[str], most: int = MANY_NAMES) -> None:
    """Every place, or every second, fifth, tenth ..."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    places = range(0, len(names), next(step for step in steps if len(names) <= most * step))
    words = [printable(names[place], LONGEST_NAME) for place in places]
    crowded = which == "x" and sum(map(len, words)) > 40
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
        columns = min(5, max(1, int(13 * drawn.get_figwidth() / (max(map(len, names)) + 6))))
        drawn.legend(found.values(), names, loc="outside upper left", ncols=columns)
        drawn.set_figheight(drawn.get_figheight() + 0.17 * math.ceil(len(names) / columns))


def _matrix(chart: Chart) -> Figure:
    cells = np.array(chart["cells"], dtype=float)
    rows, sized = len(cells), chart.get("sizes")
    height = min(max(0.17 * rows, 1.0), 3.4)
    drawn = Figure(figsize=(COLUMN, height + (1.1 if sized else 0.7)), layout="constrained")
    ratios = (0.5, height) if sized else (1,)
    grid = drawn.subplots(len(ratios), height_ratios=ratios, squeeze=False, sharex=True)
    *above, axes = grid[:, 0]
    shares, colours, norm = _shades(cells, chart["shade"])
    axes.imshow(shares, colours, norm, aspect="auto", interpolation="none")
    depth = norm(shares)
    for (row, column), value in np.ndenumerate(cells if cells.size <= MANY_NUMBERS else ()):
        if np.isfinite(value) and (value or chart["shade"] == "range"):
            colour = "white" if depth[row, column] > 0.6 else INK
            told = number(value, chart.get("digits", 0))
            axes.text(column, row, told, color=colour, fontsize=5.5, ha="center", va="center")
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
    known = cells[np.isfinite(cells)]
    blues = mpl.colormaps["Blues"].with_extremes(bad=PALE)
    if shade == "range":
        return cells, blues, Normalize(float(known.min()), float(known.max()))
    held = np.where(cells > 0, cells, np.nan)
    if shade == "row":
        return held / np.maximum(cells.sum(axis=1, keepdims=True), 1e-9), blues, Normalize(0, 1)
    # The square root keeps a client's few samples of a class visible beside its hundreds.
    return held, blues, PowerNorm(0.5, vmin=0, vmax=float(known.max(initial=2.0)))
