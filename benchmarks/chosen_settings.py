"""What the stored searches found, as the scales read it: dcfl/paper/chosen.json.

    dcfl reproduce lr-search --scale pretrained ...      # writes lr-search-runs.csv
    dcfl reproduce mu-search --scale pretrained ...      # with the learning rate that won
    python benchmarks/chosen_settings.py [pretrained=FOLDER]   # another folder with those files

A test compares the file with the searches in benchmarks/results.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from dcfl.paper.recipe import ROWS, Choice
from dcfl.paper.scales import searched_key

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STORED = {"mini": RESULTS / "reproduction", "pretrained": RESULTS / "pretrained"}


def choices(file: Path) -> dict[tuple[str, str], Choice]:
    """By data set and row of a search."""
    tried: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if file.exists():
        with file.open(encoding="utf-8", newline="") as stream:
            for run in csv.DictReader(stream):
                if run["column"]:
                    tried[run["block"], run["row"]][run["column"]].append(float(run["ema"]))
    found = {place: Choice.of(emas) for place, emas in tried.items()}
    return {place: choice for place, choice in found.items() if choice}


def chosen(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for search in ("lr-search", "mu-search", "levels-search"):
        for (dataset, row), choice in choices(folder / f"{search}-runs.csv").items():
            method, _, level = row.partition(", ")
            keys = ["method.mu", "method.temperature"] if level else [searched_key(ROWS[method])]
            name = ", ".join(filter(None, [ROWS[method], level]))
            found.setdefault(dataset, {})[name] = {
                "settings": dict(zip(keys, choice.values, strict=True)),
                "trials": choice.trials,
                "seeds": choice.seeds,
                "at_edge": bool(choice.edges),
            }
    return found


if __name__ == "__main__":
    given = {
        scale: Path(folder) for scale, _, folder in (one.partition("=") for one in sys.argv[1:])
    }
    found = {scale: chosen(folder) for scale, folder in (STORED | given).items()}
    file = ROOT / "dcfl" / "paper" / "chosen.json"
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
