"""The page that `dcfl theory` writes."""

from __future__ import annotations

from functools import partial

from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.text import listed
from dcfl.studies.theory.claims import claims, follows
from dcfl.studies.theory.theory_charts import deviation_chart, terms_chart
from dcfl.studies.theory.theory_figures import deviation_figure, terms_figure
from dcfl.studies.theory.theory_study import Study, TheoryResult
from dcfl.studies.theory.theory_tables import batches_table, points_table, short, slopes_table

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


def render(result: TheoryResult) -> str:
    first = result.studies[0]
    temperature = first.sphere.temperature
    sections = [_section(study) for study in result.studies]
    return render_document(
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
                partial(deviation_figure, study),
                f"Mean deviation, spread, RMS and bound against M in dimension {dimension}",
                "Points are measured, thin lines what the second order predicts. The grey band "
                "is where a client's batch of 64 lies (42 to 63 negatives); above the dotted "
                "line a bound says nothing.",
                deviation_chart(study),
            ),
            Picture(
                "The two terms, each with its bound",
                partial(terms_figure, study),
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
            Table(
                columns=[
                    "τ",
                    "RMS of a draw",
                    "first term",
                    "second term",
                    "bound / RMS",
                    "any deviation is below",
                    "bound says something from M",
                ],
                rows=[
                    [
                        f"{sphere.temperature:g}",
                        short(point.rms),
                        short(point.positive_bound),
                        short(point.sampling_bound),
                        short(point.bound / point.rms, 2),
                        short(sphere.certain_range(point.negatives)),
                        short(sphere.bound_informs_from, 2),
                    ]
                    for sphere, point in result.temperatures
                ],
                title=f"M = {point.negatives}, dimension {sphere.dimension}",
            )
        ],
    )
