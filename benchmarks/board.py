"""The board: methods with equal search budgets, and every single run behind a row.

    python benchmarks/board.py run digits --methods all --out DIR     # as the board trains them
    python benchmarks/board.py store digits DIR                       # its single runs, as CSV
    python benchmarks/board.py page                                   # docs/board.md, from the CSVs
    python benchmarks/board.py repeat digits scaffold 3               # one run, the same bits?
    python benchmarks/board.py row digits mine.py --out DIR           # your method beside ours

`run` and `row` are `dcfl compare --tune`; what follows is passed on to it (`--parallel 1`,
KEY=VALUE). `row` prints the board with your method on it, and stores nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_type_hints

from benchmarks.reproduction_page import interval_cell, made_anew, standing_words
from dcfl.comparisons.baselines import KINDS
from dcfl.comparisons.cells import runs_inside
from dcfl.comparisons.groups import BY, FINE_TUNED, Outcome, group_runs, setting
from dcfl.comparisons.pairs import Pair, Pairs, Spread
from dcfl.comparisons.searches import edges
from dcfl.comparisons.standing import Ranking
from dcfl.comparisons.trials import TRIALS
from dcfl.errors import DCFLError
from dcfl.methods import METHODS
from dcfl.methods.loading import register_methods
from dcfl.paper.recipe import ROWS
from dcfl.paper.scales import searched_key
from dcfl.report.comparison_section import models_of
from dcfl.report.document import Table
from dcfl.report.text import listed, number, p_cell, plural
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import flat, of_kind
from dcfl.system.processes import python

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "board.md"
TRIAL_COUNT = 6
REFERENCE = "fedavg"
LEVELS = ("last level", "every level")
STARTS = {"0.8": "digits", "0.1": "digits-from-0.1"}  # learning rates, and where the runs are
OF_BASELINES = (  # settings in which one differs from the methods
    "federation.baseline", "federation.rounds", "federation.participation",
    "federation.evaluate_every", "training.lr_decay",
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """A data set with its split, on which methods are compared."""

    title: str
    config: str  # below configs/board/
    seeds: int
    by: str
    options: Sequence[str] = ()  # of `dcfl compare`
    wanted: Sequence[str] = ()  # the methods that belong on it

    @property
    def setting(self) -> list[str]:
        return [str(Path("configs") / "board" / self.config), *self.model_file]

    @property
    def model_file(self) -> list[str]:
        own = self.config == "scanners.toml"
        return ["--model-file", str(Path("benchmarks") / "board_model.py")] if own else []

    def compare(self, methods: str, more: Sequence[str]) -> list[str]:
        seeds = ",".join(map(str, range(self.seeds)))
        budget = ["--tune", str(TRIAL_COUNT), "--seeds", seeds, "--by", self.by, *self.options]
        return ["compare", *self.setting, "--methods", methods, *budget, *more]


GENERIC = (
    "fedavg", "fedprox", "scaffold", "feddyn", "fedntd", "fedsam", "fedlc", "fedexp", "moon",
    "fedrcl", "dcfl-sw", "dcfl-pw",
)  # fmt: skip
LEVELLED = (*GENERIC[:-3], *(f"{name}, {at}" for name in GENERIC[-3:] for at in LEVELS))
OWN_MODELS = [name for name, method in METHODS.items() if "personal" in method.__module__]
PERSONAL = (REFERENCE, *OWN_MODELS)
BOARDS = {
    "pretrained": Board(
        "Pretrained features, CIFAR-10, Dirichlet 0.3",
        "pretrained.toml",
        10,
        "global",
        ["--no-tune-lr"],
        GENERIC,
    ),
    "digits": Board(
        "Digits, Dirichlet 0.1",
        "digits.toml",
        5,
        "global",
        wanted=[name for name in METHODS if name not in OWN_MODELS],
    ),
    "mini": Board(
        "CIFAR-10 in miniature, Dirichlet 0.3",
        "",
        0,
        "global",
        wanted=LEVELLED,
    ),
    "mini-iid": Board(
        "CIFAR-10 in miniature, IID",
        "",
        0,
        "global",
        wanted=LEVELLED,
    ),
    "skew": Board(
        "Label skew: digits, Dirichlet 0.1, on each client's own mix of classes",
        "digits.toml",
        5,
        "clients",
        ["--baselines"],
        PERSONAL,
    ),
    "scanners": Board(
        "Feature skew: six scanners, on each site's own test images",
        "scanners.toml",
        5,
        "clients",
        ["--baselines"],
        PERSONAL,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SingleRun:
    """A line of a board's CSV. Accuracies in percent."""

    method: str
    stage: str  # "trial", "compared" or "baseline"
    settings: (
        str  # those that were searched, or that make a baseline: KEY=VALUE, with spaces between
    )
    seed: int
    score: float  # what the board compares by; of a trial, on images kept back
    max: float
    ema: float
    own: float  # clients' own accuracy in the end, and that of the worst tenth
    worst: float
    rounds: int
    mb: float  # up and down
    client_seconds: float
    weights_sha256: str

    @classmethod
    def of(
        cls, run: RecordedRun, stage: str, by: str, keys: Iterable[str], kind: str = ""
    ) -> SingleRun:
        """`keys`: of its settings. `kind`: of a baseline."""
        outcome, known = Outcome.of(run, kind), flat(run.config)
        trained = kind in ("", *KINDS)
        return cls(
            str(setting(run, "method.name")),
            stage,
            " ".join(f"{key}={known[key]}" for key in keys),
            int(setting(run, "federation.seed")),
            getattr(outcome, BY[by].quantity),
            outcome.max_accuracy,
            outcome.ema_accuracy,
            outcome.own_accuracy,
            outcome.worst_decile_accuracy,
            outcome.rounds,
            (outcome.bytes_up + outcome.bytes_down) / 1e6,
            sum(row.seconds for row in run.clients) if trained else math.nan,
            run.summary.weights_sha256 if run.summary else "",
        )


COLUMNS = [field.name for field in fields(SingleRun)]


def single_runs(folder: Path, by: str) -> Iterator[SingleRun]:
    """All finished runs of a comparison's folder."""
    trials = [run for run in runs_inside(folder / TRIALS) if run.finished]
    varied = _varied(trials)
    for run in trials:
        yield SingleRun.of(run, "trial", by, varied[_method(run)])
    for group in group_runs([run for run in runs_inside(folder) if run.finished]):
        for run in group.counted:
            if not group.baseline:
                yield SingleRun.of(run, "compared", by, varied[_method(run)])
                continue
            keys = OF_BASELINES if group.baseline in KINDS else ()
            one = SingleRun.of(run, "baseline", by, keys, group.baseline)
            words = group.label.removeprefix("baseline: ")
            tuned = group.baseline == FINE_TUNED
            yield replace(one, method=f"{one.method}, {FINE_TUNED}" if tuned else words)


def _method(run: RecordedRun) -> str:
    return str(setting(run, "method.name"))


def _varied(trials: Sequence[RecordedRun]) -> defaultdict[str, list[str]]:
    """The settings in which the trials of each method differ."""
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in trials:
        for key, value in of_kind(flat(run.config), "result").items():
            values[_method(run)][key].add(str(value))
    found = defaultdict[str, list[str]](list)
    for method, own in values.items():
        found[method] = [key for key, several in own.items() if len(several) > 1]
    return found


def runs_of_recipe(folder: Path, block: str, column: str = "") -> Iterator[SingleRun]:
    """What `dcfl reproduce` has stored: participation-5 and its searches, or levels and theirs."""
    levels = folder.name == "levels"
    keys = {row: (searched_key(method),) for row, method in ROWS.items()}
    # FedAvg's learning rate is that of all, whatever else is searched for levels.
    rates, own = (folder.parent, "levels-search") if levels else (folder, "mu-search")
    tried = defaultdict[str, list[SingleRun]](list)
    for searched in (rates / "lr-search-runs.csv", folder / f"{own}-runs.csv"):
        for run in _recipe_rows(searched):
            row, _, level = run["row"].partition(", ")
            if run["block"] == "cifar10" and run["column"] and level in ("", *LEVELS):
                named = ("method.mu", "method.temperature") if level else keys[row]
                values = run["column"].split(", ")
                settings = " ".join(map("=".join, zip(named, values, strict=True)))
                method = ", ".join(filter(None, (ROWS[row], level)))
                tried[method].append(_of_recipe(run, method, "trial", settings))
    for run in _recipe_rows(folder / f"{'levels' if levels else 'participation-5'}-runs.csv"):
        if run["block"] == block and (levels or run["column"] == column):
            level = run["column"] if levels else ""
            method = ", ".join(filter(None, (ROWS[run["row"]], level)))
            best = best_of(tried[method])
            yield _of_recipe(run, method, "compared", best)
    yield from (run for runs in tried.values() for run in runs)


