"""Are the bits what they were? For changes that must not touch a number.

    python benchmarks/bits.py before.json      # writes the hashes of many small runs
    python benchmarks/bits.py before.json      # once more: compares, names what differs

Each run trains on the built-in digits for a few rounds: every method on every engine, every
aggregation and server optimiser, half precision, noise, attacks. Hashes belong to one machine and
one version of torch: another processor rounds differently.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dcfl

SMALL = {
    "data.clients": 6,
    "federation.rounds": 3,
    "federation.participation": 0.5,
    "training.epochs": 1,
    "engine.workers": 1,
}
AGGREGATIONS = ("samples", "uniform", "fednova", "median", "trimmed-mean")
OPTIMIZERS = ("avgm", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedacg")
ATTACKS = ("sign-flip", "noise", "scaling", "label-flip", "prototype-flip")


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """By name, the settings that differ from `SMALL`."""
    for method in dcfl.METHODS:
        yield f"{method}, embedded", {"method.name": method}
        yield f"{method}, pool", {"method.name": method, "engine.workers": 2}
        for precision in ("bfloat16", "float16"):
            yield f"{method}, {precision}", {"method.name": method, "engine.precision": precision}
    for method in dcfl.METHODS if find_spec("ray") else ():
        yield f"{method}, Ray", {"method.name": method, "engine.name": "flower-simulation"}
    for aggregation in AGGREGATIONS:
        yield f"fedavg, {aggregation}", {"method.name": "fedavg", "server.aggregation": aggregation}
    for optimizer in OPTIMIZERS:
        yield f"dcfl-pw, {optimizer}", {"server.optimizer": optimizer}
    for kind in ATTACKS:
        yield f"dcfl-pw, {kind}", {"attack.kind": kind}
    private = {"privacy.clip": 1.0, "privacy.noise": 0.5, "server.aggregation": "uniform"}
    yield "dcfl-sw, noise", {"method.name": "dcfl-sw", "model.norm": "group", **private}
    yield "scaffold, two threads", {"method.name": "scaffold", "engine.threads": 2}
    yield "moon, memories on disk", {"method.name": "moon", "engine.memory_budget": 0}
    yield "fedavg, faults", {"method.name": "fedavg", "faults.crash": 0.3}
    yield (
        "fedsol, resnet18",
        {"method.name": "fedsol", "model.name": "resnet18", "federation.rounds": 1},
    )


def hashes() -> dict[str, str]:
    hashes_by_name = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, settings) in enumerate(runs()):
            began = time.perf_counter()
            try:
                result = dcfl.run(out=Path(scratch) / str(number), **{**SMALL, **settings})
                hashes_by_name[name] = result.summary.weights_sha256
            except ValueError as error:  # refused: that, too, should stay as it is
                hashes_by_name[name] = f"{type(error).__name__}: {error}"
            seconds = time.perf_counter() - began
            print(f"{hashes_by_name[name][:16]}  {name} ({seconds:.1f} s)", file=sys.stderr)
    return hashes_by_name


def main() -> None:
    path = Path(sys.argv[1])
    now = hashes()
    if not path.exists():
        path.write_text(json.dumps(now, indent=1) + "\n")
        print(f"{path}: {len(now)} hashes")
        return
    before = json.loads(path.read_text())
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    print(*(f"{name}: {before.get(name)} -> {now.get(name)}" for name in different), sep="\n")
    print(f"{len(before)} before, {len(now)} now, {len(different)} differ")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
