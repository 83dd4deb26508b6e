"""The page about one or several analysed runs, and their numbers as files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.analysis.findings import Analysis
from dcfl.analysis.similarity import BINS, PERCENTILES, T
from dcfl.comparisons.groups import setting
from dcfl.report import charts
from dcfl.report.charts import Chart, histogram, series
from dcfl.report.document import Page, Picture, Section, Table, write_page
from dcfl.report.text import listed, number, plural, without_folders
from dcfl.system.storage import strict_json, write_whole

NAMED = 10  # classes with a colour of their own; the eye does not tell more apart
EDGES = np.linspace(-1, 1, BINS + 1)
PLANE_HEIGHT = 320  # pixels


def cosine_range(analyses: Sequence[Analysis]) -> tuple[float, float]:
    """[-1, 1], or [0, 1] where nothing is negative: after a ReLU."""
    negative = any(
        cosines.counts[: BINS // 2].any() for analysis in analyses for _, cosines in analysis.kinds
    )
    return (-1.0 if negative else 0.0), 1.0


def separation_chart(analyses: Sequence[Analysis]) -> Chart:
    low, high = cosine_range(analyses)
    first = int(np.searchsorted(EDGES, low))
    panels = [
        {
            "title": f"{one.label}: overlap {_overlap(one)}",
            "series": [
                histogram(name, EDGES[first:], cosines.density[first:], colour)
                for colour, (name, (_, cosines)) in enumerate(
                    zip(("same class", "different classes"), one.kinds, strict=True)
                )
            ],
        }
        for one in analyses
    ]
    top = max(cosines.density.max() for one in analyses for _, cosines in one.kinds)
    return charts.plot(
        {"label": "cosine", "low": low, "high": high},
        {"label": "density", "low": 0, "high": float(1.05 * top or 1.0)},
        panels,
    )


def plane_chart(analyses: Sequence[Analysis]) -> Chart:
    """The embeddings in two dimensions; classes without a colour of their own are grey."""
    classes = len(analyses[0].class_names)
    chosen = np.unique(np.linspace(0, classes - 1, min(classes, NAMED)).astype(int))
    reach = max(float(np.abs(one.plane.points).max()) for one in analyses)
    edges = {"low": -1.05 * reach or -1.0, "high": 1.05 * reach or 1.0, "bare": True}
    panels = [{"title": one.label, "series": [*_classes(one, chosen)]} for one in analyses]
    across, up = ({"label": f"{which} direction", **edges} for which in ("first", "second"))
    return charts.plot(across, up, panels, height=PLANE_HEIGHT)


def _classes(one: Analysis, chosen: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    def dots(label: str, own: NDArray[np.bool_], colour: int) -> dict[str, Any]:
        notes = [one.class_names[at] for at in one.plane.labels[own]]
        across, up = one.plane.points[own].T
        return series(label, across, up, colour, "points", notes=notes)

    for colour, label in enumerate(chosen):
        yield dots(one.class_names[label], one.plane.labels == label, colour)
    if (rest := ~np.isin(one.plane.labels, chosen)).any():
        yield dots("other classes", rest, charts.GREY)


ACROSS = 3  # panels beside each other: more are too small to read


def similarity_section(analyses: Sequence[Analysis]) -> Section:
    rows = [
        {
            "pairs of": f"{one.label}, {'same class' if kind == 'intra' else 'different classes'}",
            "pairs": f"{cosines.pairs:,}",
            "mean": number(cosines.mean, 3),
            "deviation": number(cosines.deviation, 3),
            **{
                f"{at} %": number(value, 3)
                for at, value in zip(PERCENTILES, cosines.percentiles, strict=True)
            },
            "overlap %": number(100 * one.similarity.overlap, 1) if kind == "intra" else "",
        }
        for one in analyses
        for kind, cosines in one.kinds
    ]
    note = (
        "Mean and deviation are exact, over all pairs; percentiles are good to 0.0001. The "
        f"overlap is the area that both histograms cover, in bins of {2 / BINS:g}."
    )
    pictures = [_separation_picture(panels) for panels in _in_panels(analyses)]
    return Section("Cosine similarity", claim(analyses), [Table.of(rows, note=note)], pictures)


def _separation_picture(analyses: Sequence[Analysis]) -> Picture:
    spoken = " ".join(
        f"{one.label}: mean {number(one.similarity.intra.mean)} within classes, "
        f"{number(one.similarity.inter.mean)} between."
        for one in analyses
    )
    return Picture(
        "Within classes and between them",
        f"Histograms of cosines of same-class and different-class pairs. {spoken}",
        "All pairs of images by the cosine of their embeddings. A representation that "
        "separates the classes has one hill near 1 and the other well to the left of it.",
        separation_chart(analyses),
    )


def _in_panels(analyses: Sequence[Analysis]) -> list[Sequence[Analysis]]:
    return [analyses[first : first + ACROSS] for first in range(0, len(analyses), ACROSS)]


def claim(analyses: Sequence[Analysis]) -> list[str]:
    """The paper's two sentences about its figure, checked on one run of each method."""
    return [
        f"What the paper says of DCFL-PW beside FedProc, in these two runs{where}: {verdicts}. "
        f"Both kinds of cosines rise when all embeddings move closer together, which helps the "
        f"first two and hurts the others; whether the classes come apart is what the overlap says."
        for which, where in (("features", ""), ("projection", ", behind the side head"))
        if (verdicts := _verdicts([one for one in analyses if one.embedding == which]))
    ]


