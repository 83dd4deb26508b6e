"""The command line: each verb reads its words, calls the library and shows what came out.

torch and everything that needs it are imported inside the verbs, so that `dcfl --help` is quick.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer

from dcfl.cli.analyse_verb import analyse
from dcfl.cli.flower_verbs import flower
from dcfl.cli.options import (
    AsJSON,
    MethodFile,
    Out,
    Words,
    experiment_of,
    print_json,
    whole_numbers,
)
from dcfl.cli.reproduce_verb import reproduce
from dcfl.cli.theory_verb import theory
from dcfl.errors import ConfigError, DCFLError, RunFolderError, TooFewClients
from dcfl.system.printable import printable, printable_lines
from dcfl.system.processes import end_when_terminated, stopped_by_signals
from dcfl.system.streams import forgiving_streams

if TYPE_CHECKING:
    from dcfl.runs.run import Run

EXTRA = ("flwr", "ray", "httpx", "cryptography")  # what the extra brings

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests too
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning on non-IID data: DCFL and the methods it is compared with.",
)


def _train(label: str, run: Run) -> None:
    from dcfl.cli.terminal import progress

    total = run.experiment.federation.rounds
    with progress(label, total) as show, stopped_by_signals(run.stop):
        for row in run.rounds():
            show(row)


def _finished(run: Run, as_json: bool) -> None:
    """Say how a run has ended."""
    from dcfl.cli.terminal import run_result

    result = run.result()
    if as_json:
        print_json({**result.summary.to_json(), "folder": str(run.folder)})
    else:
        print(run_result(result.summary, result.rounds, run.workers, run.folder))


@app.command("run")
def run_command(
    words: Words = None,
    method_file: MethodFile = None,
    out: Out = None,
    as_json: AsJSON = False,
) -> None:
    """Train one federation. Without a config: DCFL-PW on the built-in digits."""
    from dcfl.runs.run import Run

    experiment = experiment_of(words, method_file, out)
    run = Run(experiment)
    _train(experiment.method.name, run)
    _finished(run, as_json)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Go on although this differs from how it was begun."),
    ] = None,
    method_file: MethodFile = None,
    as_json: AsJSON = False,
) -> None:
    """Go on with a run that did not end: the result is that of a run that was never stopped."""
    from dcfl.cli.options import register
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.run import Run

    if method_file:
        register(method_file)
    recorded = RecordedRun.open(folder)
    if recorded.summary:
        with suppress(RunFolderError):
            Run.resume(folder)  # it tidies up, and says what we say
        if as_json:
            print_json({**recorded.summary.to_json(), "folder": str(folder)})
        else:
            print(f"{printable(folder)}: the run has ended, there is nothing to resume")
        return
    if recorded.config.get("engine", {}).get("name") == "flower":
        raise ConfigError(f"{folder} trains at SuperNodes: `dcfl flower run --resume {folder}`")
    run = Run.resume(folder, allow=allow or ())
    _train(run.experiment.method.name, run)
    _finished(run, as_json)


@app.command()
def settings(words: Words = None, method_file: MethodFile = None) -> None:
    """What a run would do: every table and key with its value, as a config file."""
    from dcfl.config import as_tables, to_toml

    print(printable_lines(to_toml(as_tables(experiment_of(words, method_file)))))


@app.command()
def compare(
    words: Words = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Which methods.")
    ] = "fedavg,dcfl-sw,dcfl-pw",
    seeds: Annotated[
        str, typer.Option(metavar="0,1,2", help="One run of each method per seed.")
    ] = "",
    own_mixes: Annotated[
        bool,
        typer.Option("--own-mixes", help="MAX and EMA on the clients' own mixes of classes."),
    ] = False,
    method_file: MethodFile = None,
    out: Out = None,
    as_json: AsJSON = False,
) -> None:
    """Several methods, for each seed on the same split, with the same client schedule and initial
    weights.

    Another seed is another split too; data.seed=0 keeps one split for all of them.
    """
    from dcfl.cli.terminal import comparison_table, stdout
    from dcfl.runs import comparison

    experiment = experiment_of(words, method_file, out)
    compared = comparison.compare(
        experiment,
        methods=[name.strip() for name in methods.split(",")],
        seeds=whole_numbers(seeds) if seeds else (),
        train=_train,
    )
    for name, error in compared.failures.items():
        print(printable(f"dcfl: {name}: {error}"), file=sys.stderr)
    if as_json:
        rows = [group.as_json(compared.groups[0]) for group in compared.groups]
        print_json({"methods": rows, "folder": str(compared.folder)})
    else:
        stdout.print(comparison_table(compared.groups, own_mixes))
        print(printable(f"report  {compared.report}"))
    if compared.failures:
        raise typer.Exit(TooFewClients.exit_code)


@app.command("methods")
def methods_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False)] = None,
    as_json: AsJSON = False,
) -> None:
    """What each method optimises, its fields and defaults, what a step costs and what it sends."""
    from dcfl.cli.terminal import method_card
    from dcfl.config import describe_method, method_named
    from dcfl.methods import METHODS

    chosen = [method_named(name)] if name else list(METHODS.values())
    descriptions = [describe_method(method) for method in chosen]
    if as_json:
        print_json(descriptions)
        return
    print("\n\n".join(method_card(description) for description in descriptions))


@app.command()
def check(
    method: Annotated[str, typer.Argument(metavar="NAME|FILE.py", show_default=False)],
    as_json: AsJSON = False,
) -> None:
    """Does a method keep its promises? Yours too, by the path of its file."""
    from dcfl.config import method_named
    from dcfl.methods.loading import load_methods
    from dcfl.testing.contract import check_method

    path = Path(method)
    chosen = load_methods(path) if path.suffix == ".py" else {method: method_named(method)}
    verdicts = {name: check_method(one) for name, one in chosen.items()}
    if as_json:
        print_json({name: [asdict(v) for v in found] for name, found in verdicts.items()})
    else:
        for name, found in verdicts.items():
            print(name)
            for verdict in found:
                detail = f": {verdict.detail}" if verdict.detail else ""
                print(printable(f"  {'✓' if verdict.holds else '✗'} {verdict.property}{detail}"))
    if not all(verdict.holds for found in verdicts.values() for verdict in found):
        raise typer.Exit(1)


new = typer.Typer(help="Start something of your own.", no_args_is_help=True)
app.add_typer(new, name="new")


@new.command("method")
def new_method_command(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Write a small method that works, and its test, into this folder."""
    from dcfl.cli.new_method import new_method

    method, test = new_method(name, Path())
    print(
        f"wrote  {method} and {test}\n"
        f"check  dcfl check {method}\n"
        f"run    dcfl run --method-file {method}"
    )


