"""The figures and the page about one or several analysed runs, and their numbers as files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dcfl.analysis.drift import Drift
from dcfl.analysis.runs import Analysis
from dcfl.analysis.similarity import BINS, PERCENTILES, Cosines
from dcfl.comparison import setting
from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.plots import COLOURS, INK, WIDTH, styled
from dcfl.report.text import listed, number, plural, printable, without_folders
from dcfl.storage import storage, write_whole

ACROSS = 3  # panels beside each other: more are too small to read
NAMED = 10  # classes with a colour of their own; the eye does not tell more apart
SAME, OTHER = COLOURS[0], COLOURS[1]  # pairs of the same class, of different classes
EDGES = np.linspace(-1, 1, BINS + 1)


def write_analysis(analyses: Sequence[Analysis], out: Path) -> Path:
    """Write analysis.html, analysis.json and similarity.csv into `out`; returns the page."""
    page = render(analyses)
    with storage(out):
        out.mkdir(parents=True, exist_ok=True)
    numbers = json.dumps([analysis.as_json() for analysis in analyses], indent=1)
    write_whole(out / "analysis.json", numbers + "\n")
    write_whole(out / "similarity.csv", similarity_csv(analyses))
    write_whole(out / "analysis.html", page)
    return out / "analysis.html"


def similarity_csv(analyses: Sequence[Analysis]) -> str:
    """The histograms: a row per run, kind of pairs and bin."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["run", "pairs", "from", "to", "count", "density"])
    for analysis in analyses:
        for kind, cosines in _kinds(analysis):
            density = cosines.density
            writer.writerows(
                [
                    analysis.label,
                    kind,
                    f"{EDGES[at]:.2f}",
                    f"{EDGES[at + 1]:.2f}",
                    int(count),
                    f"{density[at]:.6g}",
                ]
                for at, count in enumerate(cosines.counts)
            )
    return stream.getvalue()


def _kinds(analysis: Analysis) -> list[tuple[str, Cosines]]:
    return [("intra", analysis.similarity.intra), ("inter", analysis.similarity.inter)]


def render(analyses: Sequence[Analysis]) -> str:
    sections = [
        _similarity_section(analyses),
        _sphere_section(analyses),
        _dimensions_section(analyses),
        _picture_section(analyses),
        *_drift_sections(analyses),
    ]
    names = listed([analysis.label for analysis in analyses])
    return render_document(
        f"The representation of {names}",
        _facts(analyses),
        headline(analyses),
        sections,
        cautions(analyses),
    )


def _facts(analyses: Sequence[Analysis]) -> list[tuple[str, str]]:
    def distinct(describe: Callable[[Analysis], str]) -> str:
        return listed(list(dict.fromkeys(map(describe, analyses))), last="or")

    return [
        ("Data set", distinct(lambda each: without_folders(each.dataset))),
        ("Images", distinct(lambda each: f"{each.images:,} {each.kind_of_images}")),
        ("Model", distinct(lambda each: str(setting(each.run, "model.name")))),
        ("Rounds", distinct(lambda each: str(each.rounds))),
        (
            "Accuracy",
            "; ".join(f"{each.label} {number(each.accuracy)} %" for each in analyses),
        ),
    ]


def headline(analyses: Sequence[Analysis]) -> str:
    if len(analyses) == 1:
        (only,) = analyses
        found = only.similarity
        return (
            f"{only.label}: cosines are {number(found.intra.mean)} on average within a class and "
            f"{number(found.inter.mean)} between classes; the two histograms overlap by "
            f"{number(100 * found.overlap, 1)} %."
        )
    least = min(analyses, key=lambda each: _or_infinite(each.similarity.overlap))
    most = max(analyses, key=lambda each: -_or_infinite(-each.similarity.overlap))
    return (
        f"The histograms of same-class and other pairs overlap least for {least.label}, by "
        f"{number(100 * least.similarity.overlap, 1)} %, and most for {most.label}, by "
        f"{number(100 * most.similarity.overlap, 1)} %."
    )


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def cautions(analyses: Sequence[Analysis]) -> list[str]:
    found = [
        f"{analysis.label}: {without_folders(caution)}."
        for analysis in analyses
        for caution in analysis.cautions
    ]
    if len(analyses) > 1:
        found.append("One run of each: a small difference may be chance.")
    if len({each.images_id for each in analyses}) > 1:
        found.append("These runs are judged on different images: do not compare their numbers.")
    return found


