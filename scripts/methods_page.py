"""Write docs/methods.md from the methods themselves and the measured results.

    dcfl compare --methods NAMES --seeds 0,1,2,3,4 data.seed=0 --json \\
        > benchmarks/results/digits-methods.json
    python scripts/methods_page.py

A test compares the page with what this makes, so the page cannot fall behind the code.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from dcfl.config import describe_method, to_toml
from dcfl.methods import METHODS, Method
from dcfl.testing.properties import overridden_hooks

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "digits-methods.json"

HEAD = """# The methods

<!-- Made by scripts/methods_page.py from the code and from measured results; do not edit. -->

Twelve methods for federated learning, in short files of their own in `dcfl/methods/`. There are
five hooks (`objective`, `gradient`, `upload`, `remember`, `merge`) with FedAvg as their default;
every other method overrides one or more of them. `merge_mean` stands in for `merge` where the mean
of the uploads is enough: the server then keeps none of them. The local loop, the server and the
data are the same for all. [protocol.md](protocol.md) lists what was decided where the papers leave
something open. `dcfl methods NAME` prints the facts below, `dcfl check NAME` tests whether a method
keeps its promises, and `dcfl new method NAME` starts one of your own.

## Measured on the built-in digits

FedRCL, SCAFFOLD and FedSOL gain most. The terms of DCFL, FedProc and FedSCL change little at
weights that do no harm. The digits are easy: FedAvg's best round is near the ceiling, and what EMA
tells apart is how steadily a method gets there. The DCFL paper's claims are about larger networks
on CIFAR and cannot be judged here; see [reproduction.md](reproduction.md).

| method | MAX % | EMA % | vs fedavg |
|---|---|---|---|
{rows}

**MAX** is the accuracy of the best round, **EMA** the final value of a moving average over the
rounds that keeps 0.9 of its old value, *vs fedavg* the difference of EMA, seed by seed. Mean ±
deviation of five seeds on one split (`data.seed=0`), so the deviation is that of the training
alone. 20 clients with non-IID data (each draws its mix of classes from a Dirichlet distribution
with alpha 0.3), 5 clients a round, 80 rounds, the compact CNN, default fields. FedPCL, which is for
feature vectors, was not measured here:

    dcfl compare --methods {names} --seeds 0,1,2,3,4 data.seed=0

In the equations, z is the embedding that the classifier sees, y the label, sim the cosine, tau the
temperature, c_g the prototype (mean embedding) of class g, and P_i and N_i are the positives and
negatives of image i. In the tables, d is the length of an embedding and *kept* is what a client
stores between rounds.
"""

SERVER = """## The server side

Any `server.aggregation` and any `server.optimizer` combine with every method;
`tests/contract/test_orthogonality.py` trains all of them together. Optimisers move parameters
only; buffers are averaged.

| `aggregation` | direction |
|---|---|
| `uniform` | the plain mean (Algorithm 1) |
| `samples` | weighted by the number of samples, over the sampled clients (Eq. 1) |
| `fednova` | changes per effective step, times the average number of steps; counts momentum in |
| `norm-clipping` | the plain mean of changes cut to `clip_norm`, or to the median of their norms |
| `median`, `trimmed-mean` | coordinate by coordinate |
| `krum`, `multi-krum` | the reply, or the mean of the replies, nearest to the others |
| `geometric-median` | the point with the least summed distance from all replies |

The last six withstand a share of attackers (`byzantine = 0.2`); [robustness.md](robustness.md) has
what that is worth and what it costs.

| `optimizer` | rule, with D the direction | fields |
|---|---|---|
| `fedavg` | w + D | |
| `fedavgm` | m = momentum m + (1 - dampening) D; w + m | `momentum = 0.9`, `dampening = 0` |
| `fedadam` | m and v as in Adam; w + lr m / (sqrt(v) + epsilon) | ADAM |
| `fedyogi` | as FedAdam, with v - (1 - beta2) D^2 sign(v - D^2) | the same |
| `fedadagrad` | as FedAdam, with v + D^2 | `lr = 0.01`, `beta1 = 0`, `epsilon = 0.001` |
| `fedacg` | clients start from w + momentum m; m = momentum m + D; w + m | `momentum = 0.85` |

    dcfl run method.name=dcfl-pw server.optimizer=fedyogi server.aggregation=samples
"""


def main() -> None:
    (ROOT / "docs" / "methods.md").write_text(page(), encoding="utf-8")


def page() -> str:
    results = {row["method"]: row for row in json.loads(RESULTS.read_text())["methods"]}
    measured = [name for name in METHODS if name in results]
    rows = "\n".join(_row(results[name]) for name in measured)
    head = HEAD.format(names=",".join(measured), rows=rows)
    adam = "`lr = 0.01`, `beta1 = 0.9`, `beta2 = 0.99`, `epsilon = 0.001`; no bias correction"
    sections = [_section(method) for method in METHODS.values()]
    return "\n".join([head, *sections, SERVER.replace("ADAM", adam)])


def _row(result: dict[str, Any]) -> str:
    def spread(value: dict[str, float] | None, sign: str = "") -> str:
        return f"{value['mean']:{sign}.2f} ± {value['deviation']:.2f}" if value else ""

    cells = [
        f"[{result['method']}](#{result['method']})",
        spread(result["max_accuracy"]),
        spread(result["ema_accuracy"]),
        spread(result["gain"], "+"),
    ]
    return f"| {' | '.join(cells)} |"


def _section(method: type[Method]) -> str:
    facts = describe_method(method)
    fields = ", ".join(f"`{f['name']} = {to_toml(f['default'])}`" for f in facts["fields"])
    published = ", ".join(
        f"{key} = {value:g} on {dataset}"
        for dataset, values in facts["published"].items()
        for key, value in values.items()
    )
    hooks = ", ".join(f"`{hook}`" for hook in overridden_hooks(method)) or "none"
    module = method.__module__.replace(".", "/")
    table = [
        ("file", f"[{module}.py](../{module}.py)"),
        ("overrides", hooks),
        ("fields", fields or "none"),
        *([("paper's values, default on these data sets", published)] if published else []),
        ("cost", _cost(facts["cost"])),
        ("bytes beyond the weights", _bytes(facts["cost"])),
        ("try it", f"`dcfl run method.name={method.name}`"),
    ]
    rows = "\n".join(f"| {term} | {text} |" for term, text in table)
    head = [f"## {method.name}", "", *_about(method, facts), "", "| | |", "|---|---|"]
    return "\n".join([*head, rows, ""])


def _about(method: type[Method], facts: dict[str, Any]) -> list[str]:
    """What its module says; of the second method of a module, its own idea and equation."""
    first = next(one for one in METHODS.values() if one.__module__ == method.__module__)
    if method is first:
        return (inspect.getdoc(inspect.getmodule(method)) or "").splitlines()
    see = f"The same loss as [{first.name}](#{first.name}), with other positives and negatives."
    return [facts["idea"], "", f"    {facts['equation']}", "", see]


def _cost(cost: dict[str, Any]) -> str:
    parts = [f"{cost['forwards']} forward, {cost['backwards']} backward per step"]
    if cost["passes"]:
        parts.append(f"{cost['passes']} extra pass over the local data per round")
    if cost["copies"]:
        parts.append(f"{cost['copies']} extra copies of the model")
    return "; ".join(parts)


def _bytes(cost: dict[str, Any]) -> str:
    return ", ".join(f"{k} {cost[k]}" for k in ("up", "down", "kept") if cost[k] != "0") or "none"


if __name__ == "__main__":
    main()
