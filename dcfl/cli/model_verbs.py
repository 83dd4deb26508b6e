"""Verbs about a trained model: `dcfl predict`, `embed`, `neighbours`, `export`, `evaluate` and
`analyse`."""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import (
    AsJSON,
    Best,
    ClientNumber,
    FiguresFolder,
    Folder,
    Folders,
    MethodFile,
    ModelFile,
    PictureFiles,
    print_json,
    run_own_files,
    which_model,
)
from dcfl.errors import DatasetCorrupt, DCFLError
from dcfl.system.storage import replacing, strict_json
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained.exported_graph import ExportedGraph
    from dcfl.trained.predict import Prediction, Tally


class Layer(StrEnum):
    projection = "projection"
    features = "features"


WhichLayer = Annotated[
    Layer,
    typer.Option(
        help="What the method's term on embeddings sees, or the features that the classifier sees; "
        "they differ in models with a side head."
    ),
]
FeatureFile = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE.npz", help="The file to write.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The page to write; if not given, neighbours.html in the run's folder."
    ),
]


def embed(
    folder: Folder,
    pictures: PictureFiles,
    out: FeatureFile = Path("features.npz"),
    layer: WhichLayer = Layer.projection,
    best: Best = False,
    client: ClientNumber = None,
    model_file: ModelFile = None,
) -> None:
    """The embeddings of pictures, with their file names and labels, in one .npz file."""
    from dcfl.trained.embed import embed_pictures, require_npz, write_embeddings

    require_npz(out)
    run_own_files(None, model_file)
    embedded = embed_pictures(folder, pictures, layer.value, which_model(folder, best, client))
    write_embeddings(out, embedded)
    count, width = embedded.features.shape
    print(printable(f"features  {out}: {count:,} pictures, {width} numbers each"))
    for file, reason in embedded.skipped.items():
        print(printable(f"dcfl: warning: {file}: skipped ({reason})"), file=sys.stderr)
    if embedded.skipped:
        sys.stdout.flush()
        total = count + len(embedded.skipped)
        raise DatasetCorrupt(f"{len(embedded.skipped):,} of {total:,} pictures were skipped")


def neighbours(
    folder: Folder,
    out: Page = None,
    images: Annotated[
        int, typer.Option(min=1, max=200, metavar="N", help="How many test images to show.")
    ] = 10,
    each: Annotated[
        int, typer.Option(min=1, max=50, metavar="K", help="How many neighbours of each.")
    ] = 7,
    layer: WhichLayer = Layer.projection,
    best: Best = False,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
) -> None:
    """A page that shows, for some test images, the training images most similar to them."""
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained.neighbours import find_neighbours, write_neighbours
    from dcfl.trained.subject import open_subject

    run_own_files(method_file, model_file)
    which = which_model(folder, best)
    subject = open_subject(RecordedRun.open(folder), which)
    found = find_neighbours(subject, images, each, layer.value)
    page = write_neighbours(
        subject, found, layer.value, str(which), out or folder / "neighbours.html"
    )
    print(f"nearest neighbour of the right class  {found.agreement:.1f} %")
    print(printable(f"page  {page}"))


class Format(StrEnum):
    onnx = "onnx"
    torchscript = "torchscript"
    torch_export = "torch-export"
    safetensors = "safetensors"


def export(
    folder: Folder,
    format: Annotated[Format, typer.Option(help="The kind of file.")],
    best: Best = False,
    client: ClientNumber = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Resizing and normalisation inside the file: pixels go in, probabilities come "
            "out.",
        ),
    ] = False,
    embedding: Annotated[
        Layer | None,
        typer.Option(
            show_default=False,
            help="An embedding comes out too: what the classifier sees, or the side head's output. "
            "Without this, a side head is left out.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write; README.md, its card, is written beside it."
        ),
    ] = None,
    hub_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a folder as hubs of models want it: the file, config.json, README.md.",
        ),
    ] = None,
    license: Annotated[
        str, typer.Option(metavar="NAME", help="For the card: mit, apache-2.0, ...")
    ] = "unknown",
    model_file: ModelFile = None,
) -> None:
    """A trained model as a file for other programs, compared with the model before it is kept."""
    from dcfl.trained.export import ExportOptions, export_model

    options = ExportOptions(
        format=format.value,
        which=which_model(folder, best, client),
        prepare=prepare,
        embedding=embedding.value if embedding else None,
        out=out,
        hub_folder=hub_folder,
        license=license,
    )
    run_own_files(None, model_file)
    exported = export_model(folder, options)
    print(printable(f"model  {exported.path}"))
    print(printable(f"card   {exported.card}"))
    print(f"in     {_input_line(exported.graph)}")
    print(f"out    {', '.join(exported.graph.output_names)}")
    print(f"equal to the model within {exported.difference:.1g} on {exported.compared_on}")


