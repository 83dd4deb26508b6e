"""`docs/audit.md`, from the measured errors and what is to be said about each difference."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "audit.json"
DIGITS = Path(__file__).parents[1] / "results" / "audit-digits.json"
PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
SAME = 1e-6  # relative; an equal formula leaves 1e-15 in float64, 1e-7 in float32
MATTERS = 1.0  # points of accuracy, and all seeds must agree in which way
TITLES = {
    "fedprox": "FedProx",
    "moon": "MOON",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "fedntd": "FedNTD",
    "fedlc": "FedLC",
    "fedrs": "FedRS",
    "fedsam": "FedSAM",
    "fedexp": "FedExP",
    "fednova": "FedNova",
    "fedbabu": "FedBABU",
    "ditto": "Ditto",
}

INTRODUCTION = """# The audit

Do two frameworks that offer the same method compute the same thing? Here the client code of
FL-bench, PFLlib, fluke and Flower's baselines is run on a small problem beside ours, for twelve
methods that they share with us, and its gradients are compared, number by number. Most are the
same to the last digits. Seven are not.

All get the same pictures, network (109 parameters, float64) and plain SGD. A client makes a
first visit from weights $A$; then it receives other weights $B$, so that what it remembers
counts. The gradient is read in the second step of a visit, where the client has moved away from
what it received, and held against ours at the same weights. *Error* is the length of the
difference relative to ours. *Moved* is the same for how far the second visit takes the weights:
what the server would notice. For FedExP and FedNova, which are the server's, it is how far four
replies of unequal size and steps take the server. Their files are run as they are, outside this
repository; [benchmarks/audit/](../benchmarks/audit/theirs.py) says how they are called.
"""

READING = """
The losses are in [audit.json](../benchmarks/results/audit.json). They differ where a term enters by
its gradient (FedProx in FL-bench and PFLlib, SCAFFOLD and Ditto in all) or is written up to a
constant (FedDyn), and the gradients do not.
"""

ON_DIGITS = """
What each does to a run was measured on the built-in digits, in the setting of `make run` with five
seeds. Theirs is there as mathematics: our method with the one formula below changed, and nothing
else ([digits.py](../benchmarks/audit/digits.py)). *Apart* is how far the server's weights are from
ours after the first round, relative to how far ours moved. It *matters* if all five seeds change in
the same direction, by a point of EMA or more on average. Elsewhere it may matter more, or less.
"""

# For each difference: theirs against the paper's as mathematics, and whether it matters.
DIFFERENCES = {
    ("FL-bench", "feddyn"): (
        r"L_{\mathrm{CE}} + \alpha \langle h_i - w_{\mathrm{received}}, w \rangle",
        r"L_{\mathrm{CE}} + \alpha \langle h_i - w_{\mathrm{received}}, w \rangle + "
        r"\frac{\alpha}{2} \lVert w \rVert^2",
        "The square is missing: in the authors' code it is part of SGD's weight decay, and "
        "FL-bench's default weight decay is 0. Without it nothing pulls back to the received "
        "weights, and the linear term pushes without end. With `optimizer.weight_decay` at "
        "alpha the formula is complete. What the clients and the server remember is right.",
    ),
    ("PFLlib", "feddyn"): (
        r"L_{\mathrm{CE}} + \alpha \langle h_i, w \rangle + "
        r"\frac{\alpha}{2} \lVert w - w_{\mathrm{received}} \rVert",
        r"L_{\mathrm{CE}} + \alpha \langle h_i, w \rangle + "
        r"\frac{\alpha}{2} \lVert w - w_{\mathrm{received}} \rVert^2",
        "The norm is not squared. The pull back then has the same length everywhere: too "
        "strong near the received weights, where training is, and too weak far away. The "
        "linear term, what clients remember and the server's step are right.",
    ),
    ("fluke", "feddyn"): (
        r"h_i \leftarrow h_i + \alpha \, (w_{\mathrm{received}} - w)",
        r"h_i \leftarrow h_i + w - w_{\mathrm{received}}",
        "The loss expects the second and gets the first: from a client's second visit on, the "
        "correction has the wrong sign and a factor alpha too much. First visits are right, "
        "so a short test does not show it.",
    ),
    ("PFLlib", "fedlc"): (
        r"\tau \big( \textstyle\sum_j n_{jc} \big)^{-1/4}",
        r"\tau \, n_{ic}^{-1/4}",
        "The margins are made of the images of all clients together, not of this client's. "
        "They do not know what the client lacks, and where the classes are balanced over all "
        "clients they are equal, which is FedAvg.",
    ),
    ("fluke", "fedsam"): (
        r"e_t = \rho \, \frac{g_t + g^{\mathrm{step}}_{t-1}}"
        r"{\lVert g_t + g^{\mathrm{step}}_{t-1} \rVert}",
        r"e_t = \rho \, \frac{g_t}{\lVert g_t \rVert}",
        "Gradients are not cleared between steps, so from the second step on the climb "
        "follows the sum of this step's gradient and the last one's. The descent itself uses "
        "the right gradient at that place. A mild effect.",
    ),
    ("fluke", "fednova"): (
        r"w \leftarrow \sum_i p_i \, \frac{\bar{a}}{a_i} \, w_i",
        r"w \leftarrow w + \bar{a} \sum_i p_i \, \frac{w_i - w}{a_i}",
        "The factors of the first sum to one only if all clients take equally many steps. "
        "Otherwise they sum to more, and the server's weights are scaled up in every round. The "
        "paper's factors weigh changes, not weights. The effective steps are right.",
    ),
    ("Flower baselines", "scaffold"): (
        r"c_i = w_{\mathrm{received}} \;\text{ before the first visit}",
        r"c_i = 0",
        "The first visit subtracts the weights themselves from every gradient, an error of "
        "several times the gradient. The variate that the client keeps afterwards is right "
        "again; but it sends the change of it, so the server's variate lacks the weights from "
        "then on.",
    ),
}

REMARKS = """## What is the same, and still worth knowing

