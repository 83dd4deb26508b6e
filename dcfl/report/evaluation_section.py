"""What `dcfl evaluate` found, as a section of a run page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from dcfl.report import charts, text
from dcfl.report.charts import Chart, series
from dcfl.report.document import Picture, Section, Table
from dcfl.report.plots import COLOURS, INK, LONGEST_CLASS, MANY_DOWN, WIDTH, styled, thinned
from dcfl.report.text import number, plural
from dcfl.runs.evaluations import (
    ClassRow,
    ClientScore,
    EvaluationRecord,
    read_evaluations,
    worst_words,
)
from dcfl.runs.folder import RecordedRun
from dcfl.scores import CONFIDENCE_BINS, Scores
from dcfl.system.wording import printable

NUMBERED_CLASSES = 12  # more leave no room for a number in each cell
MANY_TURNED = 8  # class names along an axis that still need not be turned
RECALL, PRECISION = COLOURS[5], COLOURS[1]
PALE = "#b9c0c6"
EMPTY = "#eceef0"


@styled
def confusion_figure(scores: Scores, class_names: Sequence[str]) -> Figure:
    """A row per class: how its images were answered."""
    counts: NDArray[np.float64] = scores.confusion.numpy()
    totals = counts.sum(axis=1, keepdims=True)
    absent = np.broadcast_to(totals == 0, counts.shape)
    shares = counts / np.where(totals > 0, totals, 1)
    side = min(max(0.3 * len(counts), 3.2), WIDTH - 0.6)
    figure = Figure(figsize=(WIDTH, side + 0.8), layout="constrained")
    axes = figure.add_subplot()
    shades = mpl.colormaps["Blues"].with_extremes(bad=EMPTY)
    image = axes.imshow(
        np.ma.masked_array(shares, absent), shades, vmin=0, vmax=1, interpolation="none"
    )
    if len(counts) <= NUMBERED_CLASSES:
        _write_counts(axes, counts, shares)
    _name_classes(axes, class_names)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)
    figure.colorbar(image, label="share of the class", shrink=0.8, format=PercentFormatter(1.0, 0))
    return figure


def _write_counts(axes: Axes, counts: NDArray[np.float64], shares: NDArray[np.float64]) -> None:
    for row, column in np.argwhere(counts > 0):
        dark = shares[row, column] > 0.55
        text = number(counts[row, column], 0)
        colour = "white" if dark else INK
        axes.text(column, row, text, color=colour, fontsize=8, ha="center", va="center")


def _name_classes(axes: Axes, class_names: Sequence[str]) -> None:
    places = thinned(len(class_names), MANY_DOWN)
    names = [printable(class_names[place], LONGEST_CLASS) for place in places]
    turned = len(names) > MANY_TURNED and max(map(len, names)) > 2
    axes.set_xticks(places, names, rotation=90 if turned else 0)
    axes.set_yticks(places, names)
    axes.tick_params(length=2)


@styled
def reliability_figure(scores: Scores) -> Figure:
    """Accuracy against confidence, and below how many images have which confidence."""
    figure = Figure(figsize=(WIDTH, 0.85 * WIDTH), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    edges = np.linspace(0, 100, CONFIDENCE_BINS + 1)
    confidence, accuracy = (values.numpy() for values in scores.reliability)
    upper.stairs(np.nan_to_num(accuracy), edges, fill=True, color=COLOURS[5], alpha=0.55)
    upper.plot([0, 100], [0, 100], color=INK, linewidth=1, linestyle="--")
    upper.plot(confidence, accuracy, "o", color=COLOURS[0], markersize=4.5, clip_on=False)
    upper.set_ylim(0, 100)
    upper.set_ylabel("right answers (%)")
    images = scores.confidence[0].numpy()
    lower.stairs(100 * images / max(images.sum(), 1e-9), edges, fill=True, color=PALE)
    lower.set_xlim(0, 100)
    lower.set_ylim(bottom=0)
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    lower.set_ylabel("images (%)")
    lower.set_xlabel("confidence: the probability of the answer (%)")
    figure.align_ylabels([upper, lower])
    return figure


@styled
def class_figure(rows: Sequence[ClassRow]) -> Figure:
    """Recall as bars, precision as dots, in the order of the rows from the top."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.24 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(rows))
    axes.barh(places, [row.recall for row in rows], color=RECALL, alpha=0.55)
    precision = [row.precision for row in rows]
    axes.plot(precision, places, "D", color=PRECISION, markersize=4, clip_on=False)
    axes.set_yticks(places, [printable(row.name, LONGEST_CLASS) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("%")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], color=RECALL, linewidth=6, alpha=0.55),
        Line2D([], [], color=PRECISION, linestyle="", marker="D", markersize=4),
    ]
    figure.legend(handles, ["recall", "precision"], loc="outside upper left", ncols=2)
    return figure