# Cosines


def _similarity_section(analyses: Sequence[Analysis]) -> Section:
    rows = [
        [
            f"{analysis.label}, {'same class' if kind == 'intra' else 'different classes'}",
            f"{cosines.pairs:,}",
            number(cosines.mean, 3),
            number(cosines.deviation, 3),
            *(number(value, 3) for value in cosines.percentiles),
            number(100 * analysis.similarity.overlap, 1) if kind == "intra" else "",
        ]
        for analysis in analyses
        for kind, cosines in _kinds(analysis)
    ]
    table = Table(
        ["pairs of", "pairs", "mean", "deviation", *(f"{at} %" for at in PERCENTILES), "overlap %"],
        rows,
        note="Mean and deviation are exact, over all pairs; percentiles are good to 0.0001. The "
        f"overlap is the area that both histograms cover, in bins of {2 / BINS:g}.",
    )
    pictures = [
        *(
            Picture.of(
                "Within classes and between them",
                separation_figure(some),
                f"Histograms of cosines of same-class and different-class pairs. {_spoken(some)}",
                "All pairs of images by the cosine of their embeddings. A representation that "
                "separates the classes has one hill near 1 and the other well to the left of it.",
            )
            for some in _in_panels(analyses)
        ),
        *(
            Picture.of(
                "Intra-class above, inter-class below",
                paper_figure(some),
                f"Histograms of cosines in the layout of the paper. {_spoken(some)}",
                "The same histograms as the paper's figure arranges them: densities, on the same "
                "axes in all runs. The line marks the mean.",
            )
            for some in _in_panels(analyses)
            if len(analyses) > 1
        ),
    ]
    return Section("Cosine similarity", claim(analyses), [table], pictures)


def _in_panels(analyses: Sequence[Analysis]) -> list[Sequence[Analysis]]:
    return [analyses[first : first + ACROSS] for first in range(0, len(analyses), ACROSS)]


def _spoken(analyses: Sequence[Analysis]) -> str:
    return " ".join(
        f"{analysis.label}: mean {number(analysis.similarity.intra.mean)} within classes, "
        f"{number(analysis.similarity.inter.mean)} between."
        for analysis in analyses
    )


def claim(analyses: Sequence[Analysis]) -> list[str]:
    """The paper's two sentences about its figure, held against one run of each method."""
    found = {analysis.method: analysis.similarity for analysis in analyses}
    if sorted(analysis.method for analysis in analyses) != ["dcfl-pw", "fedproc"]:
        return []
    ours, theirs = found["dcfl-pw"], found["fedproc"]
    checks = []
    for words, kind, target in (("same-class", "intra", 1.0), ("other", "inter", 0.0)):
        own, other = getattr(ours, kind), getattr(theirs, kind)
        checks += [
            (
                f"{words} cosines on average nearer to {target:g}",
                abs(own.mean - target) < abs(other.mean - target),
                f"{number(own.mean, 3)} against {number(other.mean, 3)}",
            ),
            (
                f"and less dispersed away from {target:g}",
                own.distance_from(target) < other.distance_from(target),
                f"root mean square distance {number(own.distance_from(target), 3)} against "
                f"{number(other.distance_from(target), 3)}",
            ),
        ]
    verdicts = "; ".join(f"{what}: {'yes' if so else 'no'} ({how})" for what, so, how in checks)
    return [
        f"What the paper says of DCFL-PW beside FedProc, in these two runs: {verdicts}. Both kinds "
        f"of cosines rise when all embeddings move closer together, which helps the first two and "
        f"hurts the others; whether the classes come apart is what the overlap says."
    ]


