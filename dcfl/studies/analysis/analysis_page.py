"""The page about one or several analysed runs, and their numbers as files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from dcfl.report.document import render_document
from dcfl.report.text import listed, number, without_folders
from dcfl.runs.groups import setting
from dcfl.studies.analysis.analysis_sections import (
    dimensions_section,
    drift_sections,
    picture_section,
    similarity_section,
    sphere_section,
)
from dcfl.studies.analysis.figures import (
    EDGES,
)
from dcfl.studies.analysis.findings import Analysis
from dcfl.system.storage import storage, strict_json, write_whole


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
        similarity_section(analyses),
        sphere_section(analyses),
        dimensions_section(analyses),
        picture_section(analyses),
        *drift_sections(analyses),
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
        ("Data set", distinct(lambda a: without_folders(a.dataset))),
        ("Images", distinct(lambda a: f"{a.images:,} {a.kind_of_images}")),
        ("Model", distinct(lambda a: str(setting(a.run, "model.name")))),
        ("Rounds", distinct(lambda a: str(a.rounds))),
        (
            "Accuracy",
            "; ".join(f"{a.label} {number(a.accuracy)} %" for a in analyses),
        ),
    ]


def headline(analyses: Sequence[Analysis]) -> str:
    if len(analyses) == 1:
        (only,) = analyses
        similarity = only.similarity
        return (
            f"{only.label}: cosines are {number(similarity.intra.mean)} on average within a class "
            f"and {number(similarity.inter.mean)} between classes; the two histograms overlap by "
            f"{number(100 * similarity.overlap, 1)} %."
        )
    least = min(analyses, key=lambda a: _or_infinite(a.similarity.overlap))
    most = max(analyses, key=lambda a: -_or_infinite(-a.similarity.overlap))
    return (
        f"The histograms of same-class and other pairs overlap least for {least.label}, by "
        f"{number(100 * least.similarity.overlap, 1)} %, and most for {most.label}, by "
        f"{number(100 * most.similarity.overlap, 1)} %."
    )


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def cautions(analyses: Sequence[Analysis]) -> list[str]:
    all_cautions = [
        f"{analysis.label}: {without_folders(caution)}."
        for analysis in analyses
        for caution in analysis.cautions
    ]
    if len(analyses) > 1:
        all_cautions.append("One run of each: a small difference may be chance.")
    if len({analysis.images_id for analysis in analyses}) > 1:
        all_cautions.append(
            "These runs are judged on different images: do not compare their numbers."
        )
    return all_cautions
