"""The winners of the stored searches at the scale `pretrained`, as the scale reads them.

    dcfl reproduce lr-search --scale pretrained ...      # writes lr-search-runs.csv
    dcfl reproduce mu-search --scale pretrained ...      # with the learning rate that won
    python benchmarks/chosen_settings.py [FOLDER [FILE]]   # FOLDER/*-search-runs.csv -> chosen.json

A test compares dcfl/paper/chosen.json with the searches in benchmarks/results/pretrained.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from dcfl.paper.recipe import ROWS
from dcfl.paper.scales import PRETRAINED

ROOT = Path(__file__).parent.parent
STORED = ROOT / "benchmarks" / "results" / "pretrained"


def winners(file: Path) -> dict[tuple[str, str], float]:
    """By data set and row, the value with the highest mean EMA over the seeds, all of which it
    survived."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if file.exists():
        with file.open(encoding="utf-8", newline="") as stream:
            for run in csv.DictReader(stream):
                if run["column"]:
                    found[run["block"], run["row"]][run["column"]].append(float(run["ema"]))
    seeds = len(PRETRAINED.search_seeds)
    return {
        place: float(max(tried, key=lambda one: (len(tried[one]) == seeds, fmean(tried[one]))))
        for place, tried in found.items()
    }


def chosen(folder: Path = STORED) -> dict[str, Any]:
    settings: dict[str, Any] = {
        dataset: {"lr": best, "methods": {}}
        for (dataset, _), best in winners(folder / "lr-search-runs.csv").items()
    }
    for (dataset, row), best in winners(folder / "mu-search-runs.csv").items():
        field = "rho" if row == "FedSOL" else "mu"
        settings[dataset]["methods"][ROWS[row]] = {field: best}
    return settings


if __name__ == "__main__":
    given = dict(enumerate(map(Path, sys.argv)))
    file = given.get(2, ROOT / "dcfl" / "paper" / "chosen.json")
    file.write_text(json.dumps(chosen(given.get(1, STORED)), indent=1) + "\n", encoding="utf-8")