def _verdicts(analyses: Sequence[Analysis]) -> str:
    """Empty if these are not one run of each of the figure's methods."""
    if sorted(analysis.method for analysis in analyses) != ["dcfl-pw", "fedproc"]:
        return ""
    by_method = {analysis.method: analysis.similarity for analysis in analyses}
    checks = []
    for pairs, kind, target in (("same-class", "intra", 1.0), ("other", "inter", 0.0)):
        ours, theirs = (getattr(by_method[name], kind) for name in ("dcfl-pw", "fedproc"))
        near = abs(ours.mean - target) < abs(theirs.mean - target)
        apart, their_apart = (one.distance_from(target) for one in (ours, theirs))
        checks += [
            f"{pairs} cosines on average nearer to {target:g}: {_yes(near)} "
            f"({number(ours.mean, 3)} against {number(theirs.mean, 3)})",
            f"and less dispersed away from {target:g}: {_yes(apart < their_apart)} (root mean "
            f"square distance {number(apart, 3)} against {number(their_apart, 3)})",
        ]
    return "; ".join(checks)


def _yes(so: bool) -> str:
    return "yes" if so else "no"


def sphere_section(analyses: Sequence[Analysis]) -> Section:
    rows = [
        {
            "run": analysis.label,
            "alignment, same class": number(analysis.similarity.alignment, 3),
            "uniformity": number(analysis.similarity.uniformity, 3),
            "uniformity, different classes": number(analysis.similarity.inter_uniformity, 3),
        }
        for analysis in analyses
    ]
    text = (
        "Lower is better for all three. Alignment is the mean squared distance of the unit vectors "
        "of two images of a class. "
        f"Uniformity is the logarithm of the mean of exp(-{T:g} times the squared distance): over "
        "all pairs, where classes that shrink to points set a floor, and over pairs of different "
        "classes, where they do not."
    )
    return Section("Alignment and uniformity", [text], [Table.of(rows)])


def dimensions_section(analyses: Sequence[Analysis]) -> Section:
    rows = []
    for analysis in analyses:
        dimensions = analysis.dimensions
        needed = int(np.searchsorted(dimensions.explained, 0.95)) + 1
        needed = needed if dimensions.effective_rank else 0
        rows.append(
            {
                "run": analysis.label,
                "width": f"{dimensions.width}",
                "always zero": f"{dimensions.zero}",
                "constant": f"{dimensions.still}",
                "moving": f"{number(100 * dimensions.moving_share, 1)} %",
                "effective rank": number(dimensions.effective_rank, 1),
                "of the width": f"{number(100 * dimensions.rank_share, 1)} %",
                "for 95 %": f"{min(needed, dimensions.width)}",
            }
        )
    note = (
        "Always zero: coordinates of z that are 0 for every image. Constant: those whose "
        "value is the same for every image, the zeros included; moving are the others. "
        "Effective rank: exp of the entropy of the eigenvalues of the covariance of the unit "
        "vectors, taken as shares. For 95 %: principal directions that hold so much of the "
        "variance."
    )
    return Section("Dimensions in use", [], [Table.of(rows, note=note)])


def _plane_picture(analyses: Sequence[Analysis]) -> Picture:
    first = analyses[0]
    shown, classes = len(first.plane.points), len(first.class_names)
    sample = f" ({plural(shown, 'image')} of {first.images:,})" if shown < first.images else ""
    coloured = f" Coloured are {NAMED} of the {classes} classes." if classes > NAMED else ""
    if first.plane.layout == "pca":
        title, by = "The embeddings, in two dimensions", ""
        held = {one.label: number(100 * sum(one.plane.explained), 1) for one in analyses}
        told = [f" {name}: the two axes hold {x} % of the variance." for name, x in held.items()]
        explained = "".join(told)
        about = (
            "projected on the two directions in which the run's unit vectors vary most. Every run "
            "has axes of its own, in the same scale. What is apart here is apart; what overlaps "
            "here may be apart in the dimensions that are not shown."
        )
    else:
        program = {"tsne": "t-SNE", "umap": "UMAP"}[first.plane.layout]
        title, by, explained = f"The embeddings, by {program}", f" by {program}", ""
        about = (
            f"laid out by {program} so that near neighbours stay near. Sizes of groups and "
            "distances between them mean little, and another run's picture has another scale."
        )
    return Picture(
        title,
        f"Scatter plot of the images' embeddings{by}, coloured by class.{explained}",
        f"Each point is an image{sample}: its unit vector, {about}{coloured}",
        plane_chart(analyses),
    )


