"""The charts of an evaluation; score_figures.py has the pictures that they take the place of."""

from __future__ import annotations

from collections.abc import Sequence

from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.text import number, plural
from dcfl.runs.evaluations import ClassRow, ClientScore, EvaluationRecord
from dcfl.scores import Scores
from dcfl.system.printable import printable

MOST_NAMES, LONGEST_NAME = 12, 8  # class names that fit below an axis, and their characters
PERCENT = {"low": 0, "high": 100}


def confusion_chart(record: EvaluationRecord) -> Chart | None:
    names = record.class_names
    confusion = record.scores.confusion.numpy()
    return charts.matrix(confusion, ("class", names), ("answer", names), "images", "row")


def reliability_chart(scores: Scores) -> Chart:
    confidence, accuracy = (values.tolist() for values in scores.reliability)
    images = scores.confidence[0].tolist()
    filled = [at for at, count in enumerate(images) if count]
    dots = series(
        "answers",
        [confidence[at] for at in filled],
        [accuracy[at] for at in filled],
        0,
        "points",
        notes=[
            f"{plural(round(images[at]), 'image')}\nsure: {number(confidence[at], 1)} %\n"
            f"right: {number(accuracy[at], 1)} %"
            for at in filled
        ],
    )
    line = series("as sure as right", [0, 100], [0, 100], 6, dash=1)
    return charts.plot(
        {"label": "confidence: the probability of the answer (%)", **PERCENT},
        {"label": "right answers (%)", **PERCENT},
        [{"series": [dots, line]}],
    )


def class_chart(rows: Sequence[ClassRow]) -> Chart:
    """Recall and precision of each class, in the order of the rows."""
    names = [printable(row.name, LONGEST_NAME) for row in rows]
    notes = [
        f"{row.name}\n{plural(round(row.images), 'image')}\nrecall {number(row.recall)} %, "
        f"precision {number(row.precision)} %"
        for row in rows
    ]
    places = range(len(rows))
    dots = [
        series("recall", places, [row.recall for row in rows], 0, "points", notes=notes),
        series("precision", places, [row.precision for row in rows], 1, "points", notes=notes),
    ]
    axis = {"label": "class", "low": -0.5, "high": len(rows) - 0.5}
    return charts.plot(
        {**axis, **({"names": names} if len(names) <= MOST_NAMES else {"whole": True})},
        {"label": "%", "low": -3, "high": 103},
        [{"series": dots}],
    )


def clients_chart(clients: Sequence[ClientScore], mean: float) -> Chart:
    """Each client's accuracy, the worst first."""
    ordered = sorted(clients, key=lambda client: client.accuracy)
    named = len(ordered) <= MOST_NAMES
    first = 0 if named else 1  # places of names count from 0
    dots = series(
        "clients",
        range(first, len(ordered) + first),
        [client.accuracy for client in ordered],
        0,
        "points",
        notes=[
            f"{client.name}\n{number(client.accuracy)} % of {plural(client.images, 'image')}"
            for client in ordered
        ],
    )
    edges = {"low": first - 0.5, "high": len(ordered) + first - 0.5}
    line = series("mean", list(edges.values()), [mean, mean], 6, dash=1)
    names = [printable(client.name, LONGEST_NAME) for client in ordered]
    return charts.plot(
        {
            "label": "clients, the worst first",
            **edges,
            **({"names": names} if named else {"whole": True}),
        },
        {"label": "right answers (%)", "low": -3, "high": 103},
        [{"series": [dots, line]}],
    )
