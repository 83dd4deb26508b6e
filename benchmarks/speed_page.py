"""Put the measured tables into docs/speed.md, between the marks that name them.

    python benchmarks/speed_page.py

A test compares the page with what this makes, so that its figures are those of benchmarks/results/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.bench.measure import Measurement, from_json, methods_table, spread, table
from dcfl.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "images" / "speed.png"
RESULTS = ROOT / "benchmarks" / "results"
COLOURS = {
    "floor": "#9aa0a6",
    "dcfl": "#1a73e8",
    "dcfl, bfloat16": "#174ea6",
    "pfl, 2 processes": "#e8710a",
    "flower": "#f9ab00",
}


def _stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _jobs() -> str:
    """Ratios are taken within a repeat; of start-up and memory, the medians."""
    rows = []
    for job, measured in from_json(_stored("jobs")).items():
        for name, each in measured.items():
            rows.append(
                [
                    job,
                    name,
                    spread(one.round for one in each),
                    _ratio(each, measured["floor"]),
                    _ratio(each, measured["pfl, 2 processes"]),
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


T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t for 95 %, by the number of pairs


def _precision() -> str:
    """EMA in float32, and the paired difference of bfloat16 with its 95 % interval."""
    runs = _stored("precision")["runs"]
    ema = {(r["dataset"], r["method"], r["seed"], r["precision"]): r["ema"] for r in runs}
    rows, header = [[method] for method in _measured(ema)], ["method"]
    for dataset, title in {"digits": "digits", "cifar10": "CIFAR-10"}.items():
        seeds = _complete_seeds(dataset, ema)
        header += [f"{title}, {len(seeds)} seeds", "bfloat16 - float32"]
        for row in rows:
            single = [ema[dataset, row[0], seed, "float32"] for seed in seeds]
            half = [ema[dataset, row[0], seed, "bfloat16"] for seed in seeds]
            apart = [b - a for a, b in zip(single, half, strict=True)]
            wide = T_95[len(seeds)] * stdev(apart) / sqrt(len(seeds))
            row += [f"{mean(single):.2f}", f"{mean(apart):+.2f} ± {wide:.2f}"]
    return table(header, rows)


def _complete_seeds(dataset: str, known: Collection[tuple[str, str, int, str]]) -> list[int]:
    """Those with a run of every measured method in both precisions."""
    kinds = [(method, kind) for method in _measured(known) for kind in ("float32", "bfloat16")]
    return [
        seed
        for seed in range(5)
        if all((dataset, method, seed, kind) in known for method, kind in kinds)
    ]


def _measured(known: Collection[tuple[str, str, int, str]]) -> list[str]:
    """The methods with any run, in their usual order."""
    return [name for name in METHODS if any(method == name for _, method, _, _ in known)]


def _estimate() -> str:
    rows = [
        [
            name,
            f"{one['estimated_seconds']:.1f}",
            f"{one['seconds']:.1f}",
            f"{one['estimated_seconds'] / one['seconds'] - 1:+.0%}",
            f"{one['estimated_bytes'] / one['bytes'] - 1:+.0%}",
        ]
        for name, one in _stored("estimate")["runs"].items()
    ]
    return table(["run", "estimate, s", "truth, s", "time", "memory"], rows)


def picture() -> None:
    """Time of a round relative to the bare training steps, for each job and program."""
    jobs = from_json(_stored("jobs"))
    names = list(next(iter(jobs.values())))
    figure, axes = plt.subplots(figsize=(7.2, 2.6), layout="constrained")
    for place, name in enumerate(names):
        ratios = [
            median(a.round / b.round for a, b in zip(by[name], by["floor"], strict=True))
            for by in jobs.values()
        ]
        heights = [job + place * 0.16 for job in range(len(jobs))]
        bars = axes.bar(heights, ratios, 0.15, label=name, color=COLOURS[name])
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks([job + 0.32 for job in range(len(jobs))], list(jobs))
    axes.set_ylabel("time of a round / floor")
    axes.legend(
        frameon=False, fontsize=8, ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=150)


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
    "precision": _precision,
    "estimate": _estimate,
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
    picture()
    print(f"wrote {PAGE.relative_to(ROOT)}")
