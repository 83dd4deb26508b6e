"""The figures of a report. Matplotlib's object API only: no GUI backend, no current figure."""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, scored_on
from dcfl.comparisons.standing import bytes_so_far
from dcfl.data.dataset_summary import MANY_CLIENTS, Overview
from dcfl.report.text import data_unit, on_images
from dcfl.runs.folder import RecordedRun
from dcfl.system.wording import printable

Arguments = ParamSpec("Arguments")
Dashes = Literal["-", "--", ":"]
Points = dict[int, tuple[float, float]]  # round -> (x, y)

WIDTH = 5.4  # inches: narrow, so that labels stay readable when a phone scales the picture down
INK, GRID = "#33383d", "#e3e6e8"
# Okabe and Ito's, which the colour-blind can tell apart; without their yellow, faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Dashes, ...] = ("-", "--", ":")  # once the colours have run out
STYLE: Any = {
    "svg.fonttype": "none",  # browsers have fonts for every script, matplotlib does not
    "svg.hashsalt": "dcfl",  # the same input gives the same bytes
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
MANY_ACROSS, MANY_DOWN = 12, 25  # more labels do not fit along an axis
LONGEST_CLASS, LONGEST_LABEL = 16, 60  # characters of the names beside an axis and in a legend
MANY_METHODS = 4  # more crowd the axes, and are drawn thinner
LEAST_POINTS = 5  # percentage points on an axis; fewer would make noise look like progress
MANY_BARS = 60  # more leave no room for gaps
LOG_FROM = 50  # ratio of largest to smallest loss, above which a linear axis hides the small


@dataclass(frozen=True)
class Look:
    """How the curves of one method are drawn."""

    colour: str
    dashes: Dashes
    width: float  # of the bold line
    pale: float  # opacity of single runs
    band: float  # opacity of the band


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    @functools.wraps(draw)
    def with_style(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return with_style


def as_svg(figure: Figure) -> bytes:
    stream = io.BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # Matplotlib only measures the text here; the reader's browser draws it, in its own fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


@styled
def accuracy_figure(groups: Sequence[Group]) -> Figure:
    """Accuracy over rounds: every round pale, the moving average bold."""
    figure, axes = _curve_axes(groups, "round", f"{_measured('accuracy', groups)} (%)")
    for group, look in _with_looks(groups):
        _draw_each(axes, [_points(run, "accuracy", _rounds) for run in group.runs], look)
        _draw_mean(axes, [_points(run, "ema_accuracy", _rounds) for run in group.counted], look)
    if len(groups) == 1:
        _mark_maximum(axes, groups[0].counted)
    _fit_percent(axes)
    return figure


@styled
def traffic_figure(groups: Sequence[Group]) -> Figure:
    """The moving average against what has been sent so far, both ways."""
    runs = [run for group in groups for run in group.runs]
    unit = data_unit(max((sent for run in runs for sent in bytes_so_far(run)), default=0.0))

    def sent_in_units(run: RecordedRun) -> list[float]:
        return [sent / unit.bytes for sent in bytes_so_far(run)]

    return curve_figure(groups, sent_in_units, f"{unit.name} sent, up and down")


@styled
def curve_figure(
    groups: Sequence[Group], across: Callable[[RecordedRun], list[float]], label: str
) -> Figure:
    """The moving average against something that has a value after each round."""
    figure, axes = _curve_axes(groups, label, f"{_measured('accuracy', groups)}, EMA (%)")
    for group, look in _with_looks(groups):
        _draw_mean(axes, [_points(run, "ema_accuracy", across) for run in group.counted], look)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    _fit_percent(axes)
    return figure


@styled
def loss_figure(groups: Sequence[Group]) -> Figure:
    """The mean cross-entropy on the images that are scored."""
    figure, axes = _curve_axes(groups, "round", _measured("loss", groups))
    for group, look in _with_looks(groups):
        if len(group.runs) > 1:
            _draw_each(axes, [_points(run, "loss", _rounds) for run in group.runs], look)
        _draw_mean(axes, [_points(run, "loss", _rounds) for run in group.counted], look)
    low, high = axes.dataLim.intervaly
    if 0 < low < math.inf and high > LOG_FROM * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure


@styled
def partition_figure(
    counts: NDArray[np.int64], class_names: Sequence[str], clients_called: Sequence[str] = ()
) -> Figure:
    """Samples per client and class [clients, classes] as a heat map, client sizes above it; for
    many clients, histograms."""
    clients, classes = counts.shape
    if clients > MANY_CLIENTS:
        return _spread_figure(Overview(counts))
    height = min(max(0.19 * classes, 1.2), 4.6)
    figure = Figure(figsize=(WIDTH, height + 1.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(0.6, height), width_ratios=(1, 0.025))
    sizes = figure.add_subplot(grid[0, 0])
    _draw_sizes(sizes, counts.sum(axis=1))
    heat = figure.add_subplot(grid[1, 0], sharex=sizes)
    image = _draw_heat(heat, counts)
    heat.set_xlabel("client")
    ticks = thinned(clients, MANY_ACROSS)
    heat.set_xticks(ticks, [clients_called[at] if clients_called else f"{at}" for at in ticks])
    heat.set_ylabel("class")
    labelled = thinned(classes, MANY_DOWN)
    heat.set_yticks(labelled, [printable(class_names[label], LONGEST_CLASS) for label in labelled])
    shades = figure.add_subplot(grid[1, 1])
    shades.grid(visible=False)
    figure.colorbar(image, shades, label="samples", ticks=MaxNLocator(5, integer=True))
    figure.align_ylabels([sizes, heat])
    return figure


def _spread_figure(split: Overview) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(3)
    _draw_histogram(panels[0], split.sizes, "samples of a client")
    _draw_histogram(panels[1], split.held, "classes of a client")
    _draw_histogram(panels[2], 100 * split.largest_shares, "share of its largest class (%)")
    return figure


def _draw_histogram(axes: Axes, values: NDArray[Any], label: str) -> None:
    """Whole numbers get a bar each as long as there is room."""
    low, high = float(values.min()), float(values.max())
    width = max(1.0, (high - low) / MANY_BARS)
    if values.dtype.kind == "i":
        width = math.ceil(width)
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    heights, _ = np.histogram(values, edges)
    axes.stairs(heights, edges, fill=True, color="#8a9299")
    axes.set_xlabel(label)
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(visible=False)


def _draw_sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    gap = 0.1 if len(sizes) <= MANY_BARS else 0.0
    edges = np.arange(len(sizes))[:, None] + [gap - 0.5, 0.5 - gap]
    heights = np.stack([sizes, np.zeros_like(sizes)], axis=1).ravel()[:-1]
    axes.stairs(heights, edges.ravel(), fill=True, color="#8a9299")  # one path for all bars
    axes.set_ylim(0, max(int(sizes.max()), 1))
    axes.set_yticks([0, int(sizes.max())])
    axes.set_ylabel("size")
    axes.tick_params(labelbottom=False, bottom=False)
    axes.grid(visible=False)


def _draw_heat(axes: Axes, counts: NDArray[np.int64]) -> AxesImage:
    shades = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.18, 1, 256)), name="counts")
    # The square root keeps a client's few samples of a class visible beside its hundreds.
    norm = PowerNorm(0.5, vmin=1, vmax=max(int(counts.max()), 2))
    present = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(
        present, shades.with_extremes(bad="white"), norm, aspect="auto", interpolation="none"
    )
    axes.grid(visible=False)
    axes.tick_params(length=2)
    axes.spines[["top", "right"]].set_visible(True)
    return image


