"""`dcfl run`, `dcfl resume` and `dcfl forget`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    Folder,
    MethodFile,
    ModelFile,
    Out,
    Settings,
    Trust,
    experiment_of,
    print_json,
    run_own_files,
)
from dcfl.errors import ConfigError, RunFolderError
from dcfl.system.processes import stopped_by_signals
from dcfl.system.wording import printable, printable_lines, say

if TYPE_CHECKING:
    from dcfl.experiment import Experiment
    from dcfl.runs.run import Run

Allowed = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this setting has changed since."),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="How many rounds in all; makes a finished run longer.", show_default=False
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show all settings and what the run would cost, and stop."),
]


def run(
    settings: Settings = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Train a model; without settings, DCFL-PW on the built-in digits."""
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
    from dcfl.config import as_tables, to_toml
    from dcfl.runs.estimate import estimate
    from dcfl.runs.prepare import prepare

    prepared = prepare(experiment)
    say("training a few steps to measure what they cost")
    found = estimate(prepared)
    tables = as_tables(prepared.experiment)
    if as_json:
        print_json({**found.to_json(), "engine": prepared.workers, "config": tables})
    else:
        print(printable_lines(to_toml(tables)))
        print(f"\n{estimate_card(prepared, found)}")


def _announce(asked: Experiment, run: Run) -> None:
    """Say what was left to the data, and what trains where; Flower decides the latter itself."""
    from dcfl.cli.cards import chosen_by_data, first_line

    if chosen := chosen_by_data(asked, run.prepared):
        print(f"chosen  {chosen}", file=sys.stderr, flush=True)
    if run.experiment.engine.name != "embedded":
        return
    line = f"{run.experiment.method.name}  {first_line(run.prepared)}"
    say(printable(line))


def resume(
    folder: Folder,
    rounds: Rounds = None,
    allow: Allowed = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    trust: Trust = False,
    as_json: AsJSON = False,
) -> None:
    """Continue an interrupted run, or extend a finished one.

    The result is bit-identical to that of a run that was planned so and never stopped.
    """
    from dcfl.models.own_models import OWN_MODELS
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.run import Run

    _, own_model = run_own_files(method_file, model_file)
    recorded = RecordedRun.open(folder)
    if recorded.summary and rounds in (None, recorded.config["federation"].get("rounds")):
        with suppress(RunFolderError):
            Run.resume(folder)  # cleans up, then refuses with the message below
        if as_json:
            print_json({**recorded.summary.to_json(), "folder": str(folder)})
        else:
            print(printable(f"{folder}: {recorded.summary.ending}"))
        return
    if not recorded.summary and recorded.config.get("engine", {}).get("name") == "flower":
        raise ConfigError(f"{folder} trains at SuperNodes: `dcfl flower run --resume {folder}`")
    # Of a run with a module from Python, the config has the name of a network of dcfl's.
    by_name = recorded.config.get("model", {}).get("name") == own_model
    model = None if by_name else OWN_MODELS.get(own_model)
    resumed = Run.resume(folder, model=model, allow=allow or (), rounds=rounds, trust=trust)
    train(resumed.experiment.method.name, resumed)
    _print_result(resumed, as_json)


def forget(
    folder: Folder,
    client: Annotated[int, typer.Option(metavar="K", help="The client's number.")],
    out: Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")
    ] = False,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    trust: Trust = False,
    as_json: AsJSON = False,
) -> None:
    """Train a finished run again as if a client had never taken part.

    The result is bit-identical to that of a new run with `federation.without=[K]`. The old folder
    stays as it is.
    """
    from dcfl.models.own_models import OWN_MODELS
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained.forget import Forgetting

    _, own_model = run_own_files(method_file, model_file)
    forgetting = Forgetting(RecordedRun.open(folder), client)
    say(printable(forgetting.cost, 500))
    if dry_run or not forgetting.first:
        if as_json:
            print_json(forgetting.to_json())
        return
    begun = forgetting.begin(out, OWN_MODELS.get(own_model), trust)
    train(begun.experiment.method.name, begun)
    _print_result(begun, as_json)


def train(label: str, run: Run) -> None:
    """Train round by round, showing progress; a signal stops the run after its current round."""
    from dcfl.cli import terminal
    from dcfl.runs.progress import shown

    with (
        shown(label, run.experiment, run.folder, console=terminal.stderr) as show,
        stopped_by_signals(run.stop),
    ):
        for row in run.rounds():
            show(row)


def _print_result(run: Run, as_json: bool) -> None:
    from dcfl.cli.cards import run_card

    result = run.result()
    if as_json:
        print_json({**result.summary.to_json(), "folder": str(run.folder)})
    else:
        print(run_card(result.summary, result.rounds, run.prepared.workers, run.folder))
