"""Put the measured tables into docs/reproduction.md, why.md and pretrained.md, between the marks
that name them.

    dcfl reproduce NAME ... --out FOLDER      # writes FOLDER/NAME.csv and NAME-runs.csv
    python benchmarks/course.py ...           # writes benchmarks/results/course.json
    python benchmarks/reproduction_page.py       # from the copies in benchmarks/results/

A test compares the pages with what this makes.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from dcfl.paper.reproduction_page import order_table
from dcfl.paper.results import CLAIMS, Contests, MethodScore, Place, checks, figures
from dcfl.report.document import Table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / name for name in ("reproduction.md", "why.md", "pretrained.md")]
RESULTS = ROOT / "benchmarks" / "results"

Row = dict[str, str]


def _rows(recipe: str) -> list[Row]:
    with (RESULTS / f"{recipe}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _number(text: str, sign: str = "") -> str:
    return f"{float(text):{sign}.2f}" if text else "–"


def _spread(row: Row, value: str, deviation: str, sign: str = "") -> str:
    shown = _number(row[value], sign)
    return f"{shown} ± {_number(row[deviation])}" if row[deviation] else shown


def beside_the_paper(recipe: str, block: str, column: str) -> str:
    """MAX and EMA of one data set and split, with the paper's and the paired gain."""
    here = [row for row in _rows(recipe) if (row["block"], row["column"]) == (block, column)]
    ema = {row["row"]: row for row in here if row["metric"] == "ema"}
    best = {row["row"]: row for row in here if row["metric"] == "max"}
    rows = [
        [
            name,
            row["seeds"],
            _spread(best[name], "ours", "deviation"),
            _number(best[name]["paper"]),
            _spread(row, "ours", "deviation"),
            _number(row["paper"]),
            _interval(row),
            f"{row['wins']} of {row['pairs']}" if row["pairs"] else "–",
            f"{float(row['p']):.2f}" if row["p"] else "–",
            _number(row["fluctuation"]),
        ]
        for name, row in ema.items()
    ]
    gains = ["EMA − FedAvg (95 %)", "wins", "p"]
    columns = ["method", "seeds", "MAX", "paper", "EMA", "paper", *gains, "jumps"]
    return Table(columns, rows).markdown()


def _interval(row: Row) -> str:
    if not row["gain_low"]:
        return _number(row["gain"], "+")
    low, high = (_number(row[key], "+") for key in ("gain_low", "gain_high"))
    return f"{_number(row['gain'], '+')} ({low} to {high})"


DIGITS = {"accuracy": 1, "effective_rank": 1, "client_turn": 3, "turn": 3}


def grid(recipe: str, value: str, metric: str = "ema", block: str = "cifar10") -> str:
    """Rows by columns: `value` is "ours" or "gain"."""
    here = [row for row in _rows(recipe) if row["metric"] == metric and row["block"] == block]
    columns = _in_order(row["column"] for row in here if row[value])
    columns.sort(key=lambda column: float(column) if column[:1].isdigit() else 0.0)  # stable
    deviation = "deviation" if value == "ours" else "gain_deviation"
    sign = "+" if value == "gain" else ""
    cells = {
        (row["row"], row["column"]): _spread(row, value, deviation, sign)
        for row in here
        if row[value]
    }
    names = _in_order(name for name, _ in cells)
    rows = [[name, *(cells.get((name, column), "–") for column in columns)] for name in names]
    return Table(["", *(column or "–" for column in columns)], rows).markdown()


def contests(recipe: str) -> Contests:
    """From every run's own figures, which are in NAME-runs.csv."""
    found: dict[Place, dict[str, dict[int, float]]] = {}
    for run in _rows(f"{recipe}-runs"):
        for metric in ("max", "ema"):
            place = (Path(recipe).name, run["block"], run["column"], metric)
            own = found.setdefault(place, {}).setdefault(run["row"], {})
            own[int(run["seed"])] = float(run[metric])
    return {
        (table, block, column, metric): {
            row: MethodScore(own, getattr(paper, metric))
            for row, own in rows.items()
            if (paper := figures(table, row, block, column))
        }
        for (table, block, column, metric), rows in found.items()
    }