- **MOON.** The loss is the authors' everywhere. They, and Flower's baseline, contrast the
  output of a projection head of two layers; FL-bench, PFLlib and fluke contrast what the
  classifier sees. Here both can be had: `model.head`, or `method.embedding = "features"`.
- **SCAFFOLD.** FL-bench's `local_epoch` counts batches for this method, not passes over the
  data.
- **FedLC.** FL-bench counts a class without images as $10^{-8}$, a margin of 100, which is as
  good as leaving it out.
- **FedRS.** As the paper has it, with fluke's config. Without a config, its client counts
  classes with one or two images as missing too.
- **FedProx.** The penalty has its factor 1/2 everywhere. Flower's own baseline fixes a weight
  decay of 0.001.
- **FedDyn.** The servers of FL-bench and PFLlib move as the authors' does. fluke's adds the mean
  over the round's clients instead of all clients. These were read, not run.

- **FedBABU.** FL-bench, PFLlib and fluke keep the classifier as it was, each in a way of its own:
  a zero gradient, or a frozen one. With FL-bench's zero gradient a weight decay would move it.
- **Ditto.** The clients' own models are compared; the shared one is FedAvg's.

Not compared, though more than one of them has it: CCVR of FL-bench and fluke, and the server
optimisers (FedAvgM, FedAdam and its kin) of FL-bench, fluke and Flower's baselines. PFLlib's FedPCL
was not either: ours trains and averages a classifier too, and is meant to differ
([FedPCL](methods/fedpcl.md)).

Your own version of a method can be held against ours: `dcfl check NAME --against FILE.py`.

## Ours and the authors'

What the authors' released code gave, on the same problem and over several rounds, is stored
with its commit in `tests/methods/oracles/`, and a test of each method is held against it. MOON
and FedDyn are in the table above as well. Where we differ on purpose, the page of the method
says so under *The paper, and where we differ*. In short:

