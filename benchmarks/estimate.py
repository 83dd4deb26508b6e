"""Is a run what `dcfl run --dry-run` said it would be?

    python benchmarks/estimate.py [FILE.json] [NAME...]

Each configuration is estimated and then trained, each time by a program of its own: seconds of the
run (as its summary has them) and peak memory of all its processes. Images of 32 pixels are noise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench.measure import table
from benchmarks.records import keep
from dcfl.system.memory import MemoryWatch
from dcfl.system.processes import python

NOISE = ("data.clients=20", "data.alpha=inf")  # 500 images each
RESNET = ("model.name=resnet18", "training.epochs=1", "federation.rounds=3")
SMALL = ("data.clients=80", "federation.participation=0.025", "data.test_images=300")  # 125 images
CONFIGS: dict[str, tuple[str, ...]] = {
    "digits, cnn, dcfl-pw": ("federation.rounds=300",),
    "lenet, fedavg": ("model.name=lenet", "method.name=fedavg", "federation.rounds=20", *NOISE),
    "cnn, dcfl-pw": ("method.name=dcfl-pw", "federation.rounds=8", *NOISE),
    "cnn, moon": ("method.name=moon", "federation.rounds=8", *NOISE),
    "cnn, quantity": (
        "method.name=fedavg",
        "data.partition=quantity",
        "data.clients=20",
        "data.alpha=0.5",
        "federation.rounds=8",
    ),
    "cnn, scored every fourth round": (
        "method.name=fedavg",
        "federation.evaluate_every=4",
        "federation.rounds=8",
        *NOISE,
    ),
    "resnet18, fedavg": ("method.name=fedavg", *RESNET, *SMALL),
    "resnet18, dcfl-pw": ("method.name=dcfl-pw", *RESNET, *SMALL),
    "resnet18, fedavg, bfloat16": (
        "method.name=fedavg",
        "engine.precision=bfloat16",
        *RESNET,
        *SMALL,
    ),
}


def write_noise(path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        path,
        x_train=rng.integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8),
        y_train=np.arange(10_000) % 10,
        x_test=rng.integers(0, 256, (2_000, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(2_000) % 10,
    )


def answer(*arguments: str) -> tuple[dict[str, Any], int]:
    """The JSON that `dcfl run` prints, and the peak of its memory."""
    process = subprocess.Popen(
        python("-m", "dcfl", "run", *arguments, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with MemoryWatch(process.pid, every=0.1) as watch:
        output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"dcfl run {' '.join(arguments)} ended with {process.returncode}")
    return json.loads(output), watch.peak


def compared(settings: tuple[str, ...], folder: Path) -> dict[str, Any]:
    estimate, _ = answer(*settings, "--dry-run")
    out = ("output.report=false", "--out", str(folder))
    summary, peak = answer(*settings, *out)
    return {
        "estimated_seconds": estimate["seconds"],
        "seconds": summary["seconds"],
        "estimated_bytes": estimate["peak_bytes"],
        "bytes": peak,
        "measured_in": estimate["measured_seconds"],
        "workers": estimate["workers"],
    }


def main() -> None:
    files = [text for text in sys.argv[1:] if text.endswith(".json")]
    chosen = [text for text in sys.argv[1:] if not text.endswith(".json")] or list(CONFIGS)
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        noise = Path(scratch) / "noise.npz"
        write_noise(noise)
        for number, name in enumerate(chosen):
            data = () if name.startswith("digits") else (f"data.dataset=npz:{noise}",)
            one = compared((*CONFIGS[name], *data), Path(scratch) / str(number))
            found[name] = one
            print(f"{name}: {one}", file=sys.stderr, flush=True)
    rows = [
        [
            name,
            f"{one['estimated_seconds']:.1f} / {one['seconds']:.1f}",
            f"{one['estimated_seconds'] / one['seconds']:.2f}",
            f"{one['estimated_bytes'] / 1e9:.2f} / {one['bytes'] / 1e9:.2f}",
            f"{one['estimated_bytes'] / one['bytes']:.2f}",
            f"{one['measured_in']:.1f}",
        ]
        for name, one in found.items()
    ]
    print(table(["estimated / true", "seconds", "ratio", "GB", "ratio", "measured in, s"], rows))
    out = files[0] if files else "benchmarks/results/estimate.json"
    keep(out, cores=len(os.sched_getaffinity(0)), runs=found)


if __name__ == "__main__":
    main()
