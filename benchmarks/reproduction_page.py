"""Put the measured tables into docs/reproduction.md, why.md, pretrained.md and the pages beside the
stored results, between the marks that name them.

    dcfl reproduce NAME ... --out FOLDER      # writes FOLDER/NAME-runs.csv
    python benchmarks/course.py ...           # writes benchmarks/results/course.json
    python benchmarks/reproduction_page.py       # from the copies in benchmarks/results/

Everything is computed from the single runs. A test compares the pages with what this makes.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dcfl.comparisons.pairs import Pair, Pairs, Spread
from dcfl.config import as_tables
from dcfl.paper.recipe import REFERENCE, ROWS, Choice
from dcfl.paper.recipe_book import HARD, RECIPES
from dcfl.paper.reproduction_page import found_cells, order_table, split_name
from dcfl.paper.results import METRICS, Contest, MethodScore, figures, head_of
from dcfl.paper.scales import MINI
from dcfl.report.document import Table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    *(ROOT / "docs" / name for name in ("reproduction.md", "why.md", "pretrained.md")),
    *(RESULTS / name / "README.md" for name in ("reproduction", "side-head", "pretrained")),
    RESULTS / "course.md",
]
CHOSE = 0  # the seed at `mini` on which settings were chosen


@dataclass(frozen=True)
class Row:
    """A row of a recipe in one place, over its seeds."""

    block: str
    column: str
    row: str
    values: dict[str, dict[int, float]]  # by measure (max, ema, fluctuation) and seed
    gain: Pair | None  # of EMA, against FedAvg
    paper: Mapping[str, float]

    def spread(self, measure: str = "ema") -> Spread:
        return Spread.of(list(self.values[measure].values()))


def rows_of(recipe: str, without: Collection[int] = ()) -> list[Row]:
    """Of a recipe that may not have been run."""
    path = RESULTS / f"{recipe}-runs.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        runs = [run for run in csv.DictReader(stream) if int(run["seed"]) not in without]
    found: dict[tuple[str, str], dict[str, dict[str, dict[int, float]]]] = {}
    for run in runs:
        own = found.setdefault((run["block"], run["column"]), {}).setdefault(run["row"], {})
        for measure in (*METRICS, "fluctuation"):
            own.setdefault(measure, {})[int(run["seed"])] = float(run.get(measure) or "nan")
    made = []
    for (block, column), rows in found.items():
        reference = rows.get(REFERENCE) or found.get((block, ""), {}).get(REFERENCE)
        scores = {row: values["ema"] for row, values in rows.items()}
        pairs: dict[str, Pair] = {}
        if reference:
            both = Pairs.of({REFERENCE: reference["ema"], **scores}, REFERENCE)
            pairs = {pair.method: pair for pair in both.pairs}
        for row, values in rows.items():
            paper = figures(Path(recipe).name, row, block, column)
            made.append(Row(block, column, row, values, pairs.get(row), paper))
    return made


def interval_cell(pair: Pair | None) -> str:
    if pair is None:
        return "–"
    ends = pair.paired.interval
    mean = f"{pair.paired.spread.mean:+z.2f}"
    return f"{mean} ({ends[0]:+z.2f} to {ends[1]:+z.2f})" if ends else mean


def _p(pair: Pair | None) -> str:
    return "–" if pair is None or pair.p_value is None else f"{pair.p_value:.3f}"


def beside_the_paper(recipe: str, block: str, column: str) -> str:
    """MAX and EMA of one data set and split, with the paper's and the paired gain."""
    rows = [
        [
            one.row,
            str(one.spread().count),
            f"{one.spread('max')}",
            f"{one.paper['max']:.2f}" if one.paper else "–",
            f"{one.spread()}",
            f"{one.paper['ema']:.2f}" if one.paper else "–",
            interval_cell(one.gain),
            f"{one.gain.paired.wins} of {one.gain.paired.seeds}" if one.gain else "–",
            _p(one.gain),
            f"{one.spread('fluctuation').mean:.2f}",
        ]
        for one in rows_of(recipe)
        if (one.block, one.column) == (block, column)
    ]
    gains = ["EMA − FedAvg (95 %)", "wins", "p", "jumps"]
    return Table(["method", "seeds", "MAX", "paper", "EMA", "paper", *gains], rows).markdown()


