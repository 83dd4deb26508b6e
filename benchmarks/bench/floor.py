"""The floor: a job's bare SGD steps, in one eager process, without any federation.

`python -m benchmarks.bench.floor FOLDER THREADS`. Nothing is sent, loaded, averaged or written;
the images are floats in memory before the clock starts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from dcfl.models import LeNet, ResNet18


def say(event: str, **more: object) -> None:
    """Tell the harness what happens, as a line of JSON: one write, so that lines of several
    processes do not mix."""
    os.write(1, (json.dumps({"event": event, "at": time.time(), **more}) + "\n").encode())


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    pixels = torch.from_numpy(np.load(folder / "pixels.npy")).permute(0, 3, 1, 2)
    labels = torch.from_numpy(np.load(folder / "labels.npy"))
    offsets, indices = np.load(folder / "offsets.npy"), np.load(folder / "indices.npy")
    torch.manual_seed(job["seed"])
    model = LeNet(3, 32, 10) if job["model"] == "lenet" else ResNet18(3, 32, 10, "group")
    optimizer = torch.optim.SGD(
        model.parameters(), job["lr"], job["momentum"], weight_decay=job["weight_decay"]
    )
    steps, losses = 0, torch.zeros(())
    for number, cohort in enumerate(job["cohorts"], start=1):
        clients = [torch.from_numpy(indices[offsets[k] : offsets[k + 1]]).long() for k in cohort]
        data = [
            (pixels[rows].contiguous().float().div_(255).sub_(0.5).div_(0.25), labels[rows])
            for rows in clients
        ]
        if number == 1:
            say("first-step")
        began = time.perf_counter()
        for images, targets in data:
            for _ in range(job["epochs"]):
                for chosen in torch.split(torch.randperm(len(images)), job["batch_size"]):
                    optimizer.zero_grad()
                    losses = F.cross_entropy(model(images[chosen]).logits, targets[chosen])
                    losses.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    steps += 1
        say("round", round=number, seconds=time.perf_counter() - began)
    total = sum(float(tensor.double().sum()) for tensor in model.state_dict().values())
    say("end", steps=steps, loss=float(losses), weights_sum=total)


if __name__ == "__main__":
    main()
