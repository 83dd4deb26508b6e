"""Draw docs/images/course.svg: the models of docs/why.md in the course of training.

python benchmarks/course_picture.py      # from benchmarks/results/course.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
COURSE = ROOT / "benchmarks" / "results" / "course.json"
PICTURE = ROOT / "docs" / "images" / "course.svg"
SHOWN = {  # with a side head: dashed
    "FedAvg": ("#000000", "-"),
    "DCFL-SW": ("#d55e00", "-"),
    "DCFL-PW": ("#009e73", "-"),
    "DCFL-SW, side head": ("#d55e00", "--"),
    "DCFL-PW, side head": ("#009e73", "--"),
    "FedProc, side head": ("#e69f00", "--"),
}
PANELS = {  # title: space (empty: none) and measure
    "cosine between classes, features": ("features", "inter"),
    "cosine between classes, head's output": ("projection", "inter"),
    "dimensions in use, features": ("features", "effective_rank"),
    "turn of features in a client": ("", "client_turn"),
    "cosine between clients' updates": ("", "update_cosine"),
    "accuracy, %": ("", "accuracy"),
}


def values(run: dict[str, Any], space: str, measure: str) -> tuple[list[int], list[float]]:
    """The rounds, and what was measured in them."""
    known = [one for one in run["moments"] if not space or space in one["spaces"]]
    found = [(one["spaces"][space] if space else one)[measure] for one in known]
    return [one["round"] for one in known], found


def draw() -> None:
    runs = {run["row"]: run for run in json.loads(COURSE.read_text(encoding="utf-8"))["runs"]}
    mpl.rcParams["svg.hashsalt"] = "course"  # the same file every time
    figure = Figure((8, 4.6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True).flat
    for axes, (title, (space, measure)) in zip(panels, PANELS.items(), strict=True):
        for row, (colour, dashes) in SHOWN.items():
            axes.plot(*values(runs[row], space, measure), dashes, color=colour, label=row)
        axes.set_title(title, fontsize="small")
        axes.tick_params(labelsize="small")
        axes.set_xlabel("round", fontsize="small")
        axes.label_outer()
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        lines, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
    )
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    draw()
