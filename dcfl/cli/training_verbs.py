"""`dcfl run`, `dcfl resume` and `dcfl compare`."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.comparison_output import ComparisonOutput, CSVFile, LatexFile, Target, print_standing
from dcfl.cli.options import (
    AsJSON,
    Folder,
    MethodFile,
    ModelFile,
    Out,
    OutFolder,
    Parallel,
    PlanOnly,
    Settings,
    comma_separated,
    experiment_of,
    print_json,
    run_own_files,
    whole_numbers,
)
from dcfl.errors import ConfigError, RunFolderError, TooFewClients
from dcfl.system.processes import stopped_by_signals
from dcfl.system.wording import printable, printable_lines, say

if TYPE_CHECKING:
    from dcfl.comparisons.comparison import Comparison
    from dcfl.comparisons.standing import Standing
    from dcfl.experiment import Experiment
    from dcfl.runs.rows import Summary
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
        print(f"\n{estimate_card(prepared, found, datetime.now())}")


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
    as_json: AsJSON = False,
) -> None:
    """Continue an interrupted run, or make one longer: as if it had been planned so and never
    stopped."""
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.run import Run

    run_own_files(method_file, model_file)
    recorded = RecordedRun.open(folder)
    if recorded.summary and rounds in (None, recorded.config["federation"].get("rounds")):
        with suppress(RunFolderError):
            Run.resume(folder)  # cleans up, then refuses with the message below
        _print_ended(recorded.summary, folder, as_json)
        return
    if not recorded.summary and recorded.config.get("engine", {}).get("name") == "flower":
        raise ConfigError(f"{folder} trains at SuperNodes: `dcfl flower run --resume {folder}`")
    resumed = Run.resume(folder, allow=allow or (), rounds=rounds)
    train(resumed.experiment.method.name, resumed)
    _print_result(resumed, as_json)


def compare(
    settings: Settings = None,
    methods: MethodNames = "fedavg,dcfl-sw,dcfl-pw",
    seeds: Seeds = "",
    own_mixes: OwnMixes = False,
    plan: PlanOnly = False,
    parallel: Parallel = 0,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: OutFolder = None,
    target: Target = None,
    csv: CSVFile = None,
    latex: LatexFile = None,
    as_json: AsJSON = False,
) -> None:
    """Several methods; those of a seed share its split, client schedule and initial weights.

    A different seed also means a different split; data.seed=0 keeps one split for all of them.
    Finished runs of the folder are not trained again, interrupted ones continue where they
    stopped: methods and seeds may be added later.
    """
    from dcfl.cli.plans import print_comparison_plan
    from dcfl.comparisons.comparison import plan_comparison
    from dcfl.comparisons.crew import MixedCrew
    from dcfl.comparisons.progress import Progress
    from dcfl.comparisons.standing import Standing
    from dcfl.system.locks import locked

    output = ComparisonOutput(as_json, csv, latex)
    planned = plan_comparison(
        experiment_of(settings, method_file, model_file, out),
        comma_separated(methods),
        whole_numbers(seeds) if seeds else (),
    )
    if plan:
        print_comparison_plan(planned, parallel, as_json)
        return
    planned.check()
    planned.make_folder()
    with locked(planned.folder):
        todo = planned.todo
        crew = MixedCrew(todo, parallel)
        with stopped_by_signals(crew.stop):
            failures = planned.train(crew, Progress(todo).after)
        compared = planned.result(failures, target)
    for name, error in failures.items():
        print(printable(f"dcfl: {name}: {error}"), file=sys.stderr)
    _print_comparison(compared, Standing(compared.groups, own_mixes, target), output)
    if failures:
        raise typer.Exit(TooFewClients.exit_code)


def train(label: str, run: Run) -> None:
    """Train round by round, showing progress; a signal stops the run after its current round."""
    from dcfl.cli.live_progress import progress

    with progress(label, run.experiment, run.folder) as show, stopped_by_signals(run.stop):
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


def _print_comparison(compared: Comparison, standing: Standing, output: ComparisonOutput) -> None:
    if not output.printed:  # before files, which a full disk may refuse
        print_standing(standing)
    output.write(standing, {"folder": str(compared.folder)})
    if not output.printed:
        output.tell()
        print(printable(f"report  {compared.report}"))
