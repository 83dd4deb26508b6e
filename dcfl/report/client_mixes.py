"""How well each client fares, over how uneven its mix of classes is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dcfl.data.overview import Overview
from dcfl.report import charts, text
from dcfl.report.document import Picture
from dcfl.report.plots import COLOURS, LONGEST_CLASS, LONGEST_LABEL, WIDTH, styled
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import Group
from dcfl.system.printable import printable

MOST_DOTS = 1500  # of all methods together
NAMED_CLASSES = 3  # of a client, in the text beside the pointer


@dataclass(frozen=True)
class Dot:
    """A client, after the last scored round that it took part in."""

    share: float  # of its largest class, percent
    accuracy: float  # of the global model on its mix of classes, percent
    note: str


def client_mix_picture(groups: Sequence[Group]) -> Picture | None:
    """None if no run has scored its clients on their own mixes."""
    found = {group.label: _dots(group) for group in groups}
    total = sum(map(len, found.values()))
    if not total:
        return None
    step = -(-total // MOST_DOTS)
    shown = {label: dots[::step] for label, dots in found.items()}
    fewer = f" Shown is every {step}th." if step > 1 else ""
    return Picture(
        "Clients, over their mix of classes",
        partial(client_mix_figure, shown),
        f"Dots of {text.plural(total, 'client')}: accuracy over the share of the largest class.",
        "Each dot is a client of a run: the accuracy of the global model, the images weighted to "
        "the client’s mix of classes, after the last scored round that it took part in. To the "
        f"right are clients with little more than one class.{fewer}",
        _chart(shown),
    )


def _dots(group: Group) -> list[Dot]:
    return [dot for run in group.counted for dot in _dots_of(run, len(group.counted) > 1)]


def _dots_of(run: RecordedRun, several: bool) -> list[Dot]:
    last = {row.client: row for row in run.clients if row.own_accuracy is not None}
    if not last or not run.samples_known:
        return []
    counts, names = run.partition_counts, run.class_names
    shares = 100 * Overview(counts).largest_shares
    where = f" of {run.folder.resolve().name}" if several else ""
    dots = []
    for client, row in sorted(last.items()):
        if client < len(counts) and row.own_accuracy is not None:
            note = (
                f"{printable(row.site) if row.site else f'client {client}'}{where}\n"
                f"{text.number(row.own_accuracy)} % after round {row.round}\n"
                f"{_mix(counts[client], names)}"
            )
            dots.append(Dot(float(shares[client]), row.own_accuracy, note))
    return dots


def _mix(counts: NDArray[np.int64], names: Sequence[str]) -> str:
    size = int(counts.sum())
    most = [label for label in np.argsort(-counts, kind="stable")[:NAMED_CLASSES] if counts[label]]
    parts = [
        f"{printable(names[label], LONGEST_CLASS)} {text.number(100 * counts[label] / size, 0)} %"
        for label in most
    ]
    return f"{text.plural(size, 'sample')}: {', '.join(parts) or 'none'}"


def _chart(shown: dict[str, list[Dot]]) -> charts.Chart:
    lines = [
        charts.series(
            label,
            [dot.share for dot in dots],
            [dot.accuracy for dot in dots],
            colour,
            "points",
            notes=[dot.note for dot in dots],
        )
        for colour, (label, dots) in enumerate(shown.items())
        if dots
    ]
    return charts.plot(
        {"label": "share of its largest class (%)", "percent": True},
        {"label": "accuracy on its mix (%)", "low": -3, "high": 103},
        [{"series": lines}],
    )


@styled
def client_mix_figure(shown: dict[str, list[Dot]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.62 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    for (label, dots), colour in zip(shown.items(), COLOURS * len(shown), strict=False):
        places = [(dot.share, dot.accuracy) for dot in dots]
        if places:
            name = printable(label, LONGEST_LABEL)
            axes.plot(*zip(*places, strict=True), "o", color=colour, alpha=0.6, mew=0, label=name)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("share of its largest class (%)")
    axes.set_ylabel("accuracy on its mix (%)")
    if len(shown) > 1:
        figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure
