"""Draw docs/images/leads.svg: how far methods are ahead of FedAvg in the course of training.

    python -m benchmarks.lead_picture CELLS      # the folder `cells` of a reproduction
    python -m benchmarks.lead_picture            # from benchmarks/results/reproduction/leads.csv

EMA against FedAvg of the same seed, on CIFAR-10 with Dirichlet 0.3 at 5 % participation. The
picture is light or dark as the page is, like those of benchmarks/ideas.
"""

from __future__ import annotations

import csv
import sys
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.ideas.__main__ import colours
from dcfl.paper.recipe import REFERENCE, ROWS
from dcfl.paper.recipe_book import HARD
from dcfl.paper.scales import MINI
from dcfl.runs.folder import RecordedRun

ROOT = Path(__file__).parent.parent
LEADS = ROOT / "benchmarks" / "results" / "reproduction" / "leads.csv"
PICTURE = ROOT / "docs" / "images" / "leads.svg"
ON_A_HEAD = ("FedSCL", "FedProc")  # beside the classifier: dashed
SHOWN = {
    "FedSCL": "#0072b2",
    "FedProc": "#e69f00",
    "FedRCL": "#cc79a7",
    "DCFL-SW": "#d55e00",
    "DCFL-PW": "#009e73",
}
INK, CARD = "#000001", "#fffffe"  # stand for the colours of the page


def curve(cells: Path, row: str, seed: int) -> dict[int, float]:
    """EMA by round; none if the cell is not finished."""
    folder = cells / f"{HARD}-{ROWS[row]}-seed{seed}"
    if not (folder / "summary.json").exists():
        return {}
    rounds = RecordedRun.open(folder).rounds
    return {one.round: one.ema_accuracy for one in rounds if one.accuracy is not None}


def collect(cells: Path) -> None:
    lines = []
    for row in SHOWN:
        gains: dict[int, list[float]] = {}
        for seed in MINI.seeds:
            own, plain = (curve(cells, one, seed) for one in (row, REFERENCE))
            for number in own.keys() & plain.keys():
                gains.setdefault(number, []).append(own[number] - plain[number])
        for number, of_seeds in sorted(gains.items()):
            error = stdev(of_seeds) / len(of_seeds) ** 0.5
            lines.append([row, number, len(of_seeds), f"{fmean(of_seeds):.3f}", f"{error:.3f}"])
    with LEADS.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            [["row", "round", "seeds", "gain", "standard_error"], *lines]
        )


def draw() -> None:
    with LEADS.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    mpl.rcParams["svg.hashsalt"] = "leads"  # the same file every time
    marks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    mpl.rcParams.update({**dict.fromkeys(marks, INK), "axes.facecolor": CARD})
    figure = Figure((7, 3.2), layout="constrained", facecolor=CARD)
    axes = figure.subplots()
    axes.axhline(0, color="grey", linewidth=1)
    for row, colour in SHOWN.items():
        own = [line for line in lines if line["row"] == row]
        rounds = [int(line["round"]) for line in own]
        gains = [float(line["gain"]) for line in own]
        errors = [  # half of a 95 % interval
            float(t.ppf(0.975, int(line["seeds"]) - 1)) * float(line["standard_error"])
            for line in own
        ]
        low = [gain - error for gain, error in zip(gains, errors, strict=True)]
        high = [gain + error for gain, error in zip(gains, errors, strict=True)]
        dashes, label = ("--", f"{row}, head") if row in ON_A_HEAD else ("-", row)
        axes.plot(rounds, gains, dashes, color=colour, label=label)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="EMA − FedAvg, points")
    axes.legend(ncols=len(SHOWN), frameon=False, fontsize="small")
    drawn, (light, dark) = StringIO(), colours()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    style = f"svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    svg = drawn.getvalue().replace(INK, "var(--ink)").replace(CARD, "var(--card)")
    PICTURE.write_text(svg.replace("</style>", f"\n{style}</style>", 1), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    draw()
