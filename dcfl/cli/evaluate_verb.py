"""`dcfl evaluate`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    Best,
    ClientNumber,
    Folder,
    ModelFile,
    print_json,
    run_own_files,
    which_model,
)
from dcfl.errors import DCFLError
from dcfl.system.wording import printable

if TYPE_CHECKING:
    from rich.table import Table

    from dcfl.runs.evaluations import EvaluationRecord

MOST_CLASSES = 20  # rows of a table; of more classes the worst are shown
WORST = 5  # clients that are named
LONGEST_NAME = 24  # characters

Data = Annotated[
    str | None,
    typer.Argument(
        metavar="[DATA]",
        show_default=False,
        help="A folder of class folders, an .npz file, or a data set as in data.dataset; if not "
        "given, the images that the run was scored on.",
    ),
]
Clients = Annotated[
    bool, typer.Option("--clients", help="Also score each client or site on its own images.")
]


FineTune = Annotated[
    int,
    typer.Option(
        "--fine-tune",
        metavar="N",
        min=0,
        show_default=False,
        help="Also score each client after N epochs of training on its own images.",
    ),
]


def evaluate(
    folder: Folder,
    data: Data = None,
    best: Best = False,
    client: ClientNumber = None,
    clients: Clients = False,
    fine_tune: FineTune = 0,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """A trained model on a test set: accuracy, F1, AUC, calibration, each class, each client.

    Written to evaluation.json in the run's folder and shown in its report.
    """
    from dcfl.report import write_report
    from dcfl.runs.evaluations import write_evaluation
    from dcfl.trained.evaluate import evaluation_of

    run_own_files(None, model_file)
    record = evaluation_of(folder, data, which_model(folder, best, client), clients, fine_tune)
    path = write_evaluation(folder, record)
    if as_json:
        print_json(record.to_json())
    else:
        _print_evaluation(record)
        print(printable(f"numbers  {path}"))
    try:
        report = write_report(folder)
    except DCFLError as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=1)
        return
    if not as_json:
        print(printable(f"report   {report}"))


def _print_evaluation(record: EvaluationRecord) -> None:
    from dcfl.cli.terminal import stdout
    from dcfl.report.evaluation_section import some_names

    model = record.model if isinstance(record.which, int) else f"the {record.model}"
    print(printable(f"{model} on {record.images:,.0f} {record.images_words}"))
    for note in record.site_notes:
        print(printable(note))
    print()
    for name, value in _numbers(record):
        print(f"{name:19}{value}")
    print()
    stdout.print(class_table(record))
    if record.absent:
        print(f"\nwithout images, and in no mean: {some_names(record.absent)}")
    if len(record.clients) > 1:
        print()
        stdout.print(client_table(record))
    print()


def _numbers(record: EvaluationRecord) -> Iterator[tuple[str, str]]:
    from dcfl.report.text import number

    scores = record.scores
    yield "accuracy", f"{number(scores.accuracy)} %"
    yield "balanced accuracy", f"{number(scores.balanced_accuracy)} %"
    yield "macro F1", f"{number(scores.macro_f1)} %"
    error = f"binned, at most {number(scores.mean_auc_error, 4)} off"
    yield "AUC", f"{number(scores.mean_auc, 4)} (one class against the rest; {error})"
    yield "calibration error", f"{number(scores.calibration_error)} %"
    yield "cross-entropy", number(scores.loss, 4)
    mixes = f"{record.kind} in its own mix of classes"
    one = len(record.clients) == 1
    for name, found, kind in (
        (record.clients[0].name if one else "clients", record.fairness, record.clients_kind),
        ("", record.own_mix_fairness, mixes),
        ("fine-tuned", record.fine_tuned_fairness, mixes),
    ):
        if found.mean is not None and found.worst_tenth is not None:
            yield name, _fairness(found.mean, found.worst_tenth, len(record.clients), kind)


def _fairness(mean: float, worst: float, clients: int, kind: str) -> str:
    from dcfl.report.text import number
    from dcfl.runs.evaluations import worst_words

    if clients == 1:
        return f"{number(mean)} % on {kind}"
    worst_ones = worst_words(clients)
    return f"{number(mean)} % on average, {number(worst)} % the {worst_ones}; each on {kind}"


def class_table(record: EvaluationRecord) -> Table:
    """A row per class, or the classes with the lowest recall where there are many."""
    from dcfl.cli.terminal import new_table
    from dcfl.report.text import number

    rows, title = record.class_rows, None
    if len(rows) > MOST_CLASSES:
        present = [row for row in rows if row.images]
        rows = sorted(present, key=lambda row: row.recall)[:MOST_CLASSES]
        title = f"the {len(rows)} classes of {len(record.class_names)} with the lowest recall"
    table = new_table("class", "images", "recall %", "precision %", "F1 %", "AUC", title=title)
    for row in rows:
        percentages = [number(value) for value in (row.recall, row.precision, row.f1)]
        name = printable(row.name, LONGEST_NAME)
        table.add_row(name, number(row.images, 0), *percentages, number(row.auc, 4))
    return table


def client_table(record: EvaluationRecord) -> Table:
    """All of them, or the worst."""
    from dcfl.cli.terminal import new_table
    from dcfl.report.text import number

    several = len(record.clients) > WORST
    title = f"the worst {WORST} of {len(record.clients)} clients" if several else None
    table = new_table("client", "images", "accuracy %", title=title)
    for client in record.some_clients(WORST):
        name = printable(client.name, LONGEST_NAME)
        table.add_row(name, f"{client.images:,}", number(client.accuracy))
    return table
