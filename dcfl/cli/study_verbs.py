"""`dcfl compare`, `dcfl sweep` and `dcfl report`: several runs, and where their comparison goes."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcfl.cli.options import (
    AsJSON,
    FiguresFolder,
    Folders,
    MethodFile,
    MethodFiles,
    ModelFile,
    OutFolder,
    Parallel,
    PlanOnly,
    Settings,
    experiment_of,
    print_json,
    whole_numbers,
)
from dcfl.errors import ConfigError, TooFewClients
from dcfl.system.processes import stopped_by_signals
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from dcfl.comparisons.standing import Standing
    from dcfl.comparisons.sweeping import SweepPlan, SweepResult

STDOUT = Path("-")

CSVFile = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Write a row per method; - prints it instead."),
]
LatexFile = Annotated[
    Path | None,
    typer.Option("--latex", metavar="FILE", help="Write tables for LaTeX; - prints them instead."),
]


def _a_number(percent: float | None) -> float | None:
    if percent is not None and math.isnan(percent):  # which lies within any bounds
        raise typer.BadParameter("nan is no percentage")
    return percent


Target = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        callback=_a_number,
        metavar="PERCENT",
        help="Show what it takes to reach this accuracy; by default what the first method reaches.",
    ),
]


By = Annotated[
    str,
    typer.Option(
        metavar="global|clients",
        show_default=False,
        help="Compare by the global model's EMA, or by the clients' own accuracy in the end; by "
        "default the latter where clients have models of their own.",
    ),
]


EveryPair = Annotated[
    bool, typer.Option("--all-pairs", help="Compare all methods, not only with the first.")
]


@dataclass(frozen=True)
class ComparisonOutput:
    """What the user asked for. Made before anything is trained, so that mistakes cost nothing."""

    as_json: bool = False
    csv: Path | None = None
    latex: Path | None = None

    def __post_init__(self) -> None:
        if self._printed > 1:
            raise ConfigError("--json, --csv - and --latex - all print: choose one of them")
        for option, path in self._files.items():
            if path.is_dir():
                raise ConfigError(f"{option} {path}: that is a folder, name a file")
            if (path.parent / "rounds.jsonl").exists():
                raise ConfigError(f"{option} {path}: {path.parent} is a run, name another folder")
            nearest = next(folder for folder in path.absolute().parents if folder.exists())
            if not nearest.is_dir():
                raise ConfigError(f"{option} {path}: {nearest} is not a folder")

    @property
    def printed(self) -> bool:
        """Does standard output belong to another program?"""
        return self._printed > 0

    @property
    def _printed(self) -> int:
        return self.as_json + (self.csv == STDOUT) + (self.latex == STDOUT)

    @property
    def _files(self) -> dict[str, Path]:
        asked = {"--csv": self.csv, "--latex": self.latex}
        return {option: path for option, path in asked.items() if path not in (None, STDOUT)}

    def write(self, standing: Standing, folder: dict[str, Any]) -> None:
        """`folder` is what JSON has beside the numbers."""
        from dcfl.comparisons.verdict import verdict
        from dcfl.report.comparison_section import csv_text, latex_text
        from dcfl.system.storage import storage, write_whole

        for path, text_of in ((self.csv, csv_text), (self.latex, latex_text)):
            if path == STDOUT:
                print(text_of(standing), end="")
            elif path is not None:
                with storage(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, text_of(standing))
        if self.as_json:
            print_json({**standing.to_json(), "verdict": verdict(standing), **folder})

    def tell(self) -> None:
        for option, path in self._files.items():
            print(printable(f"{option.removeprefix('--'):6}  {path}"))


def print_standing(standing: Standing) -> None:
    """The table of methods, what an accuracy costs, and the verdict."""
    from dcfl.cli.tables import comparison_table, plain_table
    from dcfl.cli.terminal import stdout
    from dcfl.comparisons.verdict import verdict
    from dcfl.report.comparison_section import costs_table

    stdout.print(comparison_table(standing))
    if len(standing.groups) > 1:
        for task in standing.tasks:
            print()
            stdout.print(plain_table(costs_table(standing, task)))
    if sentences := verdict(standing):
        print()
        for sentence in sentences:  # whole lines for a pipe, whole words for a person
            stdout.print(printable(sentence), soft_wrap=not stdout.is_terminal)
        print()


def report(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page to write.")] = None,
    target: Target = None,
    all_pairs: EveryPair = False,
    by: By = "",
    csv: CSVFile = None,
    latex: LatexFile = None,
    figures: FiguresFolder = None,
    as_json: AsJSON = False,
) -> None:
    """Write an HTML page about runs, and their comparison as a file."""
    from dcfl.comparisons.groups import group_runs
    from dcfl.comparisons.standing import Standing
    from dcfl.report import find_all_runs, write_report

    output = ComparisonOutput(as_json, csv, latex)
    standing = Standing(group_runs(find_all_runs(folders)), by, target, all_pairs)
    page = write_report(
        *folders, out=out, target=target, figures=figures, all_pairs=all_pairs, by=by
    )
    output.write(standing, {"report": str(page)})
    if not output.printed:
        output.tell()
        print(printable(f"report  {page}"))


MethodNames = Annotated[
    str,
    typer.Option(
        metavar="A,B(mu=0.1),C",
        help="Which methods, with settings of their own; all: every one that fits.",
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="0,1,2", help="One run of each method per seed.")
]
Baselines = Annotated[
    bool,
    typer.Option(
        "--baselines", help="Add each client alone, all data in one place, the most frequent class."
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=A,B,C", help="Compare at each value and draw curves; twice at most."),
]
Reuse = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Use finished runs in DIR; may be repeated."),
]


TuneMethods = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="First N trials of each method on kept-back images; its best settings are compared.",
    ),
]
TuneRate = Annotated[
    bool, typer.Option("--tune-lr/--no-tune-lr", help="Let trials vary the learning rate too.")
]


def compare(
    settings: Settings = None,
    methods: MethodNames = "fedavg,dcfl-sw,dcfl-pw",
    seeds: Seeds = None,
    tune: TuneMethods = 0,
    tune_lr: TuneRate = True,
    by: By = "",
    plan: PlanOnly = False,
    parallel: Parallel = 0,
    method_file: MethodFiles = None,
    model_file: ModelFile = None,
    out: OutFolder = None,
    target: Target = None,
    all_pairs: EveryPair = False,
    baselines: Baselines = False,
    over: Over = None,
    reuse: Reuse = None,
    csv: CSVFile = None,
    latex: LatexFile = None,
    figures: FiguresFolder = None,
    as_json: AsJSON = False,
) -> None:
    """Compare methods over seeds, with intervals and a verdict.

    All methods of a seed share its split, client schedule and initial weights.

    A different seed also means a different split; data.seed=0 keeps one split for all of them.
    Finished runs of the folder are not trained again, interrupted ones continue where they
    stopped: methods and seeds may be added later.
    """
    from dcfl.cli.plans import print_comparison_plan
    from dcfl.cli.tables import plain_table
    from dcfl.cli.terminal import stdout
    from dcfl.comparisons.comparison import plan_comparison
    from dcfl.comparisons.space import read_choices, split_commas
    from dcfl.comparisons.standing import Standing
    from dcfl.comparisons.tuning import remarks_on, tuning_table
    from dcfl.config import parse_settings
    from dcfl.report.comparison_section import points_json
    from dcfl.runs.progress import Progress

    output = ComparisonOutput(as_json, csv, latex)
    of_methods = [text for text in settings or () if text.startswith("method.")]
    others = [text for text in settings or () if text not in of_methods]
    planned = plan_comparison(
        experiment_of(others, method_file, model_file, out),
        split_commas(methods),
        () if seeds is None else whole_numbers(seeds),
        parse_settings(of_methods).get("method", {}),
        tune=tune,
        tune_lr=tune_lr,
        baselines=baselines,
        over=[read_choices(text) for text in over or ()],
        reuse=reuse or (),
        by=by,
    )
    for name, why in planned.left_out.items():
        say(printable(f"left out: {name}: {why}"))
    if plan:
        print_comparison_plan(planned, parallel, as_json)
        return
    planned.check()
    show = Progress(planned.todo).after
    compared = planned.carry_out(
        parallel,
        show,
        lambda crew: stopped_by_signals(crew.stop),
        target=target,
        all_pairs=all_pairs,
        figures=figures,
    )
    for name, error in compared.failures.items():
        print(printable(f"dcfl: {name}: {error}"), file=sys.stderr)
    groups = [*compared.groups, *compared.baselines]
    standing = Standing(groups, by, target, all_pairs)
    if not output.printed:  # before files, which a full disk may refuse
        if compared.tuned:
            stdout.print(plain_table(tuning_table(compared.tuned)))
            for remark in remarks_on(compared.tuned):
                print(printable(remark))
            print()
        print_standing(standing)
    tuned = {"tuned": [one.to_json() for one in compared.tuned]} if compared.tuned else {}
    left_out = {"left_out": dict(planned.left_out)} if planned.left_out else {}
    points = {"over": points_json(standing, compared.over)} if compared.over else {}
    output.write(standing, {**tuned, **left_out, **points, "folder": str(compared.folder)})
    if not output.printed:
        output.tell()
        print(printable(f"report  {compared.report}"))
    if compared.failures:
        raise typer.Exit(TooFewClients.exit_code)


Varied = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] KEY=A,B,C...",
        show_default=False,
        help="A config file, settings with several values, which are varied, and settings with one "
        "value, which are not.",
    ),
]
PointSeeds = Annotated[
    str | None, typer.Option(metavar="0,1,2", help="Train each point with each seed.")
]
SHOWN = 10  # trials on the terminal


def sweep(
    settings: Varied = None,
    seeds: PointSeeds = None,
    by: By = "",
    plan: PlanOnly = False,
    reuse: Reuse = None,
    parallel: Parallel = 0,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: OutFolder = None,
    as_json: AsJSON = False,
) -> None:
    """Search for settings on kept-back images; test the best once.

    Every combination is tried. The same command continues where it stopped.
    """
    from dcfl.cli.plans import print_sweep_plan
    from dcfl.comparisons.space import split_settings
    from dcfl.comparisons.sweeping import plan_sweep
    from dcfl.runs.progress import Progress

    files = [text for text in settings or () if "=" not in text]
    fixed, space = split_settings(text for text in settings or () if "=" in text)
    planned = plan_sweep(
        experiment_of([*files, *fixed], method_file, model_file, out),
        space,
        () if seeds is None else whole_numbers(seeds),
        reuse or (),
        by,
    )
    if plan:
        print_sweep_plan(planned, parallel, as_json)
        return
    planned.check()
    _announce_sweep(planned)
    show = Progress([*planned.todo, *planned.chosen_todo]).after
    result = planned.carry_out(parallel, show, lambda crew: stopped_by_signals(crew.stop))
    _print_sweep(result, as_json)
    if result.test.spread is None:
        raise typer.Exit(TooFewClients.exit_code)


def _announce_sweep(planned: SweepPlan) -> None:
    share = planned.trials.experiment.data.holdout
    given = "" if planned.wanted.data.holdout else ", by default"
    say(
        f"trials are scored on {100 * share:g} % of the training images, kept back "
        f"(data.holdout = {share:g}{given}); the test images are for the chosen setting"
    )
    say(printable(f"in {planned.folder}"))


def _print_sweep(result: SweepResult, as_json: bool) -> None:
    from dcfl.cli.terminal import new_table, stdout
    from dcfl.comparisons.space import plain

    if as_json:
        print_json(result.as_json())
        return
    table = new_table("trial", *result.space.keys, "kept back %", "rounds", "state")
    for trial in result.ranked[:SHOWN]:
        score = f"{trial.spread}" if trial.outcomes else ""
        values = [plain(value) for value in trial.point.values()]
        table.add_row(str(trial.number), *values, score, str(trial.rounds), trial.state)
    stdout.print(table)
    if len(result.ranked) > SHOWN:
        print(f"and {len(result.ranked) - SHOWN} more in trials.csv")
    print(printable(result.headline))
    print(printable(f"config  {result.config}"))
    print(printable(f"report  {result.report}"))