@styled
def separation_figure(analyses: Sequence[Analysis]) -> Figure:
    """A panel per run: both histograms on one axis."""
    count = len(analyses)
    height = 2.6 if count > 1 else 3.0
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    top = max(cosines.density.max() for each in analyses for _, cosines in _kinds(each))
    for axes, analysis in zip(panels, analyses, strict=True):
        for (_, cosines), colour in zip(_kinds(analysis), (SAME, OTHER), strict=True):
            axes.stairs(cosines.density, EDGES, fill=True, color=colour, alpha=0.35)
            axes.stairs(cosines.density, EDGES, color=colour, linewidth=1.2)
        _title(axes, f"{analysis.label}\noverlap {number(100 * analysis.similarity.overlap, 1)} %")
        axes.set_xlim(*_range(analyses))
        axes.set_ylim(0, 1.05 * top or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(2 if len(analyses) > 2 else 5))
        axes.set_xlabel("cosine")
    panels[0].set_ylabel("density")
    handles = [Line2D([], [], color=colour, linewidth=5, alpha=0.6) for colour in (SAME, OTHER)]
    figure.legend(handles, ["same class", "different classes"], loc="outside upper left", ncols=2)
    return figure


@styled
def paper_figure(analyses: Sequence[Analysis]) -> Figure:
    """The layout of the paper: a column per run, same-class pairs above, the others below."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(2, len(analyses), sharex=True, sharey="row", squeeze=False)
    for row, (colour, words) in enumerate([(SAME, "same class"), (OTHER, "different classes")]):
        for axes, analysis in zip(panels[row], analyses, strict=True):
            _, cosines = _kinds(analysis)[row]
            axes.stairs(cosines.density, EDGES, fill=True, color=colour, alpha=0.75)
            if cosines.pairs:
                axes.axvline(cosines.mean, color=INK, linewidth=1)
            axes.set_xlim(*_range(analyses))
            axes.xaxis.set_major_locator(MaxNLocator(2 if len(analyses) > 2 else 5))
            _title(axes, f"{analysis.label}, {words}" if len(analyses) == 1 else analysis.label)
        highest = max(_kinds(analysis)[row][1].density.max() for analysis in analyses)
        panels[row][0].set_ylim(0, 1.05 * highest or 1.0)
        panels[row][0].set_ylabel(words)
    for axes in panels[1]:
        axes.set_xlabel("cosine")
    return figure


def _range(analyses: Sequence[Analysis]) -> tuple[float, float]:
    """[-1, 1], or [0, 1] where nothing is negative: after a ReLU."""
    negative = any(
        cosines.counts[: BINS // 2].any() for each in analyses for _, cosines in _kinds(each)
    )
    return (-1.0 if negative else 0.0), 1.0


def _title(axes: Axes, text: str) -> None:
    lines = [line if len(line) <= 26 else line[:25] + "…" for line in text.split("\n")]
    axes.set_title("\n".join(map(printable, lines)), fontsize=10, loc="left")


# Alignment and uniformity


def _sphere_section(analyses: Sequence[Analysis]) -> Section:
    rows = [
        [
            analysis.label,
            number(analysis.similarity.alignment, 3),
            number(analysis.similarity.view_alignment, 3),
            number(analysis.similarity.uniformity, 3),
            number(analysis.similarity.inter_uniformity, 3),
        ]
        for analysis in analyses
    ]
    columns = [
        "run",
        "alignment, same class",
        "alignment, two views",
        "uniformity",
        "uniformity, different classes",
    ]
    text = (
        "Lower is better for all four. Alignment is the mean squared distance of two unit vectors "
        "that belong together: two images of a class, or two augmented views of one image. "
        "Uniformity is the logarithm of the mean of exp(-2 times the squared distance): over all "
        "pairs, where classes that shrink to points set a floor, and over pairs of different "
        "classes, where they do not."
    )
    return Section("Alignment and uniformity", [text], [Table(columns, rows)])


# Dimensions


def _dimensions_section(analyses: Sequence[Analysis]) -> Section:
    rows = []
    for analysis in analyses:
        found = analysis.dimensions
        most = int(np.searchsorted(found.explained, 0.95)) + 1 if found.effective_rank else 0
        rows.append(
            [
                analysis.label,
                f"{found.width}",
                f"{found.zero}",
                f"{found.still}",
                f"{number(100 * found.moving_share, 1)} %",
                number(found.effective_rank, 1),
                f"{number(100 * found.rank_share, 1)} %",
                f"{min(most, found.width)}",
            ]
        )
    columns = [
        "run",
        "width",
        "always zero",
        "constant",
        "moving",
        "effective rank",
        "of the width",
        "for 95 %",
    ]
    note = (
        "Always zero: coordinates of z that are 0 for every image. Constant: those whose "
        "value is the same for every image, the zeros included; moving are the others. "
        "Effective rank: exp of the entropy of the eigenvalues of the covariance of the unit "
        "vectors, taken as shares. For 95 %: principal directions that hold so much of the "
        "variance."
    )
    picture = Picture.of(
        "Variance held by the first directions",
        spectrum_figure(analyses),
        "Line chart of the cumulated variance over the principal directions.",
        "The share of the variance that the first principal directions hold together. A line that "
        "is at 1 early belongs to a model that uses few directions: at best, about as many as "
        "there are classes less one.",
    )
    return Section(
        "Dimensions in use", tables=[Table(columns, rows, note=note)], pictures=[picture]
    )


@styled
def spectrum_figure(analyses: Sequence[Analysis]) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.58 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    for index, analysis in enumerate(analyses):
        held = analysis.dimensions.explained
        colour, dashes = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
        (line,) = axes.plot(range(1, len(held) + 1), held, color=colour, linestyle=dashes)
        line.set(linewidth=2, label=printable(analysis.label))
    axes.set_xscale("log")
    widest = max(len(each.dimensions.explained) for each in analyses)
    ticks = [value for value in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if value <= widest]
    axes.set_xticks(ticks, [str(value) for value in ticks])
    axes.minorticks_off()
    axes.set_xlim(1, max(widest, 2))
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("principal directions")
    axes.set_ylabel("variance held")
    if len(analyses) > 1:
        figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure


# The picture


def _picture_section(analyses: Sequence[Analysis]) -> Section:
    pictures = [
        Picture.of(
            "The embeddings, in two dimensions",
            plane_figure(some),
            "Scatter plot of the images' embeddings, coloured by class. "
            + " ".join(
                f"{each.label}: the two axes hold {number(100 * sum(each.plane.explained), 1)} % "
                "of the variance."
                for each in some
            ),
            "Each point is an image"
            + (
                f" ({plural(len(some[0].plane.points), 'image')} of {some[0].images:,})"
                if len(some[0].plane.points) < some[0].images
                else ""
            )
            + ": its unit vector, projected on the two directions in which the run's unit vectors "
            "vary most. Every run has axes of its own, in the same scale. What is apart here is "
            "apart; what overlaps here may be apart in the dimensions that are not shown."
            + (
                f" Coloured are {NAMED} of the {len(some[0].class_names)} classes."
                if len(some[0].class_names) > NAMED
                else ""
            ),
        )
        for some in _in_panels(analyses)
    ]
    return Section("Picture", pictures=pictures)


@styled
def plane_figure(analyses: Sequence[Analysis]) -> Figure:
    count = len(analyses)
    side = WIDTH / count if count > 1 else 0.72 * WIDTH
    names = analyses[0].class_names
    figure = Figure(figsize=(WIDTH, side + 1.0), layout="constrained", dpi=200)
    panels = figure.subplots(1, count, squeeze=False)[0]
    reach = max(float(np.abs(each.plane.points).max()) for each in analyses)
    reach = 1.05 * reach or 1.0
    chosen = _coloured(len(names))
    palette = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axes, analysis in zip(panels, analyses, strict=True):
        plane = analysis.plane
        # Behind all others: those of classes without a colour.
        colours = np.full((len(plane.labels), 4), mpl.colors.to_rgba("#c8cdd2"))
        for index, label in enumerate(chosen):
            colours[plane.labels == label] = mpl.colors.to_rgba(palette[index])
        order = np.argsort(np.isin(plane.labels, chosen), kind="stable")
        axes.scatter(
            *plane.points[order].T,
            s=float(np.clip(6000 / len(order), 3, 16)) / count**0.5,
            c=colours[order],
            alpha=0.6,
            linewidths=0,
            rasterized=True,  # thousands of shapes would make a page of megabytes
        )
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
        first, second = (number(100 * share, 0) for share in plane.explained)
        axes.set_xlabel(f"{first} % of the variance", fontsize=9)
        axes.set_ylabel(f"{second} %", fontsize=9)
        _title(axes, analysis.label)
    handles = [
        Line2D([], [], color=palette[index], marker="o", linestyle="", markersize=5)
        for index in range(len(chosen))
    ]
    words = [printable(names[label])[:12] for label in chosen]
    figure.legend(handles, words, loc="outside lower center", ncols=5, fontsize=8.5)
    return figure


def _coloured(classes: int) -> list[int]:
    """At most NAMED classes, spread over all of them."""
    return sorted({int(at) for at in np.linspace(0, classes - 1, min(classes, NAMED))})


# Drift


def _drift_sections(analyses: Sequence[Analysis]) -> list[Section]:
    drifts = [(each.label, each.drift) for each in analyses if each.drift is not None]
    if not drifts:
        return []
    rows = [
        [
            label,
            f"{len(drift.clients)}",
            _spread([client.weights for client in drift.clients], 4),
            _spread([client.features for client in drift.clients], 4),
            number(drift.agreement, 3),
        ]
        for label, drift in drifts
    ]
    table = Table(
        ["run", "clients", "weights", "features", "cosine of two updates"],
        rows,
        note="Mean over the clients, and in brackets from the least to the greatest.",
    )
    images = max(drift.images for _, drift in drifts)
    paragraphs = [
        "From the final global model, some clients train one more round as the run would have gone "
        "on. Weights: the distance that a client has moved, as a share of the global model's "
        f"length. Features: 1 - cosine between the embeddings of the same {images:,} images "
        "by the client's model and by the global one. Cosine of two updates: 1 if two clients pull "
        "the same way, 0 if what they want has nothing to do with each other, averaged over all "
        "pairs of clients."
    ]
    if any(drift.rehearsed for _, drift in drifts):
        rehearsed = listed([label for label, drift in drifts if drift.rehearsed])
        paragraphs.append(
            f"A finished run has not kept what the server shares and what clients remember. For "
            f"{rehearsed} the same clients trained a round before, from the same weights, to make "
            f"it again."
        )
    picture = Picture.of(
        "Drift, client by client",
        drift_figure(drifts),
        "Dot plot of the drift of each client in weights and features, and of the cosine between "
        "the updates of each pair of clients.",
        "Each dot is a client (on the right a pair of clients), and the bar is the mean.",
    )
    return [Section("Drift of a local round", paragraphs, [table], [picture])]


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    low, high = number(min(values), digits), number(max(values), digits)
    return f"{number(float(np.mean(values)), digits)} ({low} to {high})"


@styled
def drift_figure(drifts: Sequence[tuple[str, Drift]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.9 + 0.42 * max(len(drifts), 2)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    shown: list[tuple[str, Callable[[Drift], Sequence[float]]]] = [
        ("weights", lambda drift: [client.weights for client in drift.clients]),
        ("features", lambda drift: [client.features for client in drift.clients]),
        ("update cosine", lambda drift: drift.update_cosines.tolist()),
    ]
    for axes, (title, values_of) in zip(panels, shown, strict=True):
        for row, (_, drift) in enumerate(drifts):
            values, colour = list(values_of(drift)), COLOURS[row % len(COLOURS)]
            if not values:
                continue
            # A little up and down in a fixed pattern, so that equal values stay apart.
            lift = 0.12 * (np.arange(len(values)) % 3 - 1)
            axes.plot(values, row + lift, "o", color=colour, alpha=0.5, markersize=3.5, mew=0)
            axes.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=2)
        _title(axes, title)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.margins(x=0.08)
        if title != "update cosine":
            axes.set_xlim(left=0)
    labels = [printable(label) if len(label) <= 14 else label[:13] + "…" for label, _ in drifts]
    panels[0].set_yticks(range(len(drifts)), labels)
    panels[0].set_ylim(len(drifts) - 0.5, -0.5)
    return figure
