"""What `dcfl evaluate` found, as a section of a run page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dcfl.report import charts, text
from dcfl.report.charts import LONGEST_CLASS, MOST_CELLS, Chart, series
from dcfl.report.document import Picture, Section, Table
from dcfl.report.text import number, plural
from dcfl.runs.evaluations import EvaluationRecord, read_evaluations, worst_words
from dcfl.runs.folder import RecordedRun
from dcfl.scores import Scores
from dcfl.system.wording import printable, some


def reliability_chart(scores: Scores) -> Chart:
    filled = scores.confidence[0] > 0
    images, sure, right = (
        one[filled].tolist() for one in (scores.confidence[0], *scores.reliability)
    )
    notes = [
        f"{plural(round(n), 'image')}\nsure: {number(x, 1)} %\nright: {number(y, 1)} %"
        for n, x, y in zip(images, sure, right, strict=True)
    ]
    dots = series("answers", sure, right, 0, "points", notes=notes)
    line = series("as sure as right", [0, 100], [0, 100], 6, dash=1)
    return charts.plot(
        {"label": "confidence: the probability of the answer (%)", "low": 0, "high": 100},
        {"label": "right answers (%)", "low": 0, "high": 100},
        [{"series": [dots, line]}],
    )


SHOWN = 3  # evaluations with pictures
WORST = 5  # clients that are named
MOST_NAMED = 10  # classes without images
COLUMNS = (
    *("Model and images", "Images", "Accuracy, %", "Balanced, %", "Macro F1, %"),
    "Most frequent, %",
    *("AUC", "Calibration error, %", "Cross-entropy"),
)
NOTE = (
    "Balanced accuracy is the mean recall of the classes, macro F1 the mean of their F1. AUC is "
    "the mean over the classes, each against the rest: 0.5 is chance. The calibration error says "
    "how far the model’s confidence is from its accuracy. Classes without images are in no mean. "
    "Most frequent: always naming the class with the most images is right so often."
)


Titled = tuple[str, EvaluationRecord]


def evaluation_section(
    runs: Sequence[RecordedRun], headings: Mapping[RecordedRun, str]
) -> Section | None:
    """None if no run has been evaluated."""
    # Of a comparison's record and the user's own of the same model and images, the latter.
    records = {
        (run, record.file_name): record
        for run in runs
        for record in read_evaluations(run.folder)
        if _is_of_present_model(record, run)
    }
    found = [(_title(one, headings[run]), one) for (run, _), one in records.items()]
    if not found:
        return None
    tables = [Table(COLUMNS, [_row(*one) for one in found], note=NOTE)]
    shown = [(record, title if len(found) > 1 else "") for title, record in found[:SHOWN]]
    tables += [client_table(*one) for one in shown if one[0].clients]
    pictures = [picture for one in shown for picture in _pictures(*one)]
    return Section("Evaluation", [*_paragraphs(found)], tables, pictures)


def _is_of_present_model(record: EvaluationRecord, run: RecordedRun) -> bool:
    """A run that was made longer has other models than those evaluated before."""
    if run.summary is None or isinstance(record.which, int):  # a client's: its hash is not there
        return True
    now, then = run.summary.hash_of(record.which), record.weights_sha256
    return now == then or "" in (now, then)


def _title(record: EvaluationRecord, run: str) -> str:
    images = text.without_folders(record.images_words)
    return ", ".join(filter(None, [run, record.model, images]))


def _row(title: str, record: EvaluationRecord) -> list[str]:
    scores = record.scores
    shares = (
        scores.accuracy,
        scores.balanced_accuracy,
        scores.macro_f1,
        record.most_frequent.share,
    )
    auc, loss = number(scores.mean_auc, 4), number(scores.loss, 4)
    error = number(scores.calibration_error)
    return [title, number(record.images, 0), *map(number, shares), auc, error, loss]


def _paragraphs(found: Sequence[Titled]) -> Iterator[str]:
    for title, one in found:
        if one.interval_words:
            yield f"{title}: accuracy {number(one.scores.accuracy)} %, {one.interval_words}."
    for title, one in found:
        if one.absent:
            yield f"{title}: no images of {some(one.absent, MOST_NAMED, LONGEST_CLASS)}."
    for title, one in found:
        yield from (f"{title}: {printable(note)}." for note in one.notes)
    if len(found) > SHOWN:
        yield f"Pictures of the first {SHOWN} are shown."


def client_table(record: EvaluationRecord, title: str = "", means: bool = True) -> Table:
    rows = [
        [
            printable(client.name),
            f"{client.images:,}" if client.images else "",
            text.number(client.accuracy),
            "{:.2f} to {:.2f}".format(*client.interval) if client.interval else "",
        ]
        for client in record.some_clients(WORST)
    ]
    several = len(record.clients) > WORST
    columns = ("Client", "Images", "Accuracy, %", "95 % interval")
    filled = [n for n in range(len(columns)) if n == 0 or any(row[n] for row in rows)]

    def table(title: str) -> Table:
        """Without what no client has."""
        kept = [[row[n] for n in filled] for row in rows]
        return Table([columns[n] for n in filled], kept, title)

    which = f"the worst {WORST} of {len(record.clients):,} clients" if several else "the clients"
    if not means:
        return table(which if several else "")
    mean, tenth = record.fairness
    if len(record.clients) > 1 and mean is not None and tenth is not None:
        rows.append(["mean of all", "", text.number(mean), ""])
        worst = worst_words(len(record.clients))
        few = worst == "worst"
        rows.append(["the worst" if few else f"mean of the {worst}", "", text.number(tenth), ""])
    tuned, _ = record.fine_tuned_fairness
    if tuned is not None:
        words = text.plural(record.fine_tuned, "epoch")
        row = f"mean after {words} of training on its images"
        rows.append([row, "", text.number(tuned), ""])
    return table(_headed(f"{which}, each on {record.clients_kind}", title))


def _pictures(record: EvaluationRecord, title: str) -> list[Picture]:
    scores, names = record.scores, record.class_names
    confusion = scores.confusion.numpy()
    return [
        Picture(
            _headed("which class is taken for which", title),
            f"Confusion matrix of {scores.classes:,} classes: {text.number(scores.accuracy)} % lie "
            f"on the diagonal.",
            "Each row is a class, each column an answer: the deeper, the greater the share of the "
            f"class’s images. The diagonal is right."
            f"{' Numbers are of images as they are weighted.' if record.weighted else ''}",
            charts.matrix(confusion, ("class", names), ("answer", names), "images", "row")
            if confusion.size <= MOST_CELLS
            else None,
        ),
        Picture(
            _headed("is it as right as it is sure?", title),
            "Reliability diagram: accuracy against confidence; the expected calibration error is "
            f"{text.number(scores.calibration_error)} %.",
            "Each dot is the images whose answer had such a probability, and how many of those "
            "answers were right. On the dashed line the model is as sure as it is right; below it, "
            f"too sure. On average it is {text.number(scores.calibration_error)} points off (the "
            "expected calibration error).",
            reliability_chart(scores),
        ),
    ]


def _headed(words: str, title: str) -> str:
    return f"{title}: {words}" if title else f"{words[0].upper()}{words[1:]}"