@app.command("partition")
def partition_command(
    words: Words = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it (.svg, .png or .pdf).")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Who would own what: samples per client and class."""
    from dcfl.cli.terminal import partition_table, stdout
    from dcfl.data import load_dataset

    settings = experiment_of(words).seeded.data
    dataset = load_dataset(settings)
    partition = settings.split(dataset)
    counts = partition.counts(dataset.train.labels.numpy(), dataset.classes)
    if picture is not None:
        _draw_partition(counts, dataset.class_names, picture)
    if as_json:
        print_json(
            {
                "dataset": dataset.name,
                "class_names": dataset.class_names,
                "counts": counts.tolist(),
                "sha256": partition.sha256,
            }
        )
        return
    stdout.print(partition_table(counts, dataset.class_names, dataset.site_names))
    shape = f"{settings.partition}, alpha {settings.alpha:g}, seed {settings.seed}"
    if dataset.partition is not None:
        shape = "as it came"
    print(printable(f"{dataset.name}, {shape}, SHA-256 {partition.sha256[:16]}"))
    if picture is not None:
        print(printable(f"picture  {picture}"))


def _draw_partition(counts: Any, class_names: Sequence[str], picture: Path) -> None:
    from dcfl.report.plots import partition_figure

    if picture.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--picture {picture}: the name must end in .svg, .png or .pdf")
    if not picture.parent.is_dir():
        raise ConfigError(f"--picture {picture}: there is no folder {picture.parent}")
    partition_figure(counts, class_names).savefig(picture, dpi=150)


data = typer.Typer(help="Data sets: get them, look at them.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("get")
def data_get(
    name: Annotated[
        str, typer.Argument(metavar="cifar10|cifar100|tiny-imagenet", show_default=False)
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where data sets lie.")] = Path("data"),
) -> None:
    """Download a data set, check it and unpack it. What is there already is left alone."""
    from dcfl.cli.terminal import download_progress
    from dcfl.data.sources import get

    with download_progress(name) as show:
        source = get(name, to, show)
    print(printable(f"{name}: {source} ({to})"))


@data.command("check")
def data_check(words: Words = None, as_json: AsJSON = False) -> None:
    """Read the data set that a config or data.dataset=... names, and say what is in it."""
    from dcfl.cli.terminal import dataset_card
    from dcfl.data.catalogue import load_dataset, summary

    settings = experiment_of(words).seeded.data
    found = summary(load_dataset(settings), settings)
    if as_json:
        print_json(found)
    else:
        print(dataset_card(found))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", show_default=False)],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page to write.")] = None,
) -> None:
    """One self-contained HTML page about one or several runs."""
    from dcfl.report import write_report

    print(printable(f"report  {write_report(*folders, out=out)}"))


