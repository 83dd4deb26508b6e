"""What Flower costs on this machine: seconds before round one, per round and per message.

    python benchmarks/flower.py [FILE.json]

The built-in digits, FedAvg, 20 clients, five a round, two workers or SuperNodes. A client trains
for a fraction of a second, so nearly all of what is beyond the pool's time is Flower's own.
"Flower's SuperNodes" import torch for every message, as `flower-supernode` does; the others are
those of `dcfl flower supernode`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dcfl.runs.folder import RecordedRun
from dcfl.system.processes import python

REPEATS = 2
SETTINGS = ["method.name=fedavg", "engine.threads=1"]
ENGINES: dict[str, tuple[list[str], int]] = {
    "pool": (["run", "engine.workers=2"], 20),
    "Ray simulation": (["run", "engine.name=flower-simulation", "engine.workers=2"], 20),
    "SuperNodes": (["flower", "run"], 5),
    "SuperNodes, TLS": (["flower", "run"], 5),
    "Flower's SuperNodes": (["flower", "run"], 3),
}
MAIN = "from dcfl.cli.main import main; main()"
COLD = """
from dcfl.flower.deploy import deployment
deployment.python = lambda *_: [deployment.script("flower-supernode")]
"""


def dcfl(*words: str, cwd: Path, first: str = "") -> None:
    command = python("-c", first + MAIN, *words)
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


def measure(words: list[str], rounds: int, cwd: Path) -> dict[str, float]:
    out = Path(tempfile.mkdtemp(dir=cwd)) / "run"
    began = time.time()
    dcfl(*words, *SETTINGS, f"federation.rounds={rounds}", "--out", str(out), cwd=cwd)
    run = RecordedRun.open(out)
    seconds = [row.seconds for row in run.rounds]
    # The recorder writes a row when its round has been evaluated.
    end = (out / "rounds.jsonl").stat().st_mtime
    training = statistics.median(row.seconds for row in run.clients)
    return {
        "before round one": end - began - sum(seconds),
        "a round": statistics.median(seconds[1:]),
        "a client's training": training,
        "kB up and down, a client": (run.rounds[0]["bytes_up"] + run.rounds[0]["bytes_down"])
        / run.rounds[0]["sampled"]
        / 1000,
    }


def main() -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):
            for name, (words, rounds) in ENGINES.items():
                home = Path(folder)
                if words[0] == "flower":
                    first = COLD if name == "Flower's SuperNodes" else ""
                    words_up = ["flower", "up", *(["--tls"] if "TLS" in name else [])]
                    dcfl(*words_up, cwd=home, first=first)
                try:
                    found[name].append(measure(words, rounds, home))
                finally:
                    if words[0] == "flower":
                        dcfl("flower", "down", cwd=home)
    report: dict[str, Any] = {
        name: {key: sorted(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    text = json.dumps(report, indent=2)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
