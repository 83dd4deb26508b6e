"""`dcfl sweep`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    MethodFile,
    ModelFile,
    OutFolder,
    Parallel,
    PlanOnly,
    experiment_of,
    print_json,
    whole_numbers,
)
from dcfl.errors import ConfigError, TooFewClients
from dcfl.system.processes import stopped_by_signals
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from dcfl.comparisons.progress import Progress
    from dcfl.comparisons.searches import Search
    from dcfl.comparisons.sweep_result import SweepResult
    from dcfl.comparisons.sweeping import SweepPlan
    from dcfl.comparisons.trials import By

Varied = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] KEY=A,B,C|LOW:HIGH[:log][:int]...",
        show_default=False,
        help="A config file, settings with several values or a range, which are varied, and "
        "settings with one value, which are not.",
    ),
]
Random = Annotated[int, typer.Option(min=0, metavar="N", help="Try N points drawn at random.")]
Tune = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Try N points that Optuna proposes; end bad ones early."),
]
SearchSeed = Annotated[int, typer.Option(min=0, help="Of --random and --tune.")]
Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="Train each point with each seed.")]
Score = Annotated[str, typer.Option(metavar="ema|max|final", help="What points are chosen by.")]
BudgetText = Annotated[
    str, typer.Option(metavar="2h", help="Begin no trial that would not end in time.")
]
Reuse = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Use finished runs in DIR; may be repeated."),
]
SHOWN = 10  # trials on the terminal


def sweep(
    settings: Varied = None,
    random: Random = 0,
    tune: Tune = 0,
    search_seed: SearchSeed = 0,
    seeds: Seeds = "",
    by: Score = "ema",
    budget: BudgetText = "",
    plan: PlanOnly = False,
    reuse: Reuse = None,
    parallel: Parallel = 0,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: OutFolder = None,
    as_json: AsJSON = False,
) -> None:
    """Search for good settings on images that are kept back; test the chosen one once.

    Without --random or --tune: every combination. The same command continues where it stopped.
    """
    from dcfl.cli.plans import print_sweep_plan
    from dcfl.comparisons.space import split_settings
    from dcfl.comparisons.sweeping import plan_sweep
    from dcfl.comparisons.trials import seconds_in

    limit = seconds_in(budget) if budget else None
    files = [text for text in settings or () if "=" not in text]
    fixed, space = split_settings(text for text in settings or () if "=" in text)
    planned = plan_sweep(
        experiment_of([*files, *fixed], method_file, model_file, out),
        space,
        _search(random, tune, search_seed),
        whole_numbers(seeds) if seeds else (),
        _score(by),
        reuse or (),
    )
    if plan:
        print_sweep_plan(planned, parallel, as_json)
        return
    planned.check()
    _announce(planned)
    progress = _progress(planned)
    result = planned.carry_out(
        parallel, limit, progress.after, lambda crew: stopped_by_signals(crew.stop)
    )
    _print_result(result, as_json)
    if result.test.spread is None:
        raise typer.Exit(TooFewClients.exit_code)


def _search(random: int, tune: int, seed: int) -> Search:
    from dcfl.comparisons.searches import Search

    if random and tune:
        raise ConfigError("--random or --tune: choose one")
    if tune:
        return Search("tune", tune, seed)
    return Search("random", random, seed) if random else Search()


def _score(text: str) -> By:
    from dcfl.comparisons.trials import QUANTITIES

    for by in QUANTITIES:
        if text == by:
            return by
    raise ConfigError(f"--by {text}: must be one of {', '.join(QUANTITIES)}")


def _announce(planned: SweepPlan) -> None:
    share = planned.trials.experiment.data.holdout
    given = "" if planned.wanted.data.holdout else ", by default"
    say(
        f"trials are scored on {100 * share:g} % of the training images, kept back "
        f"(data.holdout = {share:g}{given}); the test images are for the chosen setting"
    )
    say(printable(f"in {planned.folder}"))


def _progress(planned: SweepPlan) -> Progress:
    """With the chosen setting's runs, which come last."""
    from dcfl.comparisons.progress import Progress

    seeds, rounds = len(planned.trials.seeds), planned.rounds
    if planned.search.kind == "tune":
        cells = (planned.search.count + 1) * seeds
        return Progress([], cells, cells * rounds)
    return Progress(planned.todo, seeds, seeds * rounds)


def _print_result(result: SweepResult, as_json: bool) -> None:
    from dcfl.cli.terminal import new_table, stdout
    from dcfl.comparisons.space import plain
    from dcfl.comparisons.sweep_page import headline

    if as_json:
        print_json(result.as_json())
        return
    table = new_table("trial", *result.space.keys, "kept back %", "rounds", "state")
    for trial in result.ranked[:SHOWN]:
        score = f"{trial.spread(result.by)}" if trial.outcomes else ""
        values = [plain(value) for value in trial.point.values()]
        table.add_row(str(trial.number), *values, score, str(trial.rounds), trial.state)
    stdout.print(table)
    if len(result.ranked) > SHOWN:
        print(f"and {len(result.ranked) - SHOWN} more in trials.csv")
    known = [one for one in result.importances if not math.isnan(one.share)]
    if len(known) > 1:
        shares = ", ".join(f"{one.key} {100 * one.share:.0f} %" for one in known)
        print(printable(f"share of the variance between trials: {shares}"))
    if result.out_of_time:
        print("the budget ended the search; the same command with a larger one goes on")
    print(printable(headline(result)))
    print(printable(f"config  {result.config}"))
    print(printable(f"report  {result.report}"))