def order(recipe: str) -> str:
    """In how many cells each of the paper's inequalities holds."""
    table = order_table(contests(recipe))
    return Table(table.columns, table.rows[: len(checks(CLAIMS, contests(recipe)))]).markdown()


NOT_RUN = "*Not run yet.*"
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}


def _ema(recipe: str) -> list[Row]:
    """The rows of EMA, of a recipe that may not have been run."""
    if not (RESULTS / f"{recipe}.csv").exists():
        return []
    return [row for row in _rows(recipe) if row["metric"] == "ema"]


def _split(column: str) -> str:
    return "IID" if column == "iid" else f"Dirichlet {column}"


def gains(recipe: str, block: str) -> str:
    """EMA of FedAvg and the paired differences to it with their intervals, by method and split."""
    here = [row for row in _ema(recipe) if row["block"] == block]
    if not here:
        return NOT_RUN
    columns = sorted(
        _in_order(row["column"] for row in here), key=lambda one: one != "iid" and -float(one)
    )
    cells = {(row["row"], row["column"]): row for row in here}
    rows = []
    for name in _in_order(row["row"] for row in here):
        own = [cells.get((name, column)) for column in columns]
        if name == "FedAvg":
            shown = [
                row and f"{_spread(row, 'ours', 'deviation')} ({row['seeds']} seeds)" for row in own
            ]
        else:
            shown = [row and _interval(row) for row in own]
        rows.append([name, *(text or "–" for text in shown)])
    return Table(["EMA", *map(_split, columns)], rows).markdown()


def verdicts(recipe: str) -> str:
    """For each data set and split, who is above FedAvg and who below: by the 95 % interval of the
    paired difference of EMA, alone and corrected for the methods of the place (Holm)."""
    places: dict[tuple[str, str], list[Row]] = {}
    for row in _ema(recipe):
        if row["gain_low"]:
            places.setdefault((row["block"], row["column"]), []).append(row)
    lines = []
    for (block, column), rows in places.items():
        rows.sort(key=lambda row: -float(row["gain"]))
        above = [row for row in rows if float(row["gain_low"]) > 0]
        below = [row for row in rows if float(row["gain_high"]) < 0]
        level = [row["row"] for row in rows if row not in above and row not in below]
        seeds = _in_order(row["pairs"] for row in rows)
        parts = [
            f"{word} {', '.join(_named(row) for row in found)}"
            for word, found in (("above FedAvg", above), ("below it", below))
            if found
        ]
        if level:
            parts.append(f"not told apart from it {', '.join(level)}")
        count = f"{'–'.join((seeds[0], seeds[-1])) if len(seeds) > 1 else seeds[0]} seeds"
        lines.append(f"- **{NAMES[block]}, {_split(column)}** ({count}): {'; '.join(parts)}.")
    return "\n".join(lines) or NOT_RUN


def _named(row: Row) -> str:
    sure = "" if not row["p"] or float(row["p"]) < 0.05 else ", not after correction"
    low, high = (_number(row[key], "+") for key in ("gain_low", "gain_high"))
    return f"{row['row']} by {_number(row['gain'], '+')} ({low} to {high}{sure})"


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


def made_anew(page: Path) -> str:
    """The page as it is, with every `<!-- table: CALL -->` followed by what the call makes."""
    makers = (beside_the_paper, grid, gains, verdicts, order, course, cosines)
    known: dict[str, Callable[..., str]] = {maker.__name__: maker for maker in makers}

    def made(match: re.Match[str]) -> str:
        call, *words = match[1].split()
        return f"<!-- table: {match[1]} -->\n{known[call](*words)}\n<!-- end -->"

    text = page.read_text(encoding="utf-8")
    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", made, text, flags=re.S)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(made_anew(each), encoding="utf-8")