def _recipe_rows(path: Path) -> list[dict[str, str]]:
    return _csv(path) if path.exists() else []


def _of_recipe(run: dict[str, str], method: str, stage: str, settings: str) -> SingleRun:
    return SingleRun(
        method,
        stage,
        settings,
        int(run["seed"]),
        float(run["ema"]),
        float(run["max"]),
        float(run["ema"]),
        math.nan,
        math.nan,
        int(run["rounds"]),
        float(run["mb_up"]) + float(run["mb_down"]),
        float(run["client_seconds"]),
        run["weights_sha256"],
    )


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def stored(board: str) -> list[SingleRun]:
    """All single runs of a board: those of its CSV, and those that `dcfl reproduce` has stored."""
    found = [_read(line) for line in _recipe_rows(RESULTS / "board" / f"{board}.csv")]
    if board == "pretrained":
        found += runs_of_recipe(RESULTS / "pretrained", "cifar10", "0.3")
    elif board.startswith("mini"):
        split = "iid" if board == "mini-iid" else "0.3"
        found += runs_of_recipe(RESULTS / "reproduction" / "levels", f"cifar10, {split}")
    return found


def _read(line: dict[str, str]) -> SingleRun:
    kinds = get_type_hints(SingleRun)
    empty = {float: math.nan, str: ""}
    return SingleRun(
        **{name: kinds[name](value or empty[kinds[name]]) for name, value in line.items()}
    )


