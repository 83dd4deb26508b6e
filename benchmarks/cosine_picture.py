"""Draw docs/images/cosines.svg: how alike test images of a class are, and of different classes.

    python benchmarks/cosine_picture.py CELLS    # the folder `cells` of a reproduction
    python benchmarks/cosine_picture.py          # from benchmarks/results/cosines.json

The paper's figure, for models of the `mini` scale at the end of training: CIFAR-10 with Dirichlet
0.3 at 5 % participation. The picture shows the first seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dcfl.analysis.findings import Analysis, analyse_runs
from dcfl.paper.recipe_book import HARD
from dcfl.runs.folder import RecordedRun

ROOT = Path(__file__).parent.parent
COSINES = ROOT / "benchmarks" / "results" / "cosines.json"
PICTURE = ROOT / "docs" / "images" / "cosines.svg"
SHOWN = {  # cells, without their seeds
    "FedAvg": "fedavg-head-side256",
    "DCFL-PW": "dcfl-pw",
    "DCFL-PW, side head": "dcfl-pw-head-side256",
    "the same, 0.5 and 0.5": "dcfl-pw-head-side256-mu10-align0.5-uniform0.5",
    "FedProc, side head": "fedproc-head-side256",
}
SPACES = {"features": "features", "projection": "head's output"}
SEEDS = (0, 1, 2)
COLOURS = {"intra": ("#0072b2", "same class"), "inter": ("#d55e00", "different classes")}


def measured(row: str, seed: int, analysis: Analysis) -> dict[str, Any]:
    means = {kind: round(cosines.mean, 4) for kind, cosines in analysis.kinds}
    found = {"row": row, "seed": seed, "space": analysis.embedding, **means}
    found["overlap"] = round(100 * analysis.similarity.overlap, 2)
    if seed == SEEDS[0]:
        found["density"] = {
            kind: np.round(cosines.density, 3).tolist() for kind, cosines in analysis.kinds
        }
    return found


def collect(cells: Path) -> None:
    """What the file has already is not measured again."""
    found = json.loads(COSINES.read_text(encoding="utf-8")) if COSINES.exists() else []
    have = {(one["row"], one["seed"]) for one in found}
    for row, name in SHOWN.items():
        for seed in SEEDS:
            if (row, seed) not in have:
                run = RecordedRun.open(cells / f"{HARD}-{name}-seed{seed}")
                found += [measured(row, seed, one) for one in analyse_runs([run], drift=False)]
    found.sort(key=lambda one: (one["seed"], list(SHOWN).index(one["row"])))
    COSINES.write_text(json.dumps(found) + "\n", encoding="utf-8")


def draw() -> None:
    found = json.loads(COSINES.read_text(encoding="utf-8"))
    shown = {(one["row"], one["space"]): one for one in found if "density" in one}
    mpl.rcParams["svg.hashsalt"] = "cosines"  # the same file every time
    figure = Figure((10, 4), layout="constrained")
    panels = figure.subplots(len(SPACES), len(SHOWN), sharex=True)
    for line, (space, label) in zip(panels, SPACES.items(), strict=True):
        for axes, row in zip(line, SHOWN, strict=True):
            if (row, space) not in shown:  # no head
                axes.set_axis_off()
                continue
            one = shown[row, space]
            for kind, (colour, name) in COLOURS.items():
                density = np.reshape(one["density"][kind], (-1, 2)).mean(axis=1)
                middles = np.linspace(-1, 1, len(density), endpoint=False) + 1 / len(density)
                axes.fill_between(middles, density, color=colour, alpha=0.45, lw=0, label=name)
            axes.set_title(f"{row}\n{one['overlap']:.0f} % overlap", fontsize="small")
            axes.set(yticks=[], ylim=(0, None))
        line[0].set_ylabel(label)
    panels[0][0].legend(frameon=False, fontsize="x-small", loc="upper left")
    figure.supxlabel("cosine", fontsize="small")
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    draw()
