"""The pictures of a run page: curves, and who owns what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dcfl.data.overview import MANY_CLIENTS, Overview
from dcfl.report import charts, plots, text
from dcfl.report.curve_chart import accuracy_chart, chart_note, loss_chart
from dcfl.report.document import Picture
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import (
    Group,
    Outcome,
    each_seed_has_one_partition,
    runs_by_partition,
    scored_on,
)
from dcfl.system.printable import printable

SHOWN_PARTITIONS = 4
LONGEST_SITE = 20  # characters of its name below a column


def curve_pictures(groups: Sequence[Group]) -> list[Picture]:
    finals = "; ".join(
        f"{group.label}: MAX {percent(group, 'max_accuracy')}, EMA {percent(group, 'ema_accuracy')}"
        for group in groups
    )
    several = any(len(group.runs) > 1 for group in groups)
    band = " Over several seeds, bold is the mean and the band runs from the lowest to the highest."
    ring = " A ring marks MAX." if len(groups) == 1 else ""
    rounds = max(Outcome.of(run).rounds for group in groups for run in group.runs)
    images = scored_on(run for group in groups for run in group.runs)
    accuracy, loss = (text.on_images(quantity, images) for quantity in ("accuracy", "loss"))
    return [
        Picture(
            "Accuracy over rounds",
            partial(plots.accuracy_figure, groups),
            f"Line chart of {accuracy} over {text.plural(rounds, 'round')}. {finals}.",
            f"Thin: the share of {images} that the global model gets right after each round. "
            f"Bold: its moving average, EMA.{band if several else ''}{ring}"
            f"{chart_note(groups)}",
            accuracy_chart(groups),
        ),
        Picture(
            f"{loss[0].upper()}{loss[1:]} over rounds",
            partial(plots.loss_figure, groups),
            f"Line chart of {loss} over {text.plural(rounds, 'round')}.",
            f"The mean cross-entropy on the {images}; lower is better. It rises when a model is "
            f"wrong and sure of it, even while the accuracy holds.{band if several else ''}",
            loss_chart(groups),
        ),
        Picture(
            "Accuracy against traffic",
            partial(plots.traffic_figure, groups),
            f"Line chart of {accuracy} against the data sent. {finals}.",
            "The moving average against all that clients and server have sent each other so far: "
            "further left is cheaper.",
            covered=True,
        ),
    ]


def percent(group: Group, quantity: str) -> str:
    return f"{text.number(group.spread(quantity).mean)} %"


def partition_pictures(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Picture]:
    by_partition = runs_by_partition([run for run in runs if run.samples_known])
    titles = {
        sha256: f"{sha256[:8]}: {_some([names[run] for run in users])}"
        for sha256, users in by_partition.items()
    }
    return [
        _partition_picture(users, titles[sha256] if len(by_partition) > 1 else "")
        for sha256, users in list(by_partition.items())[:SHOWN_PARTITIONS]
    ]


def _some(names: list[str], most: int = 3) -> str:
    return text.listed(names if len(names) <= most else [*names[:2], f"{len(names) - 2} more"])


def _partition_picture(users: Sequence[RecordedRun], title: str) -> Picture:
    counts, class_names = users[0].partition_counts, users[0].class_names
    clients, classes = counts.shape
    split = Overview(counts)
    sizes = split.sizes
    size = f"{sizes.min():,}" if np.ptp(sizes) == 0 else f"{sizes.min():,} to {sizes.max():,}"
    held = f"{np.median(split.held):g} of {classes} classes"
    sites = users[0].site_names
    labels = [printable(sites.get(client, f"{client}"), LONGEST_SITE) for client in range(clients)]
    figure = partial(plots.partition_figure, counts, class_names, labels)
    if clients > MANY_CLIENTS:
        return Picture(
            title,
            figure,
            f"Histograms over {text.plural(clients, 'client')} of their samples, their classes "
            f"and the share of the largest class.",
            f"How many of the {clients:,} clients have so many samples ({size}), so many classes "
            f"(the median client holds {held}), and such a share of one class. The smallest is "
            f"client {split.smallest}, the largest client {split.largest}; partition.npz has all.",
        )
    return Picture(
        title,
        figure,
        f"Heat map of samples per client and class: {text.plural(clients, 'client')} with {size} "
        f"samples each; the median client holds {held}.",
        "Each column is a client, each row a class: the deeper the colour, the more samples. The "
        f"bars above are the clients' sizes: {size} samples. The median client holds {held}.",
        charts.matrix(
            counts.T,
            ("class", class_names),
            ("client", labels),
            "samples",
            sizes=True,
        ),
    )


def partition_note(runs: Sequence[RecordedRun]) -> str:
    count = len(runs_by_partition(runs))
    if count < 2:
        return ""
    if each_seed_has_one_partition(runs):
        effect = "one for each seed, so that differences seed by seed do not come from the split"
    else:
        effect = "so part of a difference between two runs may come from the split"
    hidden = f" The first {SHOWN_PARTITIONS} are shown." if count > SHOWN_PARTITIONS else ""
    return f"These runs use {count} different partitions, {effect}.{hidden}"
