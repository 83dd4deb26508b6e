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

Made by `scripts/methods_page.py` from the code and from measured results; do not edit by hand.

Each method is one short file in `dcfl/methods/` that overrides one or more of five hooks; the local
loop, the server and the data are the same for all. What was decided where papers are open stands in
[protocol.md](protocol.md). `dcfl methods NAME` shows the same facts, `dcfl check NAME` looks
whether a method keeps its promises, and `dcfl new method NAME` starts one of your own.

## Measured on the built-in digits

20 clients, Dirichlet 0.3, 5 clients a round, 80 rounds, the compact CNN, default fields; five
seeds on one split (`data.seed=0`), mean ± deviation: the deviation is that of the training, without
what another split would add. *vs fedavg* is the difference of EMA, seed by seed.

    dcfl compare --methods {names} --seeds 0,1,2,3,4 data.seed=0

| method | MAX % | EMA % | vs fedavg |
|---|---|---|---|
{rows}

The digits are easy and the rounds few: FedAvg's best round is near the ceiling, and what EMA tells
apart is how steadily a method gets there. FedRCL, SCAFFOLD and FedSOL do so best; the prototype and
sample-wise terms of DCFL, FedProc and FedSCL change little at weights that do no harm. The paper's
claims are about larger networks on CIFAR and cannot be judged here.
"""

SERVER = """## The server side

`[server] aggregation` and `optimizer` combine with every method
(`tests/contract/test_orthogonality.py` trains all of them together). Optimisers move parameters
only; buffers are averaged.

| `aggregation` | direction |
|---|---|
| `uniform` | the plain mean (Algorithm 1) |
| `samples` | weighted by the number of samples, over the sampled clients (Eq. 1) |
| `fednova` | changes per effective step, times the average number of steps; momentum counted in |
| `norm-clipping` | the plain mean of changes cut to `clip_norm`, or to the median of their norms |
| `median`, `trimmed-mean` | coordinate by coordinate |
| `krum`, `multi-krum` | the reply, or the mean of the replies, nearest to the others |
| `geometric-median` | the point nearest to all replies |

The last six withstand a share of attackers (`byzantine = 0.2`); what that is worth and what it
costs was measured: [robustness.md](robustness.md).

| `optimizer` | rule, with D the direction | fields |
|---|---|---|
| `fedavg` | w + D | |
| `fedavgm` | m = momentum m + (1 - dampening) D; w + m | `momentum = 0.9`, `dampening = 0` |
| `fedadam` | m and v as in Adam; w + lr m / (sqrt(v) + epsilon) | ADAM |
| `fedyogi` | v - (1 - beta2) D^2 sign(v - D^2) | the same |
| `fedadagrad` | v + D^2 | `lr = 0.01`, `beta1 = 0`, `epsilon = 0.001` |
| `fedacg` | clients start from w + momentum m; m = momentum m + D; w + m | `momentum = 0.85` |

    dcfl run method.name=dcfl-pw server.optimizer=fedyogi server.aggregation=samples
"""


def main() -> None:
    (ROOT / "docs" / "methods.md").write_text(page(), encoding="utf-8")


def page() -> str:
    results = {row["method"]: row for row in json.loads(RESULTS.read_text())["methods"]}
    rows = "\n".join(_row(results[name]) for name in METHODS)
    head = HEAD.format(names=",".join(METHODS), rows=rows)
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
    cost = facts["cost"]
    lines = (inspect.getdoc(inspect.getmodule(method)) or "").splitlines()
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
        *([("paper's values, the default there", published)] if published else []),
        ("per step", f"{cost['forwards']} forward, {cost['backwards']} backward"),
        ("per round", f"{cost['passes']} extra pass, {cost['copies']} extra copies of the model"),
        ("bytes beyond the weights", f"up {cost['up']}, down {cost['down']}, kept {cost['kept']}"),
        ("try it", f"`dcfl run method.name={method.name}`"),
    ]
    rows = "\n".join(f"| {term} | {text} |" for term, text in table)
    return "\n".join([f"## {method.name}", "", *lines, "", "| | |", "|---|---|", rows, ""])


if __name__ == "__main__":
    main()