@styled
def clients_figure(clients: Sequence[ClientScore], mean: float) -> Figure:
    """Each client's accuracy, the worst first."""
    figure = Figure(figsize=(WIDTH, 0.5 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    accuracies = sorted(client.accuracy for client in clients)
    places = range(1, len(accuracies) + 1)
    axes.plot(places, accuracies, "o", color=COLOURS[0], markersize=4, clip_on=False)
    axes.axhline(mean, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0.5, len(accuracies) + 0.5)
    axes.set_ylim(0, 100)
    axes.set_xlabel("clients, the worst first")
    axes.set_ylabel("right answers (%)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    return figure


MOST_NAMES, LONGEST_NAME = 12, 8  # class names that fit below an axis, and their characters
PERCENT = {"low": 0, "high": 100}


def confusion_chart(record: EvaluationRecord) -> Chart | None:
    names = record.class_names
    confusion = record.scores.confusion.numpy()
    return charts.matrix(confusion, ("class", names), ("answer", names), "images", "row")


def reliability_chart(scores: Scores) -> Chart:
    confidence, accuracy = (values.tolist() for values in scores.reliability)
    images = scores.confidence[0].tolist()
    filled = [at for at, count in enumerate(images) if count]
    dots = series(
        "answers",
        [confidence[at] for at in filled],
        [accuracy[at] for at in filled],
        0,
        "points",
        notes=[
            f"{plural(round(images[at]), 'image')}\nsure: {number(confidence[at], 1)} %\n"
            f"right: {number(accuracy[at], 1)} %"
            for at in filled
        ],
    )
    line = series("as sure as right", [0, 100], [0, 100], 6, dash=1)
    return charts.plot(
        {"label": "confidence: the probability of the answer (%)", **PERCENT},
        {"label": "right answers (%)", **PERCENT},
        [{"series": [dots, line]}],
    )


def class_chart(rows: Sequence[ClassRow]) -> Chart:
    """Recall and precision of each class, in the order of the rows."""
    names = [printable(row.name, LONGEST_NAME) for row in rows]
    notes = [
        f"{row.name}\n{plural(round(row.images), 'image')}\nrecall {number(row.recall)} %, "
        f"precision {number(row.precision)} %"
        for row in rows
    ]
    places = range(len(rows))
    dots = [
        series("recall", places, [row.recall for row in rows], 0, "points", notes=notes),
        series("precision", places, [row.precision for row in rows], 1, "points", notes=notes),
    ]
    axis = {"label": "class", "low": -0.5, "high": len(rows) - 0.5}
    return charts.plot(
        {**axis, **({"names": names} if len(names) <= MOST_NAMES else {"whole": True})},
        {"label": "%", "low": -3, "high": 103},
        [{"series": dots}],
    )


def clients_chart(clients: Sequence[ClientScore], mean: float) -> Chart:
    """Each client's accuracy, the worst first."""
    ordered = sorted(clients, key=lambda client: client.accuracy)
    named = len(ordered) <= MOST_NAMES
    first = 0 if named else 1  # places of names count from 0
    dots = series(
        "clients",
        range(first, len(ordered) + first),
        [client.accuracy for client in ordered],
        0,
        "points",
        notes=[
            f"{client.name}\n{number(client.accuracy)} % of {plural(client.images, 'image')}"
            for client in ordered
        ],
    )
    edges = {"low": first - 0.5, "high": len(ordered) + first - 0.5}
    line = series("mean", list(edges.values()), [mean, mean], 6, dash=1)
    names = [printable(client.name, LONGEST_NAME) for client in ordered]
    return charts.plot(
        {
            "label": "clients, the worst first",
            **edges,
            **({"names": names} if named else {"whole": True}),
        },
        {"label": "right answers (%)", "low": -3, "high": 103},
        [{"series": [dots, line]}],
    )


SHOWN = 3  # evaluations with pictures
WORST = 5  # clients that are named
MOST_NAMED = 10  # classes without images
COLUMNS = (
    *("Model and images", "Images", "Accuracy, %", "Balanced, %", "Macro F1, %"),
    *("AUC", "Calibration error, %", "Cross-entropy"),
)
NOTE = (
    "Balanced accuracy is the mean recall of the classes, macro F1 the mean of their F1. AUC is "
    "the mean over the classes, each against the rest: 0.5 is chance. The calibration error says "
    "how far the model’s confidence is from its accuracy. Classes without images are in no mean."
)


class Titled(NamedTuple):
    title: str
    record: EvaluationRecord


def evaluation_section(
    runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]
) -> Section | None:
    """None if no run has been evaluated."""
    found = [
        Titled(_title(record, names[run] if len(runs) > 1 else ""), record)
        for run in runs
        for record in read_evaluations(run.folder)
        if _is_of_present_model(record, run)
    ]
    if not found:
        return None
    tables = [Table(COLUMNS, [_row(*one) for one in found], note=NOTE)]
    several = len(found) > 1
    shown = [(one.record, one.title if several else "") for one in found[:SHOWN]]
    tables += [_client_table(*one) for one in shown if one[0].clients]
    pictures = [picture for one in shown for picture in _pictures(*one)]
    return Section("Evaluation", _paragraphs(found), tables, pictures)


def _is_of_present_model(record: EvaluationRecord, run: RecordedRun) -> bool:
    """A run that was made longer has other models than those evaluated before."""
    if run.summary is None or isinstance(record.which, int):  # a client's: its hash is not there
        return True
    now, then = run.summary.hash_of(record.which), record.weights_sha256
    return now == then or "" in (now, then)


def _title(record: EvaluationRecord, run: str) -> str:
    images = text.without_folders(record.images_words)
    return f"{f'{run}, ' if run else ''}{record.model}, {images}"


def _row(title: str, record: EvaluationRecord) -> list[str]:
    scores = record.scores
    percentages = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1)
    return [
        title,
        text.number(record.images, 0),
        *(text.number(value) for value in percentages),
        text.number(scores.mean_auc, 4),
        text.number(scores.calibration_error),
        text.number(scores.loss, 4),
    ]


def _paragraphs(found: Sequence[Titled]) -> list[str]:
    missing = [
        f"{one.title}: no images of {some_names(one.record.absent)}."
        for one in found
        if one.record.absent
    ]
    of_sites = [
        f"{one.title}: {printable(note)}." for one in found for note in one.record.site_notes
    ]
    hidden = len(found) - SHOWN
    return [
        *missing,
        *of_sites,
        *([f"Pictures of the first {SHOWN} are shown."] if hidden > 0 else []),
    ]


def some_names(names: Sequence[str]) -> str:
    """Of classes: all, or the first and how many more."""
    shown = [printable(name, LONGEST_CLASS) for name in names[:MOST_NAMED]]
    more = [f"{len(names) - MOST_NAMED:,} more"] if len(names) > MOST_NAMED else []
    return text.listed([*shown, *more])


def _client_table(record: EvaluationRecord, title: str) -> Table:
    rows = [
        [printable(client.name), f"{client.images:,}", text.number(client.accuracy)]
        for client in record.some_clients(WORST)
    ]
    mean, tenth = record.fairness
    if len(record.clients) > 1 and mean is not None and tenth is not None:
        rows.append(["mean of all", "", text.number(mean)])
        worst = worst_words(len(record.clients))
        few = worst == "worst"
        rows.append(["the worst" if few else f"mean of the {worst}", "", text.number(tenth)])
    mixed, _ = record.own_mix_fairness
    if mixed is not None:
        rows.append(["mean", "in its mix of classes", text.number(mixed)])
    tuned, _ = record.fine_tuned_fairness
    if tuned is not None:
        words = text.plural(record.fine_tuned, "epoch")
        rows.append([f"mean after {words} of its own", "in its mix of classes", text.number(tuned)])
    several = len(record.clients) > WORST
    which = f"the worst {WORST} of {len(record.clients):,} clients" if several else "the clients"
    heading = _headed(f"{which}, each on {record.clients_kind}", title)
    return Table(("Client", "Images", "Accuracy, %"), rows, heading)


def _pictures(record: EvaluationRecord, title: str) -> list[Picture]:
    scores = record.scores
    pictures = [
        Picture(
            _headed("which class is taken for which", title),
            partial(confusion_figure, scores, record.class_names),
            f"Confusion matrix of {scores.classes:,} classes: {text.number(scores.accuracy)} % lie "
            f"on the diagonal.",
            "Each row is a class, each column an answer: the deeper, the greater the share of the "
            f"class’s images. The diagonal is right.{' Grey: no images.' if record.absent else ''}"
            f"{' Numbers are of images as they are weighted.' if record.weighted else ''}",
            confusion_chart(record),
        ),
        Picture(
            _headed("is it as right as it is sure?", title),
            partial(reliability_figure, scores),
            "Reliability diagram: accuracy against confidence; the expected calibration error is "
            f"{text.number(scores.calibration_error)} %.",
            "Each dot is the images whose answer had such a probability, and how many of those "
            "answers were right. On the dashed line the model is as sure as it is right; below it, "
            f"too sure. On average it is {text.number(scores.calibration_error)} points off (the "
            "expected calibration error).",
            reliability_chart(scores),
        ),
        _class_picture(record, title),
    ]
    mean, tenth = record.fairness
    if len(record.clients) > 1 and mean is not None and tenth is not None:
        worst = worst_words(len(record.clients))
        pictures.append(
            Picture(
                _headed("each client", title),
                partial(clients_figure, record.clients, mean),
                f"Accuracies of {text.plural(len(record.clients), 'client')}: "
                f"{text.number(mean)} % on average, {text.number(tenth)} % the {worst}.",
                f"The share of right answers on {record.clients_kind}, client by client. Dashed is "
                f"the mean, {text.number(mean)} %; the {worst} has {text.number(tenth)} %.",
                clients_chart(record.clients, mean),
            )
        )
    return pictures


def _headed(words: str, title: str) -> str:
    return f"{title}: {words}" if title else f"{words[0].upper()}{words[1:]}"


def _class_picture(record: EvaluationRecord, title: str) -> Picture:
    rows = [row for row in record.class_rows if row.images]
    which = "all classes with images"
    if len(rows) > MANY_DOWN:
        rows = sorted(rows, key=lambda row: row.recall)[:MANY_DOWN]
        which = f"the {MANY_DOWN} classes with the lowest recall"
    worst = min(rows, key=lambda row: row.recall)
    return Picture(
        _headed("recall and precision", title),
        partial(class_figure, rows),
        f"Bars of the recall of {which}. The lowest is {text.number(worst.recall)} %, of "
        f"{printable(worst.name)}.",
        "Recall (blue): the share of a class’s images that are recognised. Precision (orange): the "
        f"share of right answers among those that name the class. Shown are {which}.",
        class_chart(rows),
    )
