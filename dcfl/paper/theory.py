"""What `dcfl theory` measures: the loss over the number of negatives, and in a client's batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dcfl.paper.sphere import Point, Sphere, measure, require_counts
from dcfl.report.document import Table
from dcfl.report.text import plural

# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Study:
    sphere: Sphere
    points: Sequence[Point]
    batches: Sequence[Point]

    def as_json(self) -> dict[str, Any]:
        sphere = self.sphere
        return {
            **asdict(sphere),
            "limit": sphere.limit,
            "mean_coefficient": sphere.mean_coefficient,
            "spread_coefficient": sphere.spread_coefficient,
            "points": list(map(asdict, self.points)),
            "batches": list(map(asdict, self.batches)),
        }


def measure_theory(
    temperature: float,
    dimensions: Sequence[int],
    negatives: Sequence[int],
    repetitions: int,
    seed: int,
) -> list[Study]:
    # Checked before anything is drawn: a mistake in the last number costs no time.
    spheres = [Sphere(temperature, dimension) for dimension in dict.fromkeys(dimensions)]
    require_counts(negatives, repetitions, seed)
    studies = []
    for sphere in spheres:
        points = [measure(sphere, m, repetitions, seed) for m in sorted(set(negatives))]
        batches = [measure(sphere, m, repetitions, seed, positives) for positives, m in BATCHES]
        studies.append(Study(sphere, points, batches))
    return studies


def short(value: float, digits: int = 3) -> str:
    """Significant digits, without powers of ten as long as it can be read."""
    return f"{float(f'{value:.{digits}g}'):,.12g}".replace("-", MINUS)


def tables_of(study: Study) -> list[Table]:
    sphere = study.sphere
    points = [
        {
            "M": str(point.negatives),
            **_measured(point),
            "mean · M": short(point.deviation * point.negatives),
            "spread · √M": short(point.spread * point.negatives**0.5),
        }
        for point in study.points
    ]
    batches = [
        {
            "batch": f"{plural(point.positives, 'positive')}, {point.negatives} negatives",
            **_measured(point),
            "systematic": f"{100 * point.systematic:.0f} %",
            "pull kept": f"{100 * point.alignment_kept:.0f} %",
        }
        for point in study.batches
    ]
    return [
        Table.of(
            points,
            title=f"Deviation from the limit {short(sphere.limit, 6)}, "
            f"dimension {sphere.dimension}",
            note="Mean deviation: of many draws. Spread and RMS: of a single draw, about the mean "
            "and about the limit. First term: e^(2/τ)/M. Second: e^(2/τ)/(2√M). For large M, "
            f"mean · M tends to {short(sphere.mean_coefficient)} and spread · √M to "
            f"{short(sphere.spread_coefficient)}.",
        ),
        Table.of(
            batches,
            title="A client's batch of 64",
            note="At most 63 others; with Dirichlet 0.3 on CIFAR-10 about 21 of them have the "
            "anchor's class, which leaves 42 negatives. Systematic: share of the mean square that "
            "every batch has. Pull kept: how much of the pull towards a positive the denominator "
            "leaves, where alignment alone has 100 %.",
        ),
    ]


def _measured(point: Point) -> dict[str, str]:
    return {
        "mean deviation": short(point.deviation),
        "± its error": short(point.deviation_error, 1),
        "spread": short(point.spread),
        "RMS": short(point.rms),
        "first term": short(point.positive_bound),
        "second term": short(point.sampling_bound),
        "bound / RMS": short((point.positive_bound + point.sampling_bound) / point.rms, 2),
    }


def finding(study: Study) -> str:
    _, single, supervised = study.batches
    return (
        f"In dimension {study.sphere.dimension}, with {single.negatives} negatives, a batch's loss "
        f"is off its limit by {short(single.rms)} (RMS); {100 * single.systematic:.0f} % of the "
        f"square is there in every batch, because the positive counts for "
        f"{short(study.sphere.positive_weight, 2)} average negatives in its own denominator. With "
        f"{supervised.positives} positives there, as in the supervised loss, it is "
        f"{short(supervised.rms)}, and a positive keeps {100 * supervised.alignment_kept:.0f} % of "
        "its pull. Decoupling takes the positives out of the denominator: that part goes, the "
        "chance in the negatives stays."
    )