def _input_line(graph: ExportedGraph) -> str:
    channels, size = graph.channels, graph.size
    if graph.vectors:
        return f"{graph.input_name}, float32 [batch, {channels}]"
    if not graph.wiring.prepare:
        return f"{graph.input_name}, float32 [batch, {channels}, {size}, {size}], normalised"
    if graph.wiring.fit:
        return f"{graph.input_name}, uint8 [batch, height, width, {channels}], of any size"
    exact = f"uint8 [batch, {size}, {size}, {channels}]"
    return f"{graph.input_name}, {exact}, of this very size: resizing is not in the file"


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
    from dcfl.trained.subject import trained_on_some

    if csv_file is not None:
        print(printable(f"rows  {csv_file}"))
    if tally.accuracy is not None:
        counts = f"{tally.right:,} of {tally.labelled:,} pictures in class folders"
        print(f"accuracy  {tally.accuracy:.2f} % ({counts})")
        if trained_on_some(run, pictures):
            print("It was trained on some of them, so this is no test: `dcfl evaluate` makes one.")


def _print_row(prediction: Prediction) -> None:
    """Print a prediction as it comes: a table that waits for its last row would hold them all."""
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
    from dcfl.cli.tables import print_evaluation
    from dcfl.report import write_report
    from dcfl.runs.evaluations import write_evaluation
    from dcfl.trained.evaluate import evaluation_of

    run_own_files(None, model_file)
    record = evaluation_of(folder, data, which_model(folder, best, client), clients, fine_tune)
    path = write_evaluation(folder, record)
    if as_json:
        print_json(record.to_json())
    else:
        print_evaluation(record)
        print(printable(f"numbers  {path}"))
    try:
        report = write_report(folder)
    except DCFLError as error:
        warnings.warn(f"the report was not written: {error}", stacklevel=1)
        return
    if not as_json:
        print(printable(f"report   {report}"))


AnalysisFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where to write the page and the numbers; if not given, analysis/ in the run's "
        "folder, or here for several runs.",
    ),
]
DriftClients = Annotated[
    int, typer.Option(min=1, metavar="N", help="How many clients train a round for the drift.")
]
WithDrift = Annotated[
    bool, typer.Option("--drift/--no-drift", help="Let clients train a round, or not.")
]
AlignmentAlpha = Annotated[
    float,
    typer.Option("--alignment-alpha", metavar="ALPHA", help="Alignment: mean |u - v|^ALPHA."),
]
UniformityT = Annotated[
    float,
    typer.Option("--uniformity-t", metavar="T", help="Uniformity: log mean e^(-T |u - v|^2)."),
]


def analyse(
    folders: Folders,
    out: AnalysisFolder = None,
    figures: FiguresFolder = None,
    clients: DriftClients = 10,
    drift: WithDrift = True,
    alpha: AlignmentAlpha = 2.0,
    t: UniformityT = 2.0,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """What finished runs have learned: cosines, alignment, dimensions in use, drift, a picture.

    Several runs are shown side by side.
    """
    from dcfl.analysis.analysis_page import write_analysis
    from dcfl.analysis.findings import analyse_runs
    from dcfl.analysis.similarity import Exponents
    from dcfl.cli.tables import print_analyses
    from dcfl.report import find_runs
    from dcfl.runs.folder import require_own

    def tell(text: str) -> None:
        say(printable(f"analyse  {text}"))

    exponents = Exponents(alpha, t)
    run_own_files(method_file, model_file)
    if out is None:
        out = folders[0] / "analysis" if len(folders) == 1 else Path("analysis")
        require_own(out)
    runs = {run.folder.resolve(): run for folder in folders for run in find_runs(folder)}
    analyses = analyse_runs(list(runs.values()), clients, drift, tell, exponents)
    page = write_analysis(analyses, out, figures)
    if as_json:
        print_json({"runs": [analysis.as_json() for analysis in analyses], "page": str(page)})
    else:
        print_analyses(analyses)
        print(printable(f"page  {page}"))
