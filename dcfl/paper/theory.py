"""What `dcfl theory` measures: curves over M, their slopes, a client's batches; and its page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcfl.paper.sphere import Point, Sphere, measure, require_counts
from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import listed, plural

SIGNAL = 4.0  # standard errors; a value closer to zero has no usable logarithm
FEWEST_FITTED = 3  # points: a line through two says nothing about its fit
# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Slope:
    """A straight line through logarithms. Its error comes from the scatter about the line, be it
    noise or curvature; both are None where fewer than three points are left."""

    slope: float | None
    error: float | None
    used: tuple[int, ...]  # M; left out is what is early, or indistinguishable from zero

    def __str__(self) -> str:
        if self.slope is None or self.error is None:
            return "too few points"
        return f"{self.slope:.3f} ± {self.error:.3f}".replace("-", MINUS)


def fit_slope(
    points: Sequence[Point],
    value: Callable[[Point], float],
    error: Callable[[Point], float] = lambda point: 0.0,
    from_negatives: float = 0.0,
) -> Slope:
    clear = [
        point
        for point in points
        if point.negatives >= from_negatives and abs(value(point)) > SIGNAL * error(point)
    ]
    used = tuple(point.negatives for point in clear)
    if len(clear) < FEWEST_FITTED:
        return Slope(None, None, used)
    x = np.log([point.negatives for point in clear])
    y = np.log([abs(value(point)) for point in clear])
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    scatter = float(((y - slope * x) ** 2).sum()) / (len(clear) - 2)
    return Slope(slope, math.sqrt(scatter / float(x @ x)), used)


@dataclass(frozen=True)
class Study:
    """One sphere: the curve over M, its slopes, and the points of a client's batches."""

    sphere: Sphere
    points: tuple[Point, ...]
    batches: tuple[Point, ...]

    @property
    def slopes(self) -> dict[str, tuple[str, Slope, Slope]]:
        """Of each quantity: the slope that theory expects, that over all M, and that where the
        curve is straight."""

        def fits(
            expected: str,
            value: Callable[[Point], float],
            error: Callable[[Point], float] = lambda point: 0.0,
        ) -> tuple[str, Slope, Slope]:
            start = self.sphere.straight_from
            straight = fit_slope(self.points, value, error, start)
            return expected, fit_slope(self.points, value, error), straight

        return {
            "mean deviation": fits(f"{MINUS}1", lambda p: p.deviation, lambda p: p.deviation_error),
            "spread of one draw": fits(f"{MINUS}1/2", lambda p: p.spread, lambda p: p.spread_error),
            "RMS of one draw": fits(f"{MINUS}1, later {MINUS}1/2", lambda p: p.rms),
            "bound": fits(f"{MINUS}1/2", lambda p: p.bound),
        }

    def as_json(self) -> dict[str, Any]:
        sphere = self.sphere
        return {
            **asdict(sphere),
            "limit": sphere.limit,
            "mean_coefficient": sphere.mean_coefficient,
            "spread_coefficient": sphere.spread_coefficient,
            "straight_from": sphere.straight_from,
            "noise_leads_from": sphere.noise_leads_from,
            "points": [point.as_json() for point in self.points],
            "slopes": {
                name: {"all": asdict(everywhere), "straight": asdict(straight)}
                for name, (_, everywhere, straight) in self.slopes.items()
            },
            "batches": [point.as_json() for point in self.batches],
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

    def study(sphere: Sphere) -> Study:
        counts = sorted(set(negatives))
        points = [measure(sphere, count, repetitions, seed) for count in counts]
        batches = [measure(sphere, m, repetitions, seed, positives) for positives, m in BATCHES]
        return Study(sphere, tuple(points), tuple(batches))

    return [study(sphere) for sphere in spheres]


def short(value: float, digits: int = 3) -> str:
    """Significant digits, without powers of ten as long as it can be read."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0:
        return "0"
    if 1e-5 <= abs(rounded) < 1e6:
        before = 1 + math.floor(math.log10(abs(rounded)))
        text = f"{rounded:,.{max(digits - before, 0)}f}"
    else:
        text = f"{rounded:.{digits - 1}e}"
    return text.replace("-", MINUS)


def tables_of(study: Study) -> list[Table]:
    sphere = study.sphere
    points = Table.of(
        [{"M": str(point.negatives), **_measured(point)} for point in study.points],
        title=f"Deviation from the limit {short(sphere.limit, 6)}, dimension {sphere.dimension}",
        note="Mean deviation: of many draws. Spread and RMS: of a single draw, about the mean and "
        "about the limit. First term: e^(2/τ)/M. Second: e^(2/τ)/(2√M).",
    )
    start = short(sphere.straight_from, 2)
    slopes = Table(
        columns=["slope over M", "for large M", "all M", f"M ≥ {start}"],
        rows=[
            [name, expected, str(everywhere), str(straight)]
            for name, (expected, everywhere, straight) in study.slopes.items()
        ],
        title="Slopes on logarithmic axes",
        note=f"From M = {start} curves are straight. Means within {SIGNAL:g} standard errors of "
        "zero are not fitted. The ± is scatter about the line, curvature included.",
    )
    batches = Table.of(
        [
            {
                "batch": f"{plural(point.positives, 'positive')}, {point.negatives} negatives",
                **_measured(point),
                "systematic": f"{100 * point.systematic:.0f} %",
                "pull kept": f"{100 * point.alignment_kept:.0f} %",
            }
            for point in study.batches
        ],
        title="A client's batch of 64",
        note="At most 63 others; with Dirichlet 0.3 on CIFAR-10 about 21 of them have the anchor's "
        "class, which leaves 42 negatives. Systematic: share of the mean square that every batch "
        "has. Pull kept: how much of the pull towards a positive the denominator leaves, where "
        "alignment alone has 100 %.",
    )
    return [points, slopes, batches]


def _measured(point: Point) -> dict[str, str]:
    return {
        "mean deviation": short(point.deviation),
        "± its error": short(point.deviation_error, 1),
        "spread": short(point.spread),
        "RMS": short(point.rms),
        "first term": short(point.positive_bound),
        "second term": short(point.sampling_bound),
        "bound / RMS": short(point.bound / point.rms, 2),
    }


def deviation_chart(study: Study) -> Chart:
    """Both axes are logarithmic, so that what is not above 0 is left out."""
    points, sphere = study.points, study.sphere
    across = [point.negatives for point in points]
    m = np.array(across, dtype=float)
    possible = list(map(sphere.certain_range, across))
    lines = [
        series("bound", across, [p.bound for p in points], 6),
        series("most that is possible", across, possible, 6, dash=2),
        series("RMS of a draw", across, [p.rms for p in points], 2),
        series("spread of a draw", across, [p.spread for p in points], 1),
        series("mean deviation", across, [abs(p.deviation) for p in points], 0),
        series("spread, predicted", across, sphere.spread_coefficient / m**0.5, 1, dash=1),
        series("mean, predicted", across, sphere.mean_coefficient / m, 0, dash=1),
    ]
    shown = [{**one, "y": [y if y and y > 0 else None for y in one["y"]]} for one in lines]
    up = {"label": "deviation from the limit", "log": True}
    return charts.plot({"label": "negatives M", "log": True}, up, [{"series": shown}])


def page_about(studies: Sequence[Study]) -> Page:
    first = studies[0]
    return Page(
        title="Theorem 1 and Proposition 1, measured",
        facts=[
            ("temperature", f"{first.sphere.temperature:g}"),
            ("dimension", listed([str(study.sphere.dimension) for study in studies])),
            ("negatives", f"{first.points[0].negatives} to {first.points[-1].negatives}"),
            ("draws for each point", f"{first.points[0].repetitions:,}"),
        ],
        # The highest dimension is the closest to a network's features.
        headline=finding(max(studies, key=lambda study: study.sphere.dimension)),
        sections=[_section(study) for study in studies],
        cautions=[
            "Features here are uniform on the sphere, the positive lies on the anchor, and this is "
            "about the value of the loss, not about accuracy: docs/theory.md says what that leaves "
            "open."
        ],
    )


def finding(study: Study) -> str:
    """What it means for the standard loss, in the numbers of a client's batch."""
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


def _section(study: Study) -> Section:
    dimension = study.sphere.dimension
    picture = Picture(
        "Deviation from the limit",
        f"Mean deviation, spread, RMS and bound against M in dimension {dimension}",
        "Solid is measured, dashed what the second order predicts; a client's batch of 64 has 42 "
        "to 63 negatives. Above the dotted line a bound says nothing.",
        deviation_chart(study),
    )
    return Section(f"Dimension {dimension}", tables=tables_of(study), pictures=[picture])
