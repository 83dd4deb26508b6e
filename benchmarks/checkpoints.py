"""What a checkpoint of the ResNet-18 costs: seconds to write one, and to read it back.

    python benchmarks/checkpoints.py

FedAdam's two slots make it three models large; MOON's clients add a model each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from dcfl.engines.memories import Memories
from dcfl.models import ResNet18
from dcfl.runs.checkpoints import Checkpoint, Checkpoints, SavedProgress
from dcfl.server import ServerState
from dcfl.tensors import snapshot, zeros_like

REPEATS = 7


def timed(what: list[float], began: float) -> None:
    what.append(time.perf_counter() - began)


def main() -> None:
    weights = snapshot(ResNet18(3, 32, 10, "batch"))
    plain = ServerState(1, weights, {}, {})
    slots = {f"{slot}.{name}": t for slot in "mv" for name, t in zeros_like(weights).items()}
    writes: dict[str, list[float]] = {"FedAvg": [], "FedAdam": [], "five of MOON's memories": []}
    reads: list[float] = []
    with tempfile.TemporaryDirectory(dir=".") as place:
        checkpoints = Checkpoints(Path(place))
        for number in range(1, REPEATS + 1):
            progress = SavedProgress("0" * 32, number, 0.0, {}, {}, {})
            for name, state in (("FedAvg", plain), ("FedAdam", ServerState(1, weights, {}, slots))):
                began = time.perf_counter()
                checkpoints.write(Checkpoint(state, progress))
                timed(writes[name], began)
            began = time.perf_counter()
            checkpoints.recover_newest()
            timed(reads, began)
        with Memories(Path(place) / "memories", budget=10**9) as memories:
            for number in range(1, REPEATS + 1):
                for client in range(5):
                    memories.stage(client, number, weights)
                memories.settle(range(5))
                began = time.perf_counter()
                memories.save()
                memories.saved()
                timed(writes["five of MOON's memories"], began)
                memories.keep_only([])
    for name, seconds in {**writes, "reading all three": reads}.items():
        low, high = min(seconds), max(seconds)
        print(f"{name}: {statistics.median(seconds):.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
