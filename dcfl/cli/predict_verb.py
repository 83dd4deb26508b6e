"""`dcfl predict`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import (
    AsJSON,
    Best,
    ClientNumber,
    Folder,
    ModelFile,
    PictureFiles,
    run_own_files,
    which_model,
)
from dcfl.errors import DatasetCorrupt
from dcfl.system.printable import printable
from dcfl.system.storage import replacing, strict_json

if TYPE_CHECKING:
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained.predict import Prediction, Tally

Show = Callable[["Prediction"], None]
LONGEST_LABEL = 20  # characters of a label in the table

Top = Annotated[int, typer.Option(min=1, metavar="K", help="How many labels for each picture.")]
CSVFile = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows here instead.")
]


def predict(
    folder: Folder,
    pictures: PictureFiles,
    top: Top = 1,
    best: Best = False,
    client: ClientNumber = None,
    csv_file: CSVFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """The labels of pictures, by a trained model; of class folders also the accuracy.

    Pictures that cannot be read are named and skipped; the exit code is then 2.
    """
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained import predict as trained

    run_own_files(None, model_file)
    predictions = trained.predict(
        folder, pictures, top=top, which=which_model(folder, best, client)
    )
    tally = trained.Tally()
    with _csv_rows(csv_file, top) as write_row, _json_rows(as_json, tally) as print_json_row:
        shows = [show for show in (write_row, print_json_row) if show is not None]
        for prediction in predictions:
            tally.add(prediction)
            if prediction.skipped:
                _tell_skipped(prediction)
            for show in shows or [_print_row]:
                show(prediction)
    if not as_json:
        _print_totals(tally, csv_file, RecordedRun.open(folder), pictures)
    if tally.skipped:
        sys.stdout.flush()
        raise DatasetCorrupt(
            f"{tally.skipped:,} of {tally.pictures:,} pictures could not be read and were skipped"
        )


def _tell_skipped(prediction: Prediction) -> None:
    line = f"dcfl: warning: {prediction.picture}: skipped ({prediction.skipped})"
    print(printable(line), file=sys.stderr)


def _print_totals(
    tally: Tally, csv_file: Path | None, run: RecordedRun, pictures: Iterable[Path]
) -> None:
    from dcfl.trained.own_data import trained_on_some

    if csv_file is not None:
        print(printable(f"rows  {csv_file}"))
    if tally.accuracy is not None:
        counts = f"{tally.right:,} of {tally.labelled:,} pictures in class folders"
        print(f"accuracy  {tally.accuracy:.2f} % ({counts})")
        if trained_on_some(run, pictures):
            print("It was trained on some of them, so this is no test: `dcfl evaluate` makes one.")


def _print_row(prediction: Prediction) -> None:
    """As they come: a table that waits for its last row would hold them all."""
    from rich.cells import set_cell_size

    if prediction.skipped:
        return
    mark = {None: " ", True: "✓", False: "✗"}[prediction.right]
    cells = [
        f"{set_cell_size(printable(label, LONGEST_LABEL), LONGEST_LABEL)} {100 * share:5.1f} %"
        for label, share in prediction.ranking
    ]
    print(f"{mark} {'   '.join(cells)}   {printable(prediction.picture)}")


@contextmanager
def _csv_rows(path: Path | None, top: int) -> Iterator[Show | None]:
    if path is None:
        yield None
        return
    with (
        replacing(path) as partial,
        partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
    ):
        writer = csv.writer(stream, lineterminator="\n")
        numbers = ["", *range(2, top + 1)]
        ranked = [f"{what}{number}" for number in numbers for what in ("label", "probability")]
        writer.writerow(["picture", "truth", "skipped", *ranked])

        def write_row(prediction: Prediction) -> None:
            shares = [[label, f"{p:.6f}"] for label, p in prediction.ranking]
            row = [str(prediction.picture), prediction.truth or "", prediction.skipped]
            writer.writerow([*row, *(cell for pair in shares for cell in pair)])

        yield write_row


@contextmanager
def _json_rows(wanted: bool, tally: Tally) -> Iterator[Show | None]:
    """One JSON object, printed row by row."""
    if not wanted:
        yield None
        return
    print('{"pictures": [', end="")

    def print_row(prediction: Prediction) -> None:
        comma = "\n" if tally.pictures == 1 else ",\n"
        print(f"{comma}  {strict_json(as_json(prediction))}", end="")

    yield print_row
    totals = strict_json({**vars(tally), "accuracy": tally.accuracy})
    print(f'\n], "totals": {totals}}}')


def as_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "picture": str(prediction.picture),
        "label": prediction.label,
        "ranking": [candidate._asdict() for candidate in prediction.ranking],
        "truth": prediction.truth,
        "skipped": prediction.skipped or None,
    }
