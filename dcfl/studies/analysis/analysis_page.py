"""The page about one or several analysed runs, and their numbers as files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.text import listed, number, plural, without_folders
from dcfl.runs.groups import setting
from dcfl.studies.analysis.figures import (
    EDGES,
    NAMED,
    drift_figure,
    paper_figure,
    plane_figure,
    separation_figure,
    spectrum_figure,
)
from dcfl.studies.analysis.findings import Analysis
from dcfl.studies.analysis.similarity import BINS, PERCENTILES
from dcfl.system.storage import storage, strict_json, write_whole

ACROSS = 3  # panels beside each other: more are too small to read


def write_analysis(analyses: Sequence[Analysis], out: Path) -> Path:
    """Write analysis.html, analysis.json and similarity.csv into `out`; returns the page."""
    page = render(analyses)
    with storage(out):
        out.mkdir(parents=True, exist_ok=True)
    numbers = strict_json([analysis.as_json() for analysis in analyses], indent=1)
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
        for kind, cosines in analysis.kinds:
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
        for kind, cosines in analysis.kinds
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
    exponents = analyses[0].similarity.exponents
    distance = "squared distance" if exponents.alpha == 2 else "distance, to the power alpha,"
    text = (
        f"Lower is better for all four. Alignment is the mean {distance} of two unit vectors "
        "that belong together: two images of a class, or two augmented views of one image. "
        f"Uniformity is the logarithm of the mean of exp(-{exponents.t:g} times the squared "
        "distance): over all pairs, where classes that shrink to points set a floor, and over "
        "pairs of different classes, where they do not."
    )
    note = f"Alignment with alpha = {exponents.alpha:g}, uniformity with t = {exponents.t:g}."
    return Section("Alignment and uniformity", [text], [Table(columns, rows, note=note)])


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
