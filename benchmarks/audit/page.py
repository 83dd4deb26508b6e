"""`docs/audit.md`, from the measured errors and what is to be said about each difference."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dcfl.methods import METHODS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "audit.json"
DIGITS = ROOT / "benchmarks" / "results" / "audit-digits.json"
AUTHORS = ROOT / "benchmarks" / "results" / "oracle-errors.json"
ZOO = ROOT / "benchmarks" / "results" / "zoo"
ORACLES = ROOT / "tests" / "methods" / "oracles"
PAGE = ROOT / "docs" / "audit.md"
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
FL-bench, PFLlib, fluke and Flower's baselines runs on a small problem beside ours, for twelve of
the methods that they share with us ([those not compared](#not-compared)). The gradients are
compared number by number. Most are the same to the last digits. Seven are not.

All get the same pictures, network (109 parameters, float64) and plain SGD. A client makes a
first visit, starting from weights $A$. Then it receives other weights $B$, so that what it
remembers matters. The gradient is read in the second step of each visit, when the client has left
the weights it received, and compared with ours at the same weights. *Error* is the length of the
difference relative to ours. *Moved* is the same for the change of the weights in the second visit,
which is what the server would notice. FedExP and FedNova act on the server; for them it is the
change of the server's weights by four replies of unequal size and steps. The files run unchanged,
outside this repository; [benchmarks/audit/](../benchmarks/audit/theirs.py) says how they are
called.
"""

READING = """
The values of the losses are in [audit.json](../benchmarks/results/audit.json). Some differ although
the gradients agree: where a framework adds a term to the gradient only (FedProx in FL-bench and
PFLlib, SCAFFOLD and Ditto in all), or leaves out a constant (FedDyn).
"""

ON_DIGITS = """
What each does to a run was measured on the built-in digits, in the setting of `make run` with five
seeds. *Theirs* is our method with only the one formula below changed
([digits.py](../benchmarks/audit/digits.py)). *Apart* is how far the server's weights are from
ours after the first round, relative to how far ours moved. A difference *matters* if all five seeds
change in the same direction, by a point of EMA or more on average. On other data it may matter
more, or less.
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
        "The margins come from the class counts of all clients together, not of this client. "
        "So they do not depend on what the client lacks, and where the classes are balanced over "
        "all clients they are equal, which is FedAvg.",
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
        "In its first visit a client subtracts the weights themselves from every gradient, an "
        "error several times the gradient. The variate that it keeps afterwards is right; but it "
        "sends the change of its variate, so the server's is wrong by the weights from then on.",
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
- **FedBABU.** FL-bench, PFLlib and fluke all keep the classifier as it was, by a zero gradient or
  by freezing it. With FL-bench's zero gradient a weight decay would move it.
- **Ditto.** The clients' own models are compared; the shared one is FedAvg's.

## Not compared

These are in other frameworks too, but their versions were not run:

- APFL, FedALA, FedBN, FedPer, FedProto, FedRep, FedRoD, LG-FedAvg, Per-FedAvg and pFedMe, which
  FL-bench, PFLlib and fluke have; Flower's baselines have FedPer, FedRep and FedBN;
- CCVR, in FL-bench and fluke;
- the server optimisers (FedAvgM, FedAdam and its kin), in FL-bench, fluke and Flower's baselines;
- FedPCL, in PFLlib: ours also trains and averages a classifier, and is meant to differ
  ([FedPCL](methods/fedpcl.md)).

Nothing is known about these, good or bad. Most of ours are compared with their authors' code below.
To compare your own version of a method with ours, use `dcfl check NAME --against FILE.py`.

"""

OURS = """## Ours and the authors'

What the authors' released code computes on the same problem is stored with its commit in
`tests/methods/oracles/`, and the tests compare each method with it. The errors are the largest of
all these comparisons, relative to the authors' numbers. About 1e-16 is the rounding of float64.
Where they are 1e-9 to 1e-7, the authors' code or a message of ours is in float32, or their code
adds a small constant (FedSpeed). [oracle_errors.py](../benchmarks/oracle_errors.py) collects them.
"""

WHERE_WE_DIFFER = """
*Lines* are those of a method's file. FedSAM and FedASAM share one, and so do FedRS and FedLC, FedDC
and FedSpeed, FedExP and FedDisco, and FedRep, FedPer and LG-FedAvg. FedRep's row is for all three.
*Check* is how many properties of `dcfl check` hold. *Digits* is EMA minus FedAvg's in the setting
of `make run`, with three seeds; methods with a model per client are not judged by it.

FedCM's, CCVR's and Per-FedAvg's authors released no code, so theirs is the code that others
published. FedLC, FedRoD, FedBN and the first twelve methods of [the list](methods.md) have no row:
tests compare their losses with transcribed equations, and three of them are in the first table.

Where we differ from the authors on purpose, the page of the method says so under *The paper, and
where we differ*. In short:

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
- [FedGen](methods/fedgen.md): on the server, each loss meets its own client's weight; in the code
  every loss of a batch meets every weight. For the comparison this was corrected.
- [FedPAC](methods/fedpac.md): the shares of classifiers are solved for exactly; so they were for
  the comparison.
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
    parts += [OURS, authors(json.loads(AUTHORS.read_text())), WHERE_WE_DIFFER]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def authors(found: dict[str, Any]) -> str:
    """A row for each method with stored numbers of its authors' code."""
    head = ["method", "lines", "released code", "error of the loss"]
    head += ["of gradients, weights, messages", "check", "digits"]
    rows = [head, ["---"] * len(head)]
    for name in (name for name in METHODS if name in found):
        errors, origin = found[name], json.loads((ORACLES / f"{name}.json").read_text())
        title = (ROOT / "docs" / "methods" / f"{name}.md").read_text().partition("\n")[0]
        files = ", ".join(_link(file, origin) for file in origin["files"])
        vectors, held = _rounding(errors["vectors"]), "{} of {}".format(*errors["checks"])
        rows.append(
            [
                f"[{title.removeprefix('# ')}](methods/{name}.md)",
                str(errors["lines"]),
                f"{origin['repository']}: {files}",
                _rounding(errors["value"]) if "value" in errors else "",
                *(vectors, held, _gain(name)),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _rounding(error: float) -> str:
    return f"{error:.0e}".replace("e-0", "e-") if error else "0"


def _gain(name: str) -> str:
    path = ZOO / f"{name}.json"
    if not path.exists():
        return ""
    gain = json.loads(path.read_text())["methods"][-1]["gain"]
    return f"{gain['mean']:+.2f} ± {gain['deviation']:.2f}"


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
