"""The paper's own figures."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

# The paper's order of the methods, as inequalities: left < right in most cells of its tables.
CLAIMS = (
    ("FedSCL", "FedRCL"),
    ("FedRCL", "FedAvg"),
    ("FedAvg", "FedProc"),
    ("FedProc", "DCFL-PW"),
    ("FedAvg", "DCFL-PW"),
    ("FedAvg", "DCFL-SW"),
)
ACCURACY_TABLES = ("participation-5", "participation-10", "participation-2", "tiny-imagenet")


class Figures(NamedTuple):
    max: float
    ema: float


@cache
def published() -> dict[str, Any]:
    file = resources.files("dcfl.studies.recipes") / "published.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


def figures(table: str, row: str, dataset: str, split: str) -> Figures | None:
    """None where the paper has no such cell."""
    tables = published()["tables"]
    cell = tables.get(table, {}).get(row, {}).get(dataset, {}).get(split)
    return Figures(**cell) if cell else None


def papers_mu(row: str, dataset: str) -> str:
    """Empty where the paper gives none."""
    method = "dcfl" if row.startswith("DCFL") else row.lower()
    mu = published()["mu"].get(method, {}).get(dataset)
    return "" if mu is None else f"{mu:g}"