- [FedDyn](methods/feddyn.md): one alpha for all clients; the code divides it by a client's
  share of the images.
- [FedExP](methods/fedexp.md): the server's weights are scored, not the mean of two rounds'.
- [FedRS](methods/fedrs.md): a bias, which the authors' classifier lacks, is scaled with its
  logit.
- [FedLC](methods/fedlc.md): the true class stays in the denominator, from which the printed
  formula leaves it out.
- [FedSAM](methods/fedsam.md), [FedASAM](methods/fedasam.md): running statistics move once a
  step.
- [SCAFFOLD](methods/scaffold.md): with momentum, the number of steps is the effective one.
"""


def page(rows: list[dict[str, Any]], effects: list[dict[str, Any]]) -> str:
    """From the errors of the visits, and from what each difference does on the digits."""
    order = {name: place for place, name in enumerate(TITLES)}
    rows = sorted(rows, key=lambda row: order[row["method"]])
    table = "\n".join(
        [
            "| method | whose | file | error, first visit | error, second visit | moved |",
            "|---|---|---|---|---|---|",
            *(_line(row) for row in rows),
        ]
    )
    found = {(row["framework"], row["method"]) for row in rows if not same(row)}
    if found != DIFFERENCES.keys():
        raise SystemExit(f"to be told, or no longer true: {sorted(found ^ DIFFERENCES.keys())}")
    effect = {(one["framework"], one["method"]): _effect(one) for one in effects}
    told = [
        _difference(row, effect[row["framework"], row["method"]]) for row in rows if not same(row)
    ]
    parts = [INTRODUCTION, table, READING, "## The differences", ON_DIGITS, *told, REMARKS]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def same(row: dict[str, Any]) -> bool:
    return all(row.get(key, 0.0) < SAME for key in ("first", "second", "moved"))


def _line(row: dict[str, Any]) -> str:
    errors = [row.get(key) for key in ("first", "second", "moved")]
    shown = ["" if e is None else "same" if e < SAME else f"**{e:.2f}**" for e in errors]
    cells = [TITLES[row["method"]], row["framework"], _link(row["files"][0], row), *shown]
    return f"| {' | '.join(cells)} |"


def _effect(one: dict[str, Any]) -> str:
    """What differs on the digits after a round and after the run, and whether it matters."""
    pairs = list(zip(one["ours"], one["theirs"], strict=True))
    apart = mean(one["apart"])
    said = "The first round is the same" if apart < SAME else f"{apart:.2g} apart after a round"
    lost = sum(theirs is None for _, theirs in pairs)
    if lost:
        return f"**On the digits:** {said}; {lost} of {len(pairs)} runs diverge: it matters."
    differences = [theirs - ours for ours, theirs in pairs]
    ours, theirs = (mean(values) for values in zip(*pairs, strict=True))
    one_way = min(differences) > 0 or max(differences) < 0
    matters = one_way and abs(mean(differences)) >= MATTERS
    return (
        f"**On the digits:** {said}; EMA {theirs:.2f} % instead of {ours:.2f} % after the run "
        f"({mean(differences):+.2f} ± {stdev(differences):.2f} points): "
        f"{'it matters' if matters else 'it does not matter here'}."
    )


def _difference(row: dict[str, Any], effect: str) -> str:
    theirs, paper, said = DIFFERENCES[row["framework"], row["method"]]
    files = ", ".join(_link(file, row) for file in row["files"])
    return (
        f"### {TITLES[row['method']]} in {row['framework']}\n\n"
        f"$$\n\\text{{theirs: }} {theirs}\n$$\n\n$$\n\\text{{the paper's: }} {paper}\n$$\n\n"
        f"{said} ({files})\n\n{effect}"
    )


def _link(file: str, row: dict[str, Any]) -> str:
    address = f"https://github.com/{row['repository']}/blob/{row['commit']}/{file}"
    return f"[{file.split('/')[-1]}]({address})"
