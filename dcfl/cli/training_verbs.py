"""`dcfl run`, `dcfl resume` and `dcfl compare`."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    Folder,
    MethodFile,
    ModelFile,
    Out,
    Settings,
    comma_separated,
    experiment_of,
    print_json,
    run_own_files,
    whole_numbers,
)
from dcfl.errors import ConfigError, RunFolderError, TooFewClients
from dcfl.system.printable import printable
from dcfl.system.processes import stopped_by_signals

if TYPE_CHECKING:
    from dcfl.experiment import Experiment
    from dcfl.runs.comparison import Comparison
    from dcfl.runs.rows import Summary
    from dcfl.runs.run import Run

Allowed = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this setting has changed since."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what the run would cost here, from a few steps, and stop."),
]
MethodNames = Annotated[str, typer.Option(metavar="A,B,C", help="Which methods.")]
Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="One run of each method per seed.")]
OwnMixes = Annotated[
    bool, typer.Option("--own-mixes", help="MAX and EMA on the clients' own mixes of classes.")
]


def run(
    settings: Settings = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Train one federation. Without a config: DCFL-PW on the built-in digits."""
    from dcfl.runs.run import Run

    experiment = experiment_of(settings, method_file, model_file, out)
    if dry_run:
        _print_estimate(experiment, as_json)
        return
    new_run = Run(experiment)
    if not as_json:
        _announce(experiment, new_run)
    train(experiment.method.name, new_run)
    _print_result(new_run, as_json)


def _print_estimate(experiment: Experiment, as_json: bool) -> None:
    from dcfl.cli.cards import estimate_card
    from dcfl.runs.estimate import estimate
    from dcfl.runs.prepare import prepare

    prepared = prepare(experiment)
    print("training a few steps to measure what they cost", file=sys.stderr, flush=True)
    found = estimate(prepared)
    if as_json:
        print_json({**found.to_json(), "engine": prepared.workers})
    else:
        print(estimate_card(prepared, found, datetime.now()))


def _announce(asked: Experiment, run: Run) -> None:
    """Say what was left to the data, and what trains where; Flower decides the latter itself."""
    from dcfl.cli.first_line import chosen_by_data, first_line

    if chosen := chosen_by_data(asked, run.prepared):
        print(f"chosen  {chosen}", file=sys.stderr, flush=True)
    if run.experiment.engine.name != "embedded":
        return
    line = f"{run.experiment.method.name}  {first_line(run.prepared)}"
    print(printable(line), file=sys.stderr, flush=True)


def resume(
    folder: Folder,
    allow: Allowed = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    as_json: AsJSON = False,
) -> None:
    """Continue an interrupted run: the result is that of a run that was never stopped."""
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.run import Run

    run_own_files(method_file, model_file)
    recorded = RecordedRun.open(folder)
    if recorded.summary:
        with suppress(RunFolderError):
            Run.resume(folder)  # cleans up, then refuses with the message below
        _print_ended(recorded.summary, folder, as_json)
        return
    if recorded.config.get("engine", {}).get("name") == "flower":
        raise ConfigError(f"{folder} trains at SuperNodes: `dcfl flower run --resume {folder}`")
    resumed = Run.resume(folder, allow=allow or ())
    train(resumed.experiment.method.name, resumed)
    _print_result(resumed, as_json)


def compare(
    settings: Settings = None,
    methods: MethodNames = "fedavg,dcfl-sw,dcfl-pw",
    seeds: Seeds = "",
    own_mixes: OwnMixes = False,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: Out = None,
    as_json: AsJSON = False,
) -> None:
    """Several methods; those of a seed share its split, client schedule and initial weights.

    A different seed also means a different split; data.seed=0 keeps one split for all of them.
    """
    from dcfl.runs import comparison

    compared = comparison.compare(
        experiment_of(settings, method_file, model_file, out),
        methods=comma_separated(methods),
        seeds=whole_numbers(seeds) if seeds else (),
        train=_train_or_tell,
    )
    _print_comparison(compared, own_mixes, as_json)
    if compared.failures:
        raise typer.Exit(TooFewClients.exit_code)


def _train_or_tell(label: str, run: Run) -> None:
    """A method that loses its clients is named when it happens; the others still train."""
    try:
        train(label, run)
    except TooFewClients as error:
        print(printable(f"dcfl: {label}: {error}"), file=sys.stderr)
        raise


def train(label: str, run: Run) -> None:
    """Train round by round, showing progress; a signal stops the run after its current round."""
    from dcfl.cli.live_progress import progress

    total = run.experiment.federation.rounds
    with progress(label, total) as show, stopped_by_signals(run.stop):
        for row in run.rounds():
            show(row)


def _print_result(run: Run, as_json: bool) -> None:
    from dcfl.cli.cards import run_card

    result = run.result()
    if as_json:
        print_json({**result.summary.to_json(), "folder": str(run.folder)})
    else:
        print(run_card(result.summary, result.rounds, run.workers, run.folder))


def _print_ended(summary: Summary, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json({**summary.to_json(), "folder": str(folder)})
    else:
        print(printable(f"{folder}: {summary.ending}"))


def _print_comparison(compared: Comparison, own_mixes: bool, as_json: bool) -> None:
    from dcfl.cli.tables import comparison_table
    from dcfl.cli.terminal import stdout

    if as_json:
        rows = [group.as_json(compared.groups[0]) for group in compared.groups]
        print_json({"methods": rows, "folder": str(compared.folder)})
    else:
        stdout.print(comparison_table(compared.groups, own_mixes))
        print(printable(f"report  {compared.report}"))
