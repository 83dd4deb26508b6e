"""Put the measured tables into docs/speed.md, between the marks that name them.

    python scripts/speed_page.py

A test compares the page with what this makes, so that its figures are those of benchmarks/results/.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from dcfl.studies.bench.measure import Measurement
from dcfl.studies.bench.measurements import from_json, methods_table, spread, table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"


def _stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _jobs() -> str:
    """Ratios are taken within a repeat; of start-up and memory, the medians."""
    rows = []
    for job, measured in from_json(_stored("jobs")).items():
        for name, each in measured.items():
            one_core = name.endswith("1 core")
            floor = measured["floor, 1 core" if one_core else "floor"]
            pfl = each if one_core else measured["pfl, 2 processes"]
            rows.append(
                [
                    job,
                    name,
                    spread(one.round for one in each),
                    _ratio(each, floor),
                    _ratio(each, pfl),
                    f"{median(one.start_up for one in each):.2f}",
                    f"{median(one.pss for one in each):.2f}",
                ]
            )
    header = ["", "", "s / round", "/ floor", "/ pfl", "start-up s", "peak GB"]
    return table(header, rows)


def _ratio(each: list[Measurement], others: list[Measurement]) -> str:
    if each is others:
        return ""
    return spread(one.round / other.round for one, other in zip(each, others, strict=True))


def _growth() -> str:
    rows = [
        [
            name,
            spread(one["milliseconds_per_client"] for one in each),
            spread(one["pss"] for one in each),
        ]
        for name, each in _stored("growth")["trained"].items()
    ]
    return table(["clients a round", "ms / client", "peak GB"], rows)


def _memories() -> str:
    rows = [
        [
            name,
            ", ".join(f"{seconds:.1f}" for seconds in one["seconds"]),
            f"{one['peak_gigabytes']:.2f}",
            f"{one['gigabytes_on_disk']:.2f}",
        ]
        for name, one in _stored("memories")["budgets"].items()
    ]
    return table(["memories", "s / round", "peak GB", "GB on disk"], rows)


def _soak() -> str:
    found = _stored("soak")
    memory = [one["pss_megabytes"] for one in found["seen"]]
    rows = [
        ["rounds", f"{found['rounds']:,} in {found['seconds']:.0f} s"],
        ["memory, MB", f"{median(memory):.0f} ({min(memory):.0f} to {max(memory):.0f})"],
        ["slope, MB per 100 rounds", f"{found['megabytes_per_100_rounds']:.2f}"],
        [
            "descriptors, threads, files in the run folder",
            "constant" if found["steady"] else "grow",
        ],
    ]
    return table(["soak", ""], rows)


def _evaluation() -> str:
    found = _stored("evaluation-cnn")["seconds"]
    ratios = [a / b for a, b in zip(found["with evaluation"], found["without"], strict=True)]
    rows = [[name, spread(seconds)] for name, seconds in found.items()]
    return table(["cnn, s / round", ""], [*rows, ["ratio", spread(ratios)]])


TABLES = {
    "jobs": _jobs,
    "methods-cnn": lambda: methods_table(_stored("methods-cnn")["models"]),
    "methods-resnet18": lambda: methods_table(_stored("methods-resnet18")["models"]),
    "startup": lambda: table(
        ["", "seconds"], [[k, spread(v)] for k, v in _stored("startup")["seconds"].items()]
    ),
    "growth": _growth,
    "evaluation": _evaluation,
    "memories": _memories,
    "soak": _soak,
}


def _plain(text: str) -> str:
    """A single value without its spread, in a column as wide as before."""
    return re.sub(r"(\d+\.\d\d) \(\1 to \1\)", lambda found: found[1].ljust(len(found[0])), text)


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        mark = f"<!-- {name} -->"
        text, count = re.subn(
            f"{mark}.*?{mark}", f"{mark}\n\n{_plain(made())}\n\n{mark}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"docs/speed.md must hold one pair of {mark}")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