def write(board: str, runs: Iterable[SingleRun]) -> None:
    """Replace what is stored of these methods; that of others stays."""
    runs = list(runs)
    path = RESULTS / "board" / f"{board}.csv"
    new = {run.method for run in runs}
    before = [_read(line) for line in _recipe_rows(path)]
    lines = [
        [_shown(value) for value in asdict(run).values()]
        for run in (*(one for one in before if one.method not in new), *runs)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(Table(COLUMNS, lines).csv(), encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6f}".rstrip("0").rstrip(".")
    return str(value)


def scores_by_seed(runs: Iterable[SingleRun]) -> dict[str, dict[int, float]]:
    """Of the trials of a method, by their settings."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        found[run.settings][run.seed] = run.score
    return found


def best_of(trials: Iterable[SingleRun]) -> str:
    means = {settings: fmean(own.values()) for settings, own in scores_by_seed(trials).items()}
    return max(means, key=means.__getitem__, default="")


@dataclass(frozen=True)
class Row:
    """A method on a board."""

    method: str
    runs: Sequence[SingleRun]  # that are compared
    trials: Sequence[SingleRun]

    @property
    def scores(self) -> dict[int, float]:
        return {run.seed: run.score for run in self.runs}

    @property
    def baseline(self) -> bool:
        return self.runs[0].stage == "baseline"

    @property
    def settings(self) -> str:
        return self.runs[0].settings

    @property
    def budget(self) -> tuple[int, int]:
        """Trials, and seeds of each."""
        tried = scores_by_seed(self.trials)
        return len(tried), min(map(len, tried.values()), default=0)

    @property
    def tuned(self) -> str:
        """What was chosen, with a star where it is at the edge; what is not the winner says so."""
        if self.baseline:
            return "as fedavg" if FINE_TUNED in self.method else "not tuned"
        if not self.trials:
            return "nothing to tune"
        tried = scores_by_seed(self.trials)
        means = {settings: fmean(own.values()) for settings, own in tried.items()}
        keys = [pair.partition("=")[0] for pair in self.settings.split()]
        points = {settings: _values(settings) for settings in tried}
        at_edge = [keys[axis] for axis in edges(_values(self.settings), list(points.values()))]
        chosen = ", ".join(
            f"{pair.partition('.')[2].replace('=', ' ')}{'*' * (pair.partition('=')[0] in at_edge)}"
            for pair in self.settings.split()
        )
        won = means.get(self.settings) == max(means.values())
        return f"{chosen}{'' if won else ' (not the winner)'}"


def _values(settings: str) -> tuple[float, ...]:
    return tuple(float(pair.partition("=")[2]) for pair in settings.split())


def rows_of(runs: Iterable[SingleRun]) -> dict[str, Row]:
    """By method, the highest mean first, baselines after the methods."""
    by_method: dict[str, list[SingleRun]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    rows = []
    for method, own in by_method.items():
        compared = [run for run in own if run.stage != "trial"]
        if compared:
            rows.append(Row(method, compared, [run for run in own if run.stage == "trial"]))
    rows.sort(key=lambda row: (row.baseline, -fmean(row.scores.values())))
    return {row.method: row for row in rows}


def gains(rows: dict[str, Row]) -> dict[str, Pair]:
    """The paired differences to FedAvg, corrected for the methods; baselines by themselves."""
    found: dict[str, Pair] = {}
    for baseline in (False, True):
        scores = {name: row.scores for name, row in rows.items() if row.baseline == baseline}
        if REFERENCE in rows:
            both = Pairs.of({REFERENCE: rows[REFERENCE].scores, **scores}, REFERENCE)
            found |= {pair.method: pair for pair in both.pairs}
    return found


def ranking(rows: dict[str, Row]) -> Ranking | None:
    """A seed with its images, split and schedule is a block: over those, methods are ranked."""
    methods = {name: row.scores for name, row in rows.items() if not row.baseline}
    shared = set.intersection(*map(set, methods.values())) if methods else set()
    return Ranking.of(
        {str(seed): {name: own[seed] for name, own in methods.items()} for seed in sorted(shared)}
    )


def board(name: str) -> str:
    """The table of a board, with what was not run."""
    return board_table(BOARDS[name], stored(name))


def board_table(board: Board, runs: Sequence[SingleRun], yours: Sequence[str] = ()) -> str:
    rows = rows_of(runs)
    missing = [method for method in board.wanted if method not in rows]
    absent = f"Not run: {', '.join(missing)}." if missing else ""
    if not rows:
        return absent
    pairs, ranks = gains(rows), ranking(rows)
    lines = []
    for method, row in rows.items():
        pair = pairs.get(method)
        lines.append(
            [
                f"**{method} (yours)**" if method in yours else method,
                f"{Spread.of([*row.scores.values()])}",
                interval_cell(pair),
                p_cell(pair.p_value) if pair else "–",
                number(ranks.mean_ranks[method], 1) if ranks and not row.baseline else "–",
                *_costs(row),
                row.tuned,
            ]
        )
    measure = BY[board.by].name
    columns = [
        "method", f"{measure} %", "− FedAvg (95 %)", "p", "rank", "MB", "client-s", "models",
        "tuned to (* at the edge)",
    ]  # fmt: skip
    told = [budgets(rows), _rank_words(ranks), absent]
    return "\n\n".join([Table(columns, lines).markdown(), " ".join(filter(None, told))])


def _costs(row: Row) -> list[str]:
    first = row.runs[0]
    sent = "–" if math.isnan(first.mb) else f"{fmean(run.mb for run in row.runs):.0f}"
    known = [run.client_seconds for run in row.runs if not math.isnan(run.client_seconds)]
    seconds = f"{median(known):.0f}" if known else "–"
    name = row.method.partition(",")[0]
    held = models_of(METHODS[name]) if name in METHODS and not row.baseline else "–"
    return [sent, seconds, held]


def budgets(rows: dict[str, Row]) -> str:
    """Whether all had the same number of trials and seeds; if not, who had which."""
    found = defaultdict[tuple[int, int], list[str]](list)
    for row in rows.values():
        if not row.baseline:
            found[row.budget].append(row.method)
    usual = max(found, key=lambda budget: len(found[budget]))
    seeds = sorted({run.seed for row in rows.values() for run in row.trials})
    said = [f"Trials: {usual[0]} of each method with seeds {listed([*map(str, seeds)])}"]
    for budget, methods in found.items():
        if budget != usual:
            said.append(f"{budget[0]} with {plural(budget[1], 'seed')} of {', '.join(methods)}")
    return "; ".join(said) + "."


def _rank_words(ranks: Ranking | None) -> str:
    if ranks is None:
        return ""
    best = next(iter(ranks.mean_ranks))
    level = ranks.level_with_the_best
    return (
        f"Ranks are means over {ranks.tasks} seeds; they differ by chance up to "
        f"{number(ranks.critical_difference, 1)} (Nemenyi, 5 %): not told from {best} by rank "
        f"{'are ' + ', '.join(level) if level else 'is none'}."
    )


def starts() -> str:
    """What the searches of the digits find that begin with other learning rates."""
    found = {rate: rows_of(stored(name)) for rate, name in STARTS.items()}
    lines = [
        [
            method,
            *(
                cell
                for rows in found.values()
                for cell in (interval_cell(gains(rows).get(method)), rows[method].tuned)
            ),
        ]
        for method in found["0.8"]
        if all(method in rows for rows in found.values())
    ]
    columns = [word for rate in STARTS for word in (f"from {rate}: − FedAvg", "tuned to")]
    return Table(["method", *columns], lines).markdown()


def findings() -> str:
    """For each board, who is above FedAvg and who below."""
    lines = []
    for name, board in BOARDS.items():
        rows = rows_of(stored(name))
        pairs = [pair for pair in gains(rows).values() if not rows[pair.method].baseline]
        if pairs:
            lines.append(f"- **{board.title}** ({standing_words(pairs)}.")
        else:
            lines.append(f"- **{board.title}**: not run.")
    return "\n".join(lines)


MAKERS = (board, findings, starts)


def page() -> None:
    PAGE.write_text(made_anew(PAGE, MAKERS), encoding="utf-8")


def repeated(board: str, method: str, seed: int, more: Sequence[str]) -> bool:
    """Train one run of a board again; whether it has the same bits."""
    wanted = (method, seed, "compared")
    known = {(one.method, one.seed, one.stage): one for one in stored(board)}
    if wanted not in known:
        sys.exit(f"board: no run of {method} with seed {seed} on {board}")
    run = known[wanted]
    with tempfile.TemporaryDirectory() as scratch:
        command = [*run_command(BOARDS[board], run), "--out", str(Path(scratch) / "run"), *more]
        print("dcfl", *command)
        subprocess.run(python("-m", "dcfl", *command), check=True)
        again = RecordedRun.open(Path(scratch) / "run")
        same = again.summary is not None and again.summary.weights_sha256 == run.weights_sha256
    print(f"stored: {run.weights_sha256[:16]}, the same bits: {'yes' if same else 'no'}")
    return same


def run_command(board: Board, run: SingleRun) -> list[str]:
    """`dcfl run` of a row of a board; of its trials too."""
    own = [f"method.name={run.method}"] if run.stage != "baseline" else ["method.name=fedavg"]
    kept_back = ["data.holdout=0.1"] if run.stage == "trial" else []
    return ["run", *board.setting, *own, *run.settings.split(), *kept_back,
            f"federation.seed={run.seed}"]  # fmt: skip


def row(name: str, file: Path, out: Path, more: Sequence[str]) -> None:
    """Train a reader's methods with the board's budget, and print the board with them."""
    board, methods = BOARDS[name], register_methods(file)
    words = ["--method-file", str(file), "--out", str(out), *more]
    command = board.compare(",".join(methods), words)
    subprocess.run(python("-m", "dcfl", *command), check=True, stdout=subprocess.DEVNULL)
    own = [run for run in single_runs(out, board.by) if run.stage != "baseline"]
    print(board_table(board, [*stored(name), *own], methods))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("page")
    for verb in ("run", "store", "repeat", "row"):
        one = verbs.add_parser(verb)
        one.add_argument("board", choices=[name for name, board in BOARDS.items() if board.config])
        if verb == "run":
            one.add_argument("--methods", default="all")
        elif verb == "repeat":
            one.add_argument("method")
            one.add_argument("seed", type=int)
        elif verb == "store":
            one.add_argument("folder", type=Path)
        else:
            one.add_argument("file", type=Path)
            one.add_argument("--out", type=Path, required=True)
    given, more = parser.parse_known_args()
    if given.verb == "run":
        command = BOARDS[given.board].compare(given.methods, more)
        sys.exit(subprocess.run(python("-m", "dcfl", *command)).returncode)
    elif given.verb == "repeat":
        sys.exit(not repeated(given.board, given.method, given.seed, more))
    elif given.verb == "row":
        try:
            row(given.board, given.file, given.out, more)
        except (DCFLError, subprocess.CalledProcessError) as error:
            sys.exit(f"board: {error}")
    else:
        if given.verb == "store":
            write(given.board, single_runs(given.folder, BOARDS[given.board].by))
        page()


if __name__ == "__main__":
    main()
