"""The critical-difference diagram (Demsar, 2006): mean ranks, and who cannot be told from whom."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dcfl.report.plots import INK, LONGEST_LABEL, WIDTH, styled
from dcfl.runs.ranking import Ranking
from dcfl.system.printable import printable

# Heights below the axis of ranks, in lines of text; the critical difference is drawn above it.
ABOVE, FIRST_BAR, BAR_STEP = 2.5, 0.45, 0.35
LINE = 0.24  # inches
BAR_COLOUR = "#D55E00"


@styled
def rank_figure(ranking: Ranking) -> Figure:
    """The best on the left. Methods joined by a bar are not distinguishable."""
    names, cliques = list(ranking.mean_ranks), ranking.cliques()
    first_label = FIRST_BAR + BAR_STEP * len(cliques) + 0.5
    half = (len(names) + 1) // 2
    depth = first_label + half
    figure = Figure(figsize=(WIDTH, LINE * (depth + ABOVE + 0.8)), layout="constrained")
    axes = figure.add_subplot()
    low, high = 1, len(names)
    axes.set_xlim(low, high)
    axes.set_ylim(depth, -ABOVE)
    _draw_axis(axes, low, high)
    _draw_critical_difference(axes, ranking, low, high)
    for index, clique in enumerate(cliques):
        ends = [ranking.mean_ranks[clique[0]] - 0.04, ranking.mean_ranks[clique[-1]] + 0.04]
        height = FIRST_BAR + BAR_STEP * index
        axes.plot(ends, [height, height], color=BAR_COLOUR, linewidth=4, solid_capstyle="butt")
    # The better half is named on the left, from the top; the worse on the right, the worst on top.
    _draw_labels(axes, ranking, names[:half], low, first_label)
    _draw_labels(axes, ranking, names[half:][::-1], high, first_label)
    return figure


def _draw_axis(axes: Axes, low: int, high: int) -> None:
    axes.xaxis.tick_top()
    axes.set_xticks(range(low, high + 1))
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("mean rank (1 is the best)")
    axes.yaxis.set_visible(False)
    axes.grid(visible=False)
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    axes.spines["top"].set_visible(True)
    axes.spines["top"].set_position(("data", 0))
    axes.tick_params(axis="x", direction="in", pad=2)


def _draw_critical_difference(axes: Axes, ranking: Ranking, low: int, high: int) -> None:
    """Its length as a bar, cut off where it is longer than the axis."""
    end = min(low + ranking.critical_difference, high)
    height = -ABOVE
    axes.plot([low, end], [height, height], "|-", color=INK, linewidth=1.5, clip_on=False)
    more = ", longer than the axis" if low + ranking.critical_difference > high else ""
    label = f"critical difference {ranking.critical_difference:.2f}{more}"
    axes.text(low, height - 0.25, label, fontsize=9, va="bottom", clip_on=False)


def _draw_labels(
    axes: Axes, ranking: Ranking, names: Sequence[str], side: int, first: float
) -> None:
    left = side == 1
    for line, name in enumerate(names):
        rank, height = ranking.mean_ranks[name], first + line
        axes.plot([rank, rank, side], [0, height, height], color=INK, linewidth=1, clip_on=False)
        text = printable(name, LONGEST_LABEL // 2)
        label = f"{text}  {rank:.2f} " if left else f" {rank:.2f}  {text}"
        axes.annotate(
            label, (side, height), fontsize=9.5, va="center", ha="right" if left else "left"
        )
