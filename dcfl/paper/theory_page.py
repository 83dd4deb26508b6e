"""The page that `dcfl theory` writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcfl.paper.theory_study import Study, TheoryResult
from dcfl.paper.theory_tables import (
    batches_table,
    claims,
    follows,
    points_table,
    short,
    slopes_table,
)
from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import listed


def deviation_chart(study: Study) -> Chart:
    points, sphere = study.points, study.sphere
    across = [point.negatives for point in points]
    m = np.array(across, dtype=float)
    return _over_negatives(
        "deviation from the limit",
        [
            series("bound", across, [p.bound for p in points], 6),
            series(
                "most that is possible", across, list(map(sphere.certain_range, across)), 6, dash=2
            ),
            series("RMS of a draw", across, [p.rms for p in points], 2),
            series("spread of a draw", across, [p.spread for p in points], 1),
            series("mean deviation", across, [abs(p.deviation) for p in points], 0),
            series("spread, predicted", across, sphere.spread_coefficient / m**0.5, 1, dash=1),
            series("mean, predicted", across, sphere.mean_coefficient / m, 0, dash=1),
        ],
    )


def terms_chart(study: Study) -> Chart:
    points = study.points
    across = [point.negatives for point in points]
    return _over_negatives(
        "part of the deviation",
        [
            series("first term: e^(2/τ)/M", across, [p.positive_bound for p in points], 0, dash=1),
            series(
                "second term: e^(2/τ)/(2√M)", across, [p.sampling_bound for p in points], 1, dash=1
            ),
            series("positive's part", across, [p.positive_part for p in points], 0),
            series("negatives' part", across, [p.sampling_part for p in points], 1),
        ],
    )


def _over_negatives(up: str, lines: list[dict[str, Any]]) -> Chart:
    """Both axes are logarithmic, so that what is not above 0 is left out."""
    shown = [{**one, "y": [y if y and y > 0 else None for y in one["y"]]} for one in lines]
    axis = {"label": "negatives M", "log": True}
    return charts.plot(axis, {"label": up, "log": True}, [{"series": shown}])


CAUTIONS = (
    "Features here are uniform on the sphere, and the positive lies on the anchor. Features of a "
    "network gather in clusters: their spread is larger, and a positive that is not yet aligned "
    "weighs less in the denominator.",
    "Negatives here are independent draws from the distribution that the limit is about. A client "
    "draws them from its own classes; that difference does not shrink with M, and the proposition "
    "says nothing about it.",
    "This is about the value of the loss (and, where it says so, the pull of alignment), not about "
    "accuracy.",
)


def page_about(result: TheoryResult) -> Page:
    first = result.studies[0]
    temperature = first.sphere.temperature
    sections = [_section(study) for study in result.studies]
    return Page(
        title="Theorem 1 and Proposition 1, measured",
        facts=[
            ("temperature", f"{temperature:g}"),
            ("dimension", listed([str(study.sphere.dimension) for study in result.studies])),
            ("negatives", f"{first.points[0].negatives} to {first.points[-1].negatives}"),
            ("draws for each point", f"{result.repetitions:,}"),
            ("seed", str(result.seed)),
        ],
        # The highest dimension is the closest to a network's features.
        headline=follows(max(result.studies, key=lambda study: study.sphere.dimension)),
        sections=[_explained(temperature), *sections, _temperatures(result)],
        cautions=CAUTIONS,
    )


def _explained(temperature: float) -> Section:
    return Section(
        "What is measured",
        [
            "One positive, which lies on the anchor, and M independent negatives uniform on the "
            f"unit sphere; temperature τ = {temperature:g}. The loss is \N{MINUS SIGN}1/τ + "
            "log(e^(1/τ) + sum of e^(t/τ) over the negatives), t their cosines with the anchor. "
            "Its limit is known exactly, through a Bessel function; E is the mean of e^(t/τ), w = "
            "e^(1/τ)/E what the positive weighs, v the variance of e^(t/τ)/E.",
            "The first term of the bound is for the positive's place in the denominator. The "
            "second is for M draws in place of an expectation; the paper gives its order only, and "
            "the constant here is the one that its derivation yields.",
        ],
    )


def _section(study: Study) -> Section:
    dimension = study.sphere.dimension
    return Section(
        f"Dimension {dimension}",
        [f"The paper: {claim} – Measured: {finding}" for claim, finding in claims(study)],
        pictures=[
            Picture(
                "Deviation from the limit",
                f"Mean deviation, spread, RMS and bound against M in dimension {dimension}",
                "Solid is measured, dashed what the second order predicts; a client's batch of 64 "
                "has 42 to 63 negatives. Above the dotted line a bound says nothing.",
                deviation_chart(study),
            ),
            Picture(
                "The two terms, each with its bound",
                f"Both terms of the deviation with their bounds in dimension {dimension}",
                "Measured: what the positive adds by standing in the denominator, and how far "
                "the mean over the negatives is off, both on average over draws.",
                terms_chart(study),
            ),
        ],
        tables=[
            points_table(study),
            slopes_table(study),
            *([batches_table(study)] if study.batches else []),
        ],
    )


def _temperatures(result: TheoryResult) -> Section:
    sphere, point = result.temperatures[0]
    return Section(
        "Where the bound is loose",
        ["e^(2/τ) is the square of the largest weight that a sample can have. Almost none has it."],
        [
            Table.of(
                [
                    {
                        "τ": f"{sphere.temperature:g}",
                        "RMS of a draw": short(point.rms),
                        "first term": short(point.positive_bound),
                        "second term": short(point.sampling_bound),
                        "bound / RMS": short(point.bound / point.rms, 2),
                        "any deviation is below": short(sphere.certain_range(point.negatives)),
                        "bound says something from M": short(sphere.bound_informs_from, 2),
                    }
                    for sphere, point in result.temperatures
                ],
                title=f"M = {point.negatives}, dimension {sphere.dimension}",
            )
        ],
    )