def drift_sections(analyses: Sequence[Analysis]) -> list[Section]:
    """One, or none where no drift was measured."""
    drifts = {one.label: one.drift for one in analyses if one.drift is not None}
    if not drifts:
        return []
    rows = [
        {
            "run": label,
            "clients": f"{len(drift.clients)}",
            "weights": _spread([client.weights for client in drift.clients], 4),
            "features": _spread([client.features for client in drift.clients], 4),
            "cosine of two updates": _spread(drift.update_cosines.tolist(), 3),
        }
        for label, drift in drifts.items()
    ]
    note = "Mean over the clients or pairs, and in brackets from the least to the greatest."
    images = max(drift.images for drift in drifts.values())
    paragraphs = [
        "From the final global model, some clients train one more round as the run would have gone "
        "on. Weights: the distance that a client has moved, as a share of the global model's "
        f"length. Features: 1 - cosine between the embeddings of the same {images:,} images "
        "by the client's model and by the global one. Cosine of two updates: 1 if two clients pull "
        "the same way, 0 if what they want has nothing to do with each other, averaged over all "
        "pairs of clients."
    ]
    if rehearsed := [label for label, drift in drifts.items() if drift.rehearsed]:
        paragraphs.append(
            f"What the server shares and what clients remember is not in the model file. For "
            f"{listed(rehearsed)} the same clients trained a round before, from the same weights, "
            f"to make it again."
        )
    return [Section("Drift of a local round", paragraphs, [Table.of(rows, note=note)])]


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    low, high = number(min(values), digits), number(max(values), digits)
    return f"{number(float(np.mean(values)), digits)} ({low} to {high})"


def write_analysis(analyses: Sequence[Analysis], out: Path, figures: Path | None = None) -> Path:
    page = write_page(page_about(analyses), out / "analysis.html", figures)
    numbers = strict_json([analysis.as_json() for analysis in analyses], indent=1)
    write_whole(out / "analysis.json", numbers + "\n")
    return page


def numbered_sections(analyses: Sequence[Analysis]) -> list[Section]:
    return [
        similarity_section(analyses),
        sphere_section(analyses),
        dimensions_section(analyses),
        *drift_sections(analyses),
    ]


def page_about(analyses: Sequence[Analysis]) -> Page:
    plane = [_plane_picture(panels) for panels in _in_panels(analyses)]
    sections = [*numbered_sections(analyses), Section("Picture", pictures=plane)]
    names = listed([analysis.label for analysis in analyses])
    return Page(
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
        ("Data set", distinct(lambda a: without_folders(a.dataset))),
        ("Images", distinct(lambda a: f"{a.images:,} {a.kind_of_images}")),
        ("Model", distinct(lambda a: str(setting(a.run, "model.name")))),
        ("Rounds", distinct(lambda a: str(a.rounds))),
        ("Accuracy", "; ".join(f"{a.label} {number(a.accuracy)} %" for a in analyses)),
    ]


def headline(analyses: Sequence[Analysis]) -> str:
    if len(analyses) == 1:
        (only,) = analyses
        return (
            f"{only.label}: cosines are {number(only.similarity.intra.mean)} on average within a "
            f"class and {number(only.similarity.inter.mean)} between classes; the two histograms "
            f"overlap by {_overlap(only)}."
        )
    known = [one for one in analyses if not math.isnan(one.similarity.overlap)] or analyses
    by_overlap = sorted(known, key=lambda one: one.similarity.overlap)
    least, most = by_overlap[0], by_overlap[-1]
    return (
        f"The histograms of same-class and other pairs overlap least for {least.label}, by "
        f"{_overlap(least)}, and most for {most.label}, by {_overlap(most)}."
    )


def _overlap(one: Analysis) -> str:
    return f"{number(100 * one.similarity.overlap, 1)} %"


def cautions(analyses: Sequence[Analysis]) -> list[str]:
    found = [f"{a.label}: {without_folders(caution)}." for a in analyses for caution in a.cautions]
    if len(analyses) > 1:
        found.append("One run of each: a small difference may be chance.")
    if len({analysis.images_id for analysis in analyses}) > 1:
        found.append("These runs are judged on different images: do not compare their numbers.")
    return found