def _measured(quantity: str, groups: Sequence[Group]) -> str:
    return on_images(quantity, scored_on(run for group in groups for run in group.runs))


def _rounds(run: RecordedRun) -> list[float]:
    return [row.round for row in run.rounds]


def _points(
    run: RecordedRun, quantity: str, across: Callable[[RecordedRun], list[float]]
) -> Points:
    """The rounds in which the quantity was measured and is finite."""
    return {
        row.round: (x, y)
        for row, x in zip(run.rounds, across(run), strict=True)
        if row.accuracy is not None and (y := row[quantity]) is not None and math.isfinite(y)
    }


def _with_looks(groups: Sequence[Group]) -> list[tuple[Group, Look]]:
    crowded = len(groups) > MANY_METHODS
    return [
        (
            group,
            Look(
                colour=COLOURS[index % len(COLOURS)],
                dashes=DASHES[index // len(COLOURS) % len(DASHES)],
                width=1.5 if crowded else 2.2,
                pale=0.15 if crowded else 0.45,
                band=0.07 if crowded else 0.15,
            ),
        )
        for index, group in enumerate(groups)
    ]


def _curve_axes(groups: Sequence[Group], across: str, up: str) -> tuple[Figure, Axes]:
    """Axes, and above them a legend where there is something to tell apart."""
    figure = Figure(figsize=(WIDTH, 0.62 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if len(groups) > 1:
        labels = [printable(group.label, LONGEST_LABEL) for group in groups]
        lines = [
            Line2D([], [], color=look.colour, linestyle=look.dashes, linewidth=2.2)
            for _, look in _with_looks(groups)
        ]
        longest = max(map(len, labels))
        columns = 3 if longest <= 16 else 2 if longest <= 28 else 1
        figure.legend(lines, labels, loc="outside upper left", ncols=columns, fontsize=9.5)
        figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(groups) / columns))
    return figure, axes


def _fit_percent(axes: Axes) -> None:
    low, high = axes.dataLim.intervaly
    if low <= high:
        margin = max(0.06 * (high - low), (LEAST_POINTS - (high - low)) / 2)
        axes.set_ylim(max(low - margin, 0.0), min(high + margin, 100.0))


def _draw_each(axes: Axes, runs: Iterable[Points], look: Look) -> None:
    for points in runs:
        line = np.array(list(points.values()))
        _draw_line(axes, line, look, linewidth=1.0, alpha=look.pale, zorder=2)


def _draw_mean(axes: Axes, runs: Sequence[Points], look: Look) -> None:
    """The mean over the runs where all of them have a value, in a band from least to greatest."""
    common = sorted(set.intersection(*(set(points) for points in runs)))
    if not common:
        return
    stacked = np.array([[points[round] for round in common] for points in runs])
    mean = stacked.mean(axis=0)
    if len(runs) > 1:
        low, high = stacked[:, :, 1].min(axis=0), stacked[:, :, 1].max(axis=0)
        axes.fill_between(
            mean[:, 0], low, high, color=look.colour, alpha=look.band, linewidth=0, zorder=1.5
        )
    _draw_line(axes, mean, look, linewidth=look.width, zorder=3)


def _draw_line(
    axes: Axes,
    points: NDArray[np.float64],
    look: Look,
    linewidth: float,
    zorder: float,
    alpha: float = 1.0,
) -> None:
    if not len(points):
        return
    (line,) = axes.plot(*points.T, color=look.colour, linestyle=look.dashes, clip_on=False)
    line.set(linewidth=linewidth, alpha=alpha, zorder=zorder)
    if len(points) == 1:  # a line through one point is invisible
        line.set(marker="o", markersize=4 + linewidth)


def _mark_maximum(axes: Axes, runs: Iterable[RecordedRun]) -> None:
    for run in runs:
        points = list(_points(run, "accuracy", _rounds).values())
        if points:
            x, y = max(points, key=lambda point: point[1])
            axes.plot(x, y, "o", markersize=6, color=COLOURS[0], fillstyle="none", clip_on=False)


def thinned(count: int, most: int) -> list[int]:
    """Every index, or every second, fifth, tenth ..."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    step = next(step for step in steps if count <= most * step)
    return list(range(0, count, step))
