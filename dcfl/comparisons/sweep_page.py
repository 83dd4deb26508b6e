"""The page about a sweep: what was chosen, what mattered, the scores, the curves, all trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group
from dcfl.comparisons.pairs import Pairs
from dcfl.comparisons.space import Choices, Dimension, plain, short_names
from dcfl.comparisons.sweep_result import SweepResult
from dcfl.comparisons.trials import By, Trial
from dcfl.comparisons.verdict import counted_apart
from dcfl.report import charts
from dcfl.report.charts import GREY, Chart, accuracy_chart, chart_note, series
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import listed, number, plural, with_deviation

MOST_CURVES = 20  # in a legend; a reader looks for the good ones
MARGIN = 0.04  # beside the first and the last value, as a share of the axis
SCORE = "kept-back accuracy (%)"
NAMED_CURVES = 5  # the best; the others are grey
FEW_VALUES = 4  # are named below their axis; of more, the first and the last


def scores_chart(dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By) -> Chart:
    """The scores of finished trials, the best first, by their settings."""
    if len(dimensions) == 1:
        return _over_one_key(dimensions[0], trials, by)
    if lists := two_lists(dimensions):
        rows, columns = ((one.key, list(map(plain, one.values))) for one in lists)
        table = score_table(*lists, trials, by)
        return charts.matrix(table, rows, columns, "accuracy, %", "range", digits=2)
    return _parallel_coordinates(dimensions, trials, by)


def two_lists(dimensions: Sequence[Dimension]) -> tuple[Choices, Choices] | None:
    """The sweeps that a table shows."""
    if len(dimensions) != 2:
        return None
    down, across = dimensions
    return (down, across) if isinstance(down, Choices) and isinstance(across, Choices) else None


def score_table(
    down: Choices, across: Choices, trials: Sequence[Trial], by: By
) -> NDArray[np.float64]:
    """NaN where no trial has finished."""
    table = np.full((len(down.values), len(across.values)), np.nan)
    for trial in trials:
        row = down.values.index(trial.point[down.key])
        table[row, across.values.index(trial.point[across.key])] = trial.score(by)
    return table


def trial_groups(ranked: Sequence[Trial], labels: Sequence[str]) -> list[Group]:
    """The best trials that have begun, for a chart of their curves."""
    begun = (
        Group(label, tuple(cell.run for cell in trial.cells if cell.run is not None))
        for trial, label in zip(ranked, labels, strict=True)
        if trial.rounds
    )
    return list(begun)[:MOST_CURVES]


def _over_one_key(dimension: Dimension, trials: Sequence[Trial], by: By) -> Chart:
    places = places_of(dimension, trials)
    means = [trial.score(by) for trial in trials]
    label = "mean over seeds" if any(len(trial.cells) > 1 for trial in trials) else "trials"
    line = sorted(zip(places, means, strict=True))
    shown = [
        series(label, [x for x, _ in line], [y for _, y in line], 0),
        series(label, places, means, 0, "points", notes=[_note(one, by) for one in trials]),
    ]
    seeds = [
        (place, score, f"trial {trial.number}, one seed: {number(score)} %")
        for place, trial in zip(places, trials, strict=True)
        if len(trial.cells) > 1
        for score in trial.scores(by)
    ]
    if seeds:
        x, y, notes = zip(*seeds, strict=True)
        shown.append(series("each seed", x, y, GREY, "points", notes=notes))
    axis = {"label": dimension.key, **_scale(dimension)}
    return charts.plot(axis, {"label": SCORE, "percent": True}, [{"series": shown}])


def _scale(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choices):
        return charts.places(dimension.key, list(map(plain, dimension.values)))
    if dimension.log:
        room = (dimension.high / dimension.low) ** MARGIN
        return {"log": True, "low": dimension.low / room, "high": dimension.high * room}
    room = (dimension.high - dimension.low) * MARGIN
    return {"low": dimension.low - room, "high": dimension.high + room}


def _parallel_coordinates(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By
) -> Chart:
    """A line per trial through its settings to its score; the best have the colours that they have
    among the curves."""
    scores = [trial.score(by) for trial in trials]
    low, high = min(scores), max(scores)
    heights = [shares_of(one, [trial.point[one.key] for trial in trials]) for one in dimensions]
    heights.append([(score - low) / (high - low or 1) for score in scores])
    lines = [
        series(
            f"trial {trial.number}" if rank < NAMED_CURVES else "other trials",
            range(len(heights)),
            [column[rank] for column in heights],
            rank if rank < NAMED_CURVES else GREY,
            notes=[_note(trial, by)] * len(heights),
        )
        for rank, trial in enumerate(trials)
    ]
    drawn = [*lines[NAMED_CURVES:], *lines[:NAMED_CURVES]]  # the best on top
    names = [
        f"{name}\n{_values(one)}"
        for name, one in zip(short_names([one.key for one in dimensions]), dimensions, strict=True)
    ]
    names.append(f"accuracy, %\n{number(low, 1)} to {number(high, 1)}")
    across = {"label": "", "names": names, "low": -0.4, "high": len(names) - 0.6, "rules": True}
    up = {"label": "each from low to high", "low": -0.06, "high": 1.06, "bare": True}
    return charts.plot(across, up, [{"series": drawn}])


def shares_of(dimension: Dimension, values: Sequence[Any]) -> list[float]:
    """Where values lie on an axis from 0 to 1."""
    if isinstance(dimension, Choices):
        last = max(len(dimension.values) - 1, 1)
        return [dimension.values.index(value) / last for value in values]
    scale = math.log if dimension.log else float
    low, high = scale(dimension.low), scale(dimension.high)
    return [(scale(value) - low) / (high - low) for value in values]


def places_of(dimension: Dimension, trials: Sequence[Trial]) -> list[float]:
    values = [trial.point[dimension.key] for trial in trials]
    if isinstance(dimension, Choices):
        return [float(dimension.values.index(value)) for value in values]
    return [float(value) for value in values]


def _values(dimension: Dimension) -> str:
    if isinstance(dimension, Choices) and len(dimension.values) <= FEW_VALUES:
        return ", ".join(map(plain, dimension.values))
    return f"{plain(dimension.ends[0])} to {plain(dimension.ends[-1])}"


def _note(trial: Trial, by: By) -> str:
    settings = [f"{key} = {plain(value)}" for key, value in trial.point.items()]
    return "\n".join([f"trial {trial.number}: {with_deviation(trial.spread(by))} %", *settings])


SCORES = {"ema": "EMA", "max": "MAX", "final": "the last accuracy"}
ABOUT_SHARES = (
    "The part of the variance of the scores that goes with a key alone, over the finished trials, "
    "corrected for what as many values would explain by chance. What keys do together is in none "
    "of them, so they need not add up to 100 %. A dash: too few trials to say."
)


def sweep_page(result: SweepResult) -> Page:
    method = result.experiment.method.name
    title = f"Sweep of {method} on {result.wanted.data.dataset}"
    return Page(title, _facts(result), headline(result), list(_sections(result)), _cautions(result))


def point_text(trial: Trial) -> str:
    return ", ".join(f"{key} = {plain(value)}" for key, value in trial.point.items())


def _short(trial: Trial) -> str:
    """The settings of a trial for a legend."""
    values = zip(short_names(trial.point), trial.point.values(), strict=True)
    return ", ".join(f"{name} = {plain(value)}" for name, value in values)


def headline(result: SweepResult) -> str:
    kept_back = result.chosen.spread(result.by).mean
    text = (
        f"Chosen: {point_text(result.chosen)}, with {number(kept_back)} % ({SCORES[result.by]}) on "
        f"kept-back images."
    )
    if result.test.spread is None:
        return f"{text} Training it on all images failed: {result.test.why}"
    return f"{text}{_certainty(result)} On the test images it has {result.test.spread} %."


def _certainty(result: SweepResult) -> str:
    """How many of the other points are behind by more than chance explains."""
    chosen = "the chosen setting"
    scores = {
        chosen if trial is result.chosen else str(trial.number): dict(
            enumerate(trial.scores(result.by))
        )
        for trial in result.trials
        if trial.state == "finished"
    }
    pairs = Pairs.of(scores, chosen)
    return f" {counted_apart(pairs)}" if pairs.tested else ""


def _facts(result: SweepResult) -> list[tuple[str, str]]:
    states = [trial.state for trial in result.trials]
    counts = {state: states.count(state) for state in ("finished", "failed")}
    shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    trial_data = result.chosen.experiment.data
    return [
        ("Varied", "; ".join(result.space.described())),
        ("Trials", f"{len(states)}: {shown}"),
        ("Seeds", plural(len(result.chosen.cells), "seed") + " per point"),
        ("Rounds", str(result.wanted.federation.rounds)),
        ("Scored on", f"{100 * trial_data.holdout:g} % of the training images, kept back"),
        ("Scored by", SCORES[result.by]),
    ]


def _cautions(result: SweepResult) -> list[str]:
    cautions = [
        f"Trial {trial.number} ({point_text(trial)}) failed: {trial.why}"
        for trial in result.trials
        if trial.why
    ]
    if result.out_of_time:
        cautions.append("The time allowed ended the search before all trials had begun.")
    if len(result.chosen.cells) == 1:
        cautions.append("With one seed per point, small differences between trials may be chance.")
    return cautions


def _sections(result: SweepResult) -> Iterator[Section]:
    finished = [trial for trial in result.ranked if trial.state == "finished"]
    yield _chosen_section(result)
    over_seeds = ", mean over seeds" if len(result.chosen.cells) > 1 else ""
    yield Section(
        "Scores",
        pictures=[
            Picture(
                f"Accuracy over {listed(result.space.keys)}",
                "Each trial's score by its settings",
                f"{SCORES[result.by]} of finished trials on kept-back images{over_seeds}.",
                scores_chart(result.space.dimensions, finished, result.by),
            )
        ],
    )
    yield Section("What mattered most", [ABOUT_SHARES], [importance_table(result)])
    yield Section("Curves", pictures=[_curves(result)])
    yield Section("Trials", tables=[trials_table(result)])


def _curves(result: SweepResult) -> Picture:
    labels = [f"{trial.number}: {_short(trial)}" for trial in result.ranked]
    groups = trial_groups(result.ranked, labels)
    return Picture(
        "Accuracy over rounds",
        "Line chart of the accuracy on kept-back images over rounds, a line per trial",
        f"{_about_curves(result, len(groups))}{chart_note(groups)}",
        accuracy_chart(groups),
    )


def _about_curves(result: SweepResult, curves: int) -> str:
    sentences = ["Bold is the moving average of the accuracy on kept-back images."]
    if len(result.chosen.cells) > 1:
        sentences.append(
            "It is the mean over seeds, and the band runs from the lowest to the highest."
        )
    if curves < len([trial for trial in result.trials if trial.rounds]):
        sentences.append(f"The {curves} best trials are in the legend.")
    return " ".join(sentences)


def _chosen_section(result: SweepResult) -> Section:
    rows = [(key, plain(value)) for key, value in result.chosen.point.items()]
    rows.append(("kept-back images, %", f"{result.chosen.spread(result.by)}"))
    test = result.test.spread
    rows.append(("test images, %", f"{test}" if test else "failed"))
    as_is = result.test.trial is result.chosen
    how = (
        "The trials' own models were scored on the test images, because such runs end or choose by "
        "images that are kept back."
        if as_is
        else "It was trained again on all training images, once per seed, and scored on the test "
        "images; these were not used before."
    )
    table = Table(("setting or score", "value"), rows)
    return Section("The chosen setting", [f"{how} best.toml has it as a config."], [table])


def importance_table(result: SweepResult) -> Table:
    rows = [
        (
            one.key,
            "–" if math.isnan(one.share) else f"{100 * one.share:.0f} %",
            one.best.label,
            number(one.best.mean),
            number(min(level.mean for level in one.levels)),
        )
        for one in result.importances
    ]
    columns = ("key", "share of variance", "best at", "mean there, %", "lowest mean, %")
    return Table(columns, rows)


def trials_table(result: SweepResult) -> Table:
    columns = ("trial", *result.space.keys, "score, %", "±", "seeds", "state", "rounds", "seconds")
    rows = [
        (
            str(row["trial"]),
            *(plain(row[key]) for key in result.space.keys),
            number(row["score"]),
            "" if row["deviation"] is None else number(row["deviation"]),
            str(row["seeds"]),
            str(row["state"]),
            str(row["rounds"]),
            number(row["seconds"], 1),
        )
        for row in result.rows()
    ]
    return Table(columns, rows)