def grid(recipe: str, value: str, metric: str = "ema", block: str = "cifar10") -> str:
    """Rows by columns: `value` is "ours" or "gain"."""

    def shown(one: Row) -> str:
        return f"{one.spread(metric)}" if value == "ours" else interval_cell(one.gain)

    here = [one for one in rows_of(recipe) if one.block == block]
    cells = {(one.row, one.column): shown(one) for one in here if value == "ours" or one.gain}
    columns = _in_order(column for _, column in cells)
    columns.sort(key=lambda column: float(column) if column[:1].isdigit() else 0.0)  # stable
    names = _in_order(name for name, _ in cells)
    rows = [[name, *(cells.get((name, column), "–") for column in columns)] for name in names]
    return Table(["", *(column or "–" for column in columns)], rows).markdown()


def search(recipe: str, block: str = "cifar10") -> str:
    """What a search found in each row, with its budget and edges."""
    tried: dict[str, dict[str, list[float]]] = {}
    for one in rows_of(recipe):
        if one.block == block and one.column:
            tried.setdefault(one.row, {})[one.column] = [*one.values["ema"].values()]
    kind = RECIPES[Path(recipe).name]
    rows = [
        [row, *found_cells(choice, kind)]
        for row, values in tried.items()
        if (choice := Choice.of(values))
    ]
    return Table([kind.columns, "trials", "seeds", "best", "at the edge"], rows).markdown()


def order(recipe: str) -> str:
    """In how many cells of `mini` each of the paper's inequalities holds."""
    contests: dict[tuple[str, str, str], Contest] = {}
    for metric in METRICS:
        for one in rows_of(recipe):
            if one.paper:
                plain = MINI.experiment(HARD, ROWS[one.row], 0, {}, {})
                score = MethodScore(
                    one.values[metric], one.paper[metric], head_of(as_tables(plain))
                )
                place = (one.block, one.column, metric)
                contests[place] = {**contests.get(place, {}), one.row: score}
    return order_table([*contests.values()]).markdown()


FIVE, ABLATION = "reproduction/participation-5", "reproduction/ablation"
SWAPPED, USUAL = "align=0.3 uniform=0.7", "align=0.9 uniform=0.1"
CLAIMS = (  # what is claimed, and where: recipe, column and row, and the seeds left out
    ("DCFL-PW above FedAvg, Dirichlet 0.3", FIVE, "0.3", "DCFL-PW", [CHOSE]),
    ("DCFL-SW above FedAvg, Dirichlet 0.3", FIVE, "0.3", "DCFL-SW", [CHOSE]),
    ("DCFL-PW above FedAvg, even split", FIVE, "iid", "DCFL-PW", [CHOSE]),
    ("DCFL-SW above FedAvg, even split", FIVE, "iid", "DCFL-SW", [CHOSE]),
    ("DCFL-PW above FedAvg, 2 %", ABLATION, "0.3", f"DCFL-PW {USUAL}", [CHOSE]),
    ("DCFL-SW above FedAvg, 2 %", ABLATION, "0.3", f"DCFL-SW {USUAL}", [CHOSE]),
    ("DCFL-PW with 0.3 and 0.7 below FedAvg, 2 %", ABLATION, "0.3", f"DCFL-PW {SWAPPED}", []),
    ("DCFL-SW with 0.3 and 0.7 below FedAvg, 2 %", ABLATION, "0.3", f"DCFL-SW {SWAPPED}", []),
    ("FedRCL above FedAvg, Dirichlet 0.3", FIVE, "0.3", "FedRCL", [CHOSE]),
    ("FedProc (side head) above FedAvg, Dirichlet 0.3", FIVE, "0.3", "FedProc", [CHOSE]),
    ("FedSCL (side head) above FedAvg, Dirichlet 0.3", FIVE, "0.3", "FedSCL", [CHOSE]),
    ("DCFL-PW (side head, 0.5, 0.5) above FedAvg", "side-head/weights", "0.5", "mu = 10", [CHOSE]),
    ("DCFL-PW level with FedAvg, pretrained", "pretrained/participation-5", "0.3", "DCFL-PW", []),
    ("DCFL-SW level with FedAvg, pretrained", "pretrained/participation-5", "0.3", "DCFL-SW", []),
)  # fmt: skip


