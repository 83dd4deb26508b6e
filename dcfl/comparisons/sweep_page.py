"""The page about a sweep: what was chosen, the scores, the curves, all trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dcfl.comparisons.groups import Group
from dcfl.comparisons.pairs import Pairs
from dcfl.comparisons.space import Choices, plain, short_names
from dcfl.comparisons.sweep_result import SweepResult
from dcfl.comparisons.trials import Trial
from dcfl.comparisons.verdict import counted_apart
from dcfl.report import charts
from dcfl.report.charts import GREY, Chart, accuracy_chart, chart_note, series
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import counted, listed, number, plural, with_deviation

MOST_CURVES = 20  # in a legend; a reader looks for the good ones
SCORE = "kept-back accuracy (%)"


def scores_chart(dimensions: Sequence[Choices], trials: Sequence[Trial]) -> Chart | None:
    """The scores of finished trials over one or two settings; None over more."""
    if len(dimensions) == 1:
        return _over_one_key(dimensions[0], trials)
    if len(dimensions) > 2:
        return None
    down, across = dimensions
    rows, columns = ((one.key, list(map(plain, one.values))) for one in dimensions)
    table = np.full((len(down.values), len(across.values)), np.nan)  # where no trial has finished
    for trial in trials:
        row = down.values.index(trial.point[down.key])
        table[row, across.values.index(trial.point[across.key])] = trial.score
    return charts.matrix(table, rows, columns, "accuracy, %", "range", digits=2)


def trial_groups(ranked: Sequence[Trial], labels: Sequence[str]) -> list[Group]:
    """The best trials that have begun, for a chart of their curves."""
    begun = (
        Group(label, tuple(cell.run for cell in trial.cells if cell.run is not None))
        for trial, label in zip(ranked, labels, strict=True)
        if trial.rounds
    )
    return list(begun)[:MOST_CURVES]


def _over_one_key(dimension: Choices, trials: Sequence[Trial]) -> Chart:
    places = [dimension.values.index(trial.point[dimension.key]) for trial in trials]
    means = [trial.score for trial in trials]
    label = "mean over seeds" if any(len(trial.cells) > 1 for trial in trials) else "trials"
    line = sorted(zip(places, means, strict=True))
    shown = [
        series(label, [x for x, _ in line], [y for _, y in line], 0),
        series(label, places, means, 0, "points", notes=[_note(one) for one in trials]),
    ]
    seeds = [
        (place, score, f"trial {trial.number}, one seed: {number(score)} %")
        for place, trial in zip(places, trials, strict=True)
        if len(trial.cells) > 1
        for score in trial.scores.values()
    ]
    if seeds:
        x, y, notes = zip(*seeds, strict=True)
        shown.append(series("each seed", x, y, GREY, "points", notes=notes))
    across = charts.places(dimension.key, list(map(plain, dimension.values)))
    return charts.plot(across, {"label": SCORE, "percent": True}, [{"series": shown}])


def _note(trial: Trial) -> str:
    settings = [f"{key} = {plain(value)}" for key, value in trial.point.items()]
    return "\n".join([f"trial {trial.number}: {with_deviation(trial.spread)} %", *settings])


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
    text = (
        f"Chosen: {point_text(result.chosen)}, with {number(result.chosen.spread.mean)} % "
        f"({result.chosen.yardstick.name}) on kept-back images.{_ties(result)}"
    )
    if result.test.spread is None:
        return f"{text} Training it on all images failed: {result.test.trial.why}"
    return f"{text}{_certainty(result)} On the test images it has {result.test.spread} %."


def _ties(result: SweepResult) -> str:
    ties = sum(trial.score == result.chosen.score for trial in result.trials) - 1
    return f" {counted(ties, 'other trial').capitalize()} scored as high." if ties else ""


def _certainty(result: SweepResult) -> str:
    """How many of the other points are behind by more than chance explains."""
    chosen = "the chosen setting"
    scores = {
        chosen if trial is result.chosen else str(trial.number): trial.scores
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
        ("Varied", "; ".join(map(str, result.space.dimensions))),
        ("Trials", f"{len(states)}: {shown}"),
        ("Seeds", plural(len(result.chosen.cells), "seed") + " per point"),
        ("Rounds", str(result.wanted.federation.rounds)),
        ("Scored on", f"{100 * trial_data.holdout:g} % of the training images, kept back"),
        ("Scored by", result.chosen.yardstick.name),
    ]


def _cautions(result: SweepResult) -> list[str]:
    cautions = [
        f"Trial {trial.number} ({point_text(trial)}) failed: {trial.why}"
        for trial in result.trials
        if trial.why
    ]
    if len(result.chosen.cells) == 1:
        cautions.append("With one seed per point, small differences between trials may be chance.")
    return cautions


def _sections(result: SweepResult) -> Iterator[Section]:
    finished = [trial for trial in result.ranked if trial.state == "finished"]
    yield _chosen_section(result)
    if (chart := scores_chart(result.space.dimensions, finished)) is not None:
        over_seeds = ", mean over seeds" if len(result.chosen.cells) > 1 else ""
        picture = Picture(
            f"Accuracy over {listed(result.space.keys)}",
            "Each trial's score by its settings",
            f"{result.chosen.yardstick.name} of finished trials on kept-back images{over_seeds}.",
            chart,
        )
        yield Section("Scores", pictures=[picture])
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
    rows.append(("kept-back images, %", f"{result.chosen.spread}"))
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
