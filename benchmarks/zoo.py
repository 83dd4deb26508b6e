"""A method beside FedAvg on the digits, in the setting of `make run`, for its page.

    python -m benchmarks.zoo NAME [NAME ...]

writes `benchmarks/results/zoo/NAME.json`: two minutes each on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dcfl.system.processes import python

RESULTS = Path(__file__).parent / "results" / "zoo"
SETTING = ["data.alpha=0.1", "federation.participation=0.1"]
KEPT = ("method", "max_accuracy", "ema_accuracy", "gain", "bytes_up", "bytes_down", "rounds")


def measure(name: str) -> None:
    command = ["compare", *SETTING, "--methods", f"fedavg,{name}", "--seeds", "0,1,2", "--json"]
    done = subprocess.run(python("-m", "dcfl", *command), stdout=subprocess.PIPE, check=True)
    rows = json.loads(done.stdout)["methods"]
    kept = [{key: row.get(key) for key in KEPT} for row in rows]
    record = {"command": " ".join(["dcfl", *command]), "methods": kept}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        measure(each)