@app.command()
def doctor(as_json: AsJSON = False) -> None:
    """Check this machine: versions, devices, the built-in data, one real training step."""
    from dcfl.cli.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(printable(f"{'✓' if finding.fine else '✗'} {finding.what}: {finding.detail}"))
    if not all(finding.fine for finding in findings):
        raise typer.Exit(2)


app.add_typer(flower, name="flower")
app.command("analyse")(analyse)
app.command("reproduce")(reproduce)
app.command("theory")(theory)

bench = typer.Typer(help="Speed: us, the floor and the peers.", invoke_without_command=True)
app.add_typer(bench, name="bench")


@bench.callback()
def bench_jobs(
    context: typer.Context,
    jobs: Annotated[str, typer.Option(metavar="J1,J2,J3", help="Which jobs.")] = "J1,J2,J3",
    repeats: Annotated[int, typer.Option(min=1, help="Everybody in turn, so often.")] = 5,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also pfl and Flower, in environments of their own below DIR; made if missing.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the measurements here.")
    ] = None,
    tiny: Annotated[bool, typer.Option(help="A few seconds of each, to try it out.")] = False,
) -> None:
    """Time J1, J2 and J3: seconds per round, start-up and memory, beside the bare SGD steps."""
    if context.invoked_subcommand:
        return
    from dcfl.studies.bench.harness import time_jobs

    print(time_jobs(jobs, repeats, peers, out, tiny))


@bench.command("methods")
def bench_methods(
    models: Annotated[str, typer.Option(metavar="cnn,resnet18", help="On which models.")] = "cnn",
    methods: Annotated[
        str, typer.Option(metavar="A,B,C", help="Which, beside FedAvg; all if not given.")
    ] = "",
    repeats: Annotated[int, typer.Option(min=1, help="All methods in turn, so often.")] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the measurements here.")
    ] = None,
) -> None:
    """What a round of each method costs beside FedAvg's."""
    from dcfl.studies.bench.harness import time_methods

    print(time_methods(models, methods, repeats, out))


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"dcfl {installed('dcfl')}")
        raise typer.Exit(0)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(printable(f"dcfl: {message}"), file=sys.stderr)
    raise SystemExit(exit_code)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    said = " ".join(str(message).split())
    print(printable(f"dcfl: warning: {said}"), file=sys.stderr)


def main() -> None:
    """The entry point: a mistake of the user's is one line and an exit code, never a traceback."""
    with forgiving_streams():
        _program()


def _program() -> NoReturn:
    words = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(words) < len(sys.argv) - 1
    warnings.showwarning = _warn
    end_when_terminated()
    try:
        code = app(args=words or ["--help"], prog_name="dcfl", standalone_mode=False) or 0
        sys.stdout.flush()
        if code == 130:  # what typer makes of Ctrl-C
            _fail("interrupted", 130)
        raise SystemExit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        raise SystemExit(2) from None
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "dcfl"
        _fail(f"{' '.join(error.format_message().split())} (see {command} --help)", 2)
    except Exception as error:
        if debug:
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRA:
            _fail(f"this needs {error.name}: pip install 'dcfl[flower]'", 2)
        if isinstance(error, DCFLError):
            _fail(str(error), error.exit_code)
        if isinstance(error, OSError):
            _fail(f"{error.filename or 'storage'}: {error.strerror or error}", 3)
        said = " ".join(str(error).split())  # libraries may take several lines for it
        _fail(f"{type(error).__name__}: {said} (a bug of ours; --debug shows where)", 1)