def claims() -> str:
    """Each claim with the seeds behind it."""
    rows = []
    for claim, recipe, column, row, without in CLAIMS:
        (one,) = (one for one in rows_of(recipe, without) if (one.column, one.row) == (column, row))
        assert one.gain
        p_value = one.gain.paired.p_value
        rows.append(
            [
                claim,
                f"{one.gain.paired.seeds}{', fresh' if without else ''}",
                interval_cell(one.gain),
                "–" if p_value is None else f"{p_value:.3f}",
            ]
        )
    return Table(["claim", "seeds", "EMA − FedAvg (95 %)", "p"], rows).markdown()


NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}


PRETRAINED = {  # recipes and data sets that the scale has, by what their tables are called
    "CIFAR-10, 5 %": ("participation-5", "cifar10"),
    "CIFAR-100, 5 %": ("participation-5", "cifar100"),
    "Tiny-ImageNet, 5 %": ("tiny-imagenet", "tiny-imagenet"),
    "CIFAR-10, 10 %": ("participation-10", "cifar10"),
    "CIFAR-10, 2 %": ("participation-2", "cifar10"),
    "CIFAR-100, 10 %": ("participation-10", "cifar100"),
    "CIFAR-100, 2 %": ("participation-2", "cifar100"),
    "alignment against uniformity on CIFAR-10, 2 %": ("ablation", "cifar10"),
}


def pretrained() -> str:
    """The tables of what was run on pretrained features, and a sentence about what was not."""
    found = {
        title: [one for one in rows_of(f"pretrained/{recipe}") if one.block == block]
        for title, (recipe, block) in PRETRAINED.items()
    }
    tables = [f"**{title}**\n\n{gains(rows)}" for title, rows in found.items() if rows]
    missing = [title for title, rows in found.items() if not rows]
    sentence = [f"Not run: {'; '.join(missing)}."] if missing else []
    return "\n\n".join([*tables, *sentence])


def gains(here: list[Row]) -> str:
    """EMA of FedAvg and the paired differences to it with their intervals, by method and split."""
    columns = sorted(
        _in_order(one.column for one in here), key=lambda one: one != "iid" and -float(one)
    )
    cells = {
        (one.row, one.column): interval_cell(one.gain)
        if one.gain
        else f"{one.spread()} ({one.spread().count} seeds)"
        for one in here
    }
    names = _in_order(one.row for one in here)
    rows = [[name, *(cells.get((name, column), "–") for column in columns)] for name in names]
    return Table(["EMA", *map(split_name, columns)], rows).markdown()


def verdicts(*recipes: str) -> str:
    """For each data set and split, who is above FedAvg and who below, by the 95 % interval of the
    paired difference of EMA; of the others, how far from it they can be."""
    places: dict[tuple[str, str], list[Pair]] = {}
    for one in (row for recipe in recipes for row in rows_of(recipe)):
        if one.gain and one.gain.paired.interval:
            places.setdefault((one.block, one.column), []).append(one.gain)
    lines = [
        f"- **{NAMES[block]}, {split_name(column)}** ({standing_words(pairs)}."
        for (block, column), pairs in places.items()
    ]
    return "\n".join(lines)


