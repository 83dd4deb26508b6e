"""Verbs about a trained model: `predict`, `embed`, `export`, `evaluate`, `analyse`, `attack`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    experiment_of,
    print_json,
    run_own_files,
    which_model,
)
from dcfl.errors import ConfigError, DatasetCorrupt, DCFLError
from dcfl.system.storage import replacing
from dcfl.system.wording import csv_line, printable, say

if TYPE_CHECKING:
    from dcfl.system.json_types import Json
    from dcfl.trained.predict import Prediction, Tally


Layer = Literal["projection", "features"]
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


def embed(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR IMAGE|FOLDER... | [CONFIG.toml] KEY=VALUE...",
            show_default=False,
            help="A run's folder and pictures; or settings that name a data set and a network "
            "with trained weights.",
        ),
    ],
    out: FeatureFile = Path("features.npz"),
    layer: WhichLayer = "projection",
    size: Annotated[
        int, typer.Option(min=0, max=1024, help="Of a data set's images, in pixels; 0: as it is.")
    ] = 0,
    best: Best = False,
    client: ClientNumber = None,
    model_file: ModelFile = None,
) -> None:
    """Write the embeddings of pictures or of a data set, as .npz.

    Those of a data set are computed once, and `data.dataset=npz:FILE` trains on them.
    """
    from dcfl.trained.embed import embed_pictures, require_npz, write_embeddings

    require_npz(out)
    if "=" in what[0] or what[0].endswith(".toml"):
        from dcfl.trained.embed import embed_dataset

        data = embed_dataset(experiment_of(what, None, model_file), size)
        data.save(out)
        parts = f"{len(data.train):,} to train on, {len(data.test):,} to test on"
        print(printable(f"features  {out}: {parts}, {data.channels} numbers each"))
        return
    folder, pictures = Path(what[0]), what[1:]
    which = which_model(folder, best, client)
    embedded = embed_pictures(folder, pictures, layer, which, model_file)
    write_embeddings(out, embedded)
    count, width = embedded.features.shape
    print(printable(f"features  {out}: {count:,} pictures, {width} numbers each"))
    for file, reason in embedded.skipped.items():
        print(printable(f"dcfl: warning: {file}: skipped ({reason})"), file=sys.stderr)
    if embedded.skipped:
        sys.stdout.flush()
        total = count + len(embedded.skipped)
        raise DatasetCorrupt(f"{len(embedded.skipped):,} of {total:,} pictures were skipped")


Format = Literal["onnx", "torchscript", "safetensors"]


def export(
    folder: Folder,
    format: Annotated[Format, typer.Option(help="The kind of file.")],
    best: Best = False,
    client: ClientNumber = None,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Normalisation inside the file: pixels go in, probabilities come out.",
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
    license: Annotated[
        str, typer.Option(metavar="NAME", help="For the card: mit, apache-2.0, ...")
    ] = "unknown",
    model_file: ModelFile = None,
) -> None:
    """A trained model as a file for other programs, compared with the model before it is kept."""
    from dcfl.trained.export import ExportOptions, export_model

    options = ExportOptions(
        format=format,
        which=which_model(folder, best, client),
        prepare=prepare,
        embedding=embedding,
        out=out,
        license=license,
    )
    exported = export_model(folder, options, model_file)
    print(printable(f"model  {exported.path}"))
    print(printable(f"card   {exported.card}"))
    if exported.script is not None:
        print(printable(f"script {exported.script}: labels pictures, without dcfl"))
    print(f"in     {exported.graph.input_words}")
    print(f"out    {', '.join(exported.graph.output_names)}")
    print(f"equal to the model within {exported.difference:.1g} on {exported.compared_on}")


Show = Callable[["Prediction"], None]
LONGEST_LABEL = 20  # characters of a label in the table

Top = Annotated[
    int, typer.Option(min=1, max=1000, metavar="K", help="How many labels for each picture.")
]
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
    """Label pictures; if they are in class folders, also score them.

    A model of feature vectors labels those in an .npz file. Pictures that cannot be read are named
    and skipped; the exit code is then 2.
    """
    from dcfl.trained import predict as trained

    which = which_model(folder, best, client)
    predictions = trained.predict(folder, pictures, top=top, which=which, model=model_file)
    tally = trained.Tally()
    rows: list[Json] = []
    with _csv_rows(csv_file, top) as write_row:
        for prediction in predictions:
            tally.add(prediction)
            if prediction.skipped:
                line = f"dcfl: warning: {prediction.picture}: skipped ({prediction.skipped})"
                print(printable(line), file=sys.stderr)
            if write_row is not None:
                write_row(prediction)
            if as_json:
                rows.append(prediction.to_json())
            elif write_row is None:
                _print_row(prediction)
    if as_json:
        print_json({"pictures": rows, "totals": {**vars(tally), "accuracy": tally.accuracy}})
    else:
        _print_totals(tally, csv_file)
    if tally.skipped:
        sys.stdout.flush()
        raise DatasetCorrupt(
            f"{tally.skipped:,} of {tally.pictures:,} pictures could not be read and were skipped"
        )


def _print_totals(tally: Tally, csv_file: Path | None) -> None:
    if csv_file is not None:
        print(printable(f"rows  {csv_file}"))
    if tally.accuracy is not None:
        counts = f"{tally.right:,} of {tally.labelled:,} whose class is known"
        print(f"accuracy  {tally.accuracy:.2f} % ({counts})")
    if tally.trained_on:
        seen = f"{tally.trained_on:,} of these {tally.pictures:,}"
        print(f"It was trained on {seen}, so this is no test: `dcfl evaluate` makes one.")
    elif tally.unknown and tally.accuracy is not None:
        print("Whether it was trained on them is not known here. If it was, this is no test.")


def _print_row(prediction: Prediction) -> None:
    """As it comes: a table would wait for its last row."""
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
        numbers = ["", *range(2, top + 1)]
        ranked = [f"{what}{number}" for number in numbers for what in ("label", "probability")]
        stream.write(csv_line(["picture", "truth", "skipped", *ranked]))

        def write_row(prediction: Prediction) -> None:
            shares = [[label, f"{p:.6f}"] for label, p in prediction.ranking]
            row = [str(prediction.picture), prediction.truth or "", prediction.skipped]
            stream.write(csv_line([*row, *(cell for pair in shares for cell in pair)]))

        yield write_row


Data = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIR_B] [DATA]",
        show_default=False,
        help="A second run, to be compared with the first image by image. A folder of class "
        "folders, an .npz file, or a data set as in data.dataset; if not given, the images that "
        "the run was scored on.",
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
        max=10_000,
        show_default=False,
        help="Also score each client after N epochs of training on its own images.",
    ),
]


Parts = Annotated[
    str | None,
    typer.Option(
        "--parts",
        metavar="A,B",
        show_default=False,
        help="Fine-tune these parts of the model, frozen ones too, such as classifier; or all.",
    ),
]


Untouched = Annotated[
    bool, typer.Option("--test", help="Of a run with data.holdout: score its own test images.")
]


def evaluate(
    folder: Folder,
    data: Data = None,
    best: Best = False,
    test: Untouched = False,
    client: ClientNumber = None,
    clients: Clients = False,
    fine_tune: FineTune = 0,
    parts: Parts = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """Score a model: accuracy, F1, AUC, calibration, each client.

    Written to evaluation.json in the run's folder and shown in its report. Of two runs: the
    difference of their models on the same images, with a paired test; with --client K, what each
    gives that client, on its own images.
    """
    from dcfl.cli.tables import print_evaluation, print_two_models
    from dcfl.report import write_report
    from dcfl.runs.evaluations import write_evaluation
    from dcfl.trained.evaluate import compare_models, evaluation_of, untouched

    if test and (data or clients or fine_tune):
        raise ConfigError("--test scores one run on its own test images, without clients")
    others = data or []
    source = others[-1] if others and not _is_run(others[-1]) else None
    runs = [folder, *map(Path, others[: len(others) - (source is not None)])]
    if len(runs) > 2 or not all(map(_is_run, runs[1:])):
        raise ConfigError("evaluate takes one run or two, and one data set after them")
    if len(runs) == 2:
        if clients or fine_tune:
            raise ConfigError("of two runs, two models are compared: --clients is of one")
        for run in runs if client is None else ():
            which_model(run, best)
        found = compare_models(runs, source, model_file, client, best)
        if as_json:
            records = {str(run): one.to_json() for run, one in zip(runs, found[:2], strict=True)}
            print_json({"runs": records, "paired": asdict(found.paired)})
        else:
            print_two_models([str(run) for run in runs], found)
        return
    which = which_model(folder, best, client)
    tuned = [] if parts is None else parts.split(",")
    if tuned and not fine_tune:
        raise ConfigError("--parts are of --fine-tune: say for how many epochs")
    record = (
        untouched(folder, which, model_file)
        if test
        else evaluation_of(folder, source, which, clients, fine_tune, model_file, tuned)
    )
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


def _is_run(place: str | Path) -> bool:
    return (Path(place) / "config.toml").is_file()


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


PictureLayout = Annotated[
    Literal["pca", "tsne", "umap"],
    typer.Option("--layout", help="The picture of the embeddings: principal directions, or t-SNE."),
]


def analyse(
    folders: Folders,
    out: AnalysisFolder = None,
    figures: FiguresFolder = None,
    clients: DriftClients = 10,
    drift: WithDrift = True,
    layout: PictureLayout = "pca",
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """Look inside finished runs: cosines, drift, dimensions in use.

    Several runs are shown side by side.
    """
    from dcfl.analysis.analysis_page import write_analysis
    from dcfl.analysis.findings import analyse_runs
    from dcfl.cli.tables import print_analyses
    from dcfl.report import find_runs

    def tell(text: str) -> None:
        say(printable(f"analyse  {text}"))

    run_own_files(method_file, model_file)
    if out is None:
        out = folders[0] / "analysis" if len(folders) == 1 else Path("analysis")
    runs = {run.folder.resolve(): run for folder in folders for run in find_runs(folder)}
    analyses = analyse_runs(list(runs.values()), clients, drift, tell, layout)
    page = write_analysis(analyses, out, figures)
    if as_json:
        print_json({"runs": [analysis.as_json() for analysis in analyses], "page": str(page)})
    else:
        print_analyses(analyses)
        print(printable(f"page  {page}"))


AttackFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where to write the page and the numbers; if not given, attack/ in the run's folder.",
    ),
]


def attack(
    folder: Folder,
    client: Annotated[
        int, typer.Option(min=0, metavar="K", help="Whose images to rebuild, counted from 0.")
    ] = 0,
    images: Annotated[
        int, typer.Option(min=1, max=16, metavar="N", help="How many of them share a gradient.")
    ] = 1,
    steps: Annotated[
        int, typer.Option(min=1, max=10**5, metavar="N", help="How long to look for them.")
    ] = 1000,
    shadows: Annotated[
        int,
        typer.Option(
            min=0,
            max=256,
            metavar="N",
            help="Models to train on halves of the images, to tell who was in the training set by "
            "LiRA: 4 to 8. Each takes about half of the run's passes over all images. 0: by a "
            "threshold on the loss alone.",
        ),
    ] = 0,
    out: AttackFolder = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """Find out what a finished run gives away.

    Images from a gradient, what prototypes tell, and who was in the training set.
    """
    from dcfl.analysis.leaks import attack_run
    from dcfl.analysis.leaks_page import headline, write_leaks
    from dcfl.runs.folder import RecordedRun

    def tell(text: str) -> None:
        say(printable(f"attack  {text}"))

    run_own_files(method_file, model_file)
    leaks = attack_run(RecordedRun.open(folder), client, images, steps, shadows, tell)
    page = write_leaks(leaks, out or folder / "attack")
    if as_json:
        print_json({**leaks.as_json(), "page": str(page)})
        return
    print(headline(leaks))
    for attack in leaks.membership:
        found = 100 * attack.found
        print(f"{attack.attack}: AUC {attack.auc:.3f}, {found:.1f} % found at 1 % false alarms")
    for one in leaks.rebuilt:
        mean = sum(one.psnr) / len(one.psnr)
        print(f"{mean:5.1f} dB  {one.protection}: {one.seen}, seen by {one.reader}")
    print(printable(f"page  {page}"))