def standing_words(pairs: list[Pair]) -> str:
    """How many seeds, and who is above FedAvg, below it, and level with it."""
    known = [pair for pair in pairs if pair.paired.interval]
    known.sort(key=lambda pair: -pair.paired.spread.mean)
    above = [pair for pair in known if _ends(pair)[0] > 0]
    below = [pair for pair in known if _ends(pair)[1] < 0]
    level = [pair for pair in known if pair not in above and pair not in below]
    level.sort(key=lambda pair: pair.paired.bound or 0.0)
    within = ", ".join(f"{pair.method} {pair.paired.bound:.2f}" for pair in level)
    parts = [
        f"{word} {', '.join(map(_named, found))}"
        for word, found in (("above FedAvg", above), ("below it", below))
        if found
    ]
    parts += [f"not told apart, and no farther from it than {within}"] if level else []
    seeds = sorted({pair.paired.seeds for pair in known})
    count = "–".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    return f"{count} seeds): {'; '.join(parts)}"


def _ends(pair: Pair) -> tuple[float, float]:
    assert pair.paired.interval
    return pair.paired.interval


def _named(pair: Pair) -> str:
    sure = "" if pair.told_apart else ", not after correction"
    return f"{pair.method} by {interval_cell(pair)[:-1]}{sure})"


DIGITS = {"accuracy": 1, "effective_rank": 1, "client_turn": 3, "turn": 3}


def course(measure: str, space: str = "") -> str:
    """One measure of the models in the course of training, by method: means over the seeds.
    `space`: "features" or "projection", for what is measured there."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in json.loads((RESULTS / "course.json").read_text(encoding="utf-8"))["runs"]:
        for moment in run["moments"]:
            if space and space not in moment["spaces"]:  # no head
                continue
            value = moment["spaces"][space][measure] if space else moment[measure]
            found.setdefault(run["row"], {}).setdefault(moment["round"], []).append(value)
    rounds = _in_order(number for own in found.values() for number in own)
    rows = [
        [name, *(f"{fmean(own[number]):z.{DIGITS.get(measure, 2)}f}" for number in rounds)]
        for name, own in found.items()
    ]
    return Table(["round", *map(str, rounds)], rows).markdown()


def cosines() -> str:
    """Mean cosines of test images in the features and in the head's output, over the seeds."""
    found: dict[str, dict[str, list[Any]]] = {}
    for one in json.loads((RESULTS / "cosines.json").read_text(encoding="utf-8")):
        found.setdefault(one["row"], {}).setdefault(one["space"], []).append(one)
    measures = {
        "intra": ("within", ".2f"),
        "inter": ("between", ".2f"),
        "overlap": ("overlap %", ".0f"),
    }
    spaces = {"features": "features", "projection": "head"}
    rows = [
        [
            row,
            *(
                f"{fmean(one[key] for one in own[space]):{shape}}" if space in own else "–"
                for space in spaces
                for key, (_, shape) in measures.items()
            ),
        ]
        for row, own in found.items()
    ]
    heads = [f"{space}: {name}" for space in spaces.values() for name, _ in measures.values()]
    return Table(["", *heads], rows).markdown()


def _in_order(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


MAKERS = (beside_the_paper, grid, search, pretrained, verdicts, order, claims, course, cosines)


def made_anew(page: Path, makers: Iterable[Callable[..., str]] = MAKERS) -> str:
    """The page as it is, with every `<!-- table: CALL -->` followed by what the call makes."""
    known: dict[str, Callable[..., str]] = {maker.__name__: maker for maker in makers}

    def made(match: re.Match[str]) -> str:
        call, *words = match[1].split()
        return f"<!-- table: {match[1]} -->\n{known[call](*words)}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", made, text, flags=re.S)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(made_anew(each), encoding="utf-8")
