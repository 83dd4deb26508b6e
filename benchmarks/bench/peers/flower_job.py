"""Run one benchmark job with Flower's simulation: `python flower_job.py JOB_FOLDER`.

It runs in an environment of its own (flower.txt, beside this file); of dcfl it uses the models
alone. Events go to stdout, one JSON object per line; everything else goes to stderr.

The number of SuperNodes is that of the largest cohort, and a message says which client its node
is to be. Flower looks through all waiting messages once per node, ten times a second, which makes
a round with 1,000 nodes half as long again. `--node-per-client` has a SuperNode for every client,
as Flower's tutorials do. Either way the cohorts are the job's own.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read while flwr is imported
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dcfl.models import LeNet, ResNet18

CORES = 2  # what a job may use: two actors of one thread
POLL_SECONDS = 0.01  # Flower's own send_and_receive looks for replies every 0.1 s

client_app = ClientApp()


def build_model(job: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(job["seed"])
    return LeNet(3, 32, 10) if job["model"] == "lenet" else ResNet18(3, 32, 10, "group")


class Worker:
    """What an actor keeps from one client to the next: the job, the data and one model."""

    def __init__(self, folder: str) -> None:
        self.job = json.loads(Path(folder, "job.json").read_text())
        torch.set_num_threads(1)
        self.pixels = np.load(Path(folder, "pixels.npy"), mmap_mode="r")
        self.labels = torch.from_numpy(np.load(Path(folder, "labels.npy")))
        self.offsets = np.load(Path(folder, "offsets.npy"))
        self.indices = np.load(Path(folder, "indices.npy"))
        self.model = build_model(self.job).train()
        # A client that comes back to this actor is not converted again.
        self.data_of = functools.cache(self.converted)

    def converted(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        own = self.indices[self.offsets[client] : self.offsets[client + 1]].astype(np.int64)
        images = torch.from_numpy(self.pixels[own]).permute(0, 3, 1, 2).contiguous().float()
        return images.div_(255).sub_(0.5).div_(0.25), self.labels[own]


worker_for = functools.cache(Worker)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    task = message.content["task"]
    worker = worker_for(task["folder"])
    job, model = worker.job, worker.model
    images, labels = worker.data_of(task["client"])
    # All weights travel as one array: less to pack than an array per layer.
    weights = torch.from_numpy(message.content["weights"].to_numpy_ndarrays()[0])
    vector_to_parameters(weights, model.parameters())
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=job["lr"],
        momentum=job["momentum"],
        weight_decay=job["weight_decay"],
    )
    loss_sum, steps, began = torch.zeros(()), 0, time.time()
    for _ in range(job["epochs"]):
        for batch in torch.randperm(len(labels)).split(job["batch_size"]):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]).logits, labels[batch])
            loss.backward()
            optimiser.step()
            loss_sum += loss.detach()
            steps += 1
    trained = parameters_to_vector(model.parameters()).detach().numpy()
    metrics = MetricRecord({"began": began, "steps": steps, "loss_sum": float(loss_sum)})
    content = RecordDict({"weights": ArrayRecord([trained]), "metrics": metrics})
    return Message(content, reply_to=message)


def replies_to(grid: Grid, messages: list[Message]) -> Iterator[Message]:
    """Each reply as it comes, so that adding up overlaps with training."""
    waiting = set(grid.push_messages(messages))
    if len(waiting) < len(messages):
        raise RuntimeError("Flower refused a message")
    while waiting:
        for reply in grid.pull_messages(waiting):
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error}")
            waiting.remove(reply.metadata.reply_to_message_id)
            yield reply
        time.sleep(POLL_SECONDS)


def serve(grid: Grid, folder: str, job: dict[str, Any], nodes: list[int], per_client: bool) -> None:
    """Plain FedAvg, in a loop of its own: Flower's strategies draw their cohorts themselves."""

    def emit(event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=sys.__stdout__, flush=True)

    weights = parameters_to_vector(build_model(job).parameters()).detach().numpy()
    all_steps = 0
    for number, cohort in enumerate(job["cohorts"], start=1):
        record = ArrayRecord([weights])
        messages = []
        for slot, client in enumerate(cohort):
            task = ConfigRecord({"folder": folder, "client": client})
            content = RecordDict({"weights": record, "task": task})
            node = nodes[client if per_client else slot]
            messages.append(Message(content, dst_node_id=node, message_type="train"))
        total = np.zeros_like(weights)
        metrics: list[Any] = []
        for reply in replies_to(grid, messages):
            total += reply.content["weights"].to_numpy_ndarrays()[0]
            metrics.append(reply.content["metrics"])
        weights = total / np.float32(len(cohort))
        done = time.time()
        if number == 1:  # the clock of the actors, which run on this machine
            emit("first-step", at=min(m["began"] for m in metrics))
        emit("round", round=number, at=done)
        steps = sum(m["steps"] for m in metrics)
        loss = sum(m["loss_sum"] for m in metrics) / steps
        all_steps += steps
    emit("end", steps=all_steps, loss=loss, weights_sum=float(weights.sum(dtype=np.float64)))


def main() -> None:
    folder = str(Path(sys.argv[1]).resolve())
    per_client = "--node-per-client" in sys.argv[2:]
    job = json.loads(Path(folder, "job.json").read_text())
    clients = len(np.load(Path(folder, "offsets.npy"))) - 1
    node_count = clients if per_client else max(map(len, job["cohorts"]))
    server_app = ServerApp()

    @server_app.main()
    def run(grid: Grid, context: Context) -> None:
        while len(nodes := sorted(grid.get_node_ids())) < node_count:
            time.sleep(POLL_SECONDS)  # nodes are registered after this thread has started
        serve(grid, folder, job, nodes, per_client)

    sys.stdout = sys.stderr  # events alone go to stdout
    with tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True) as home:
        os.environ["FLWR_HOME"] = home
        run_simulation(
            server_app,
            client_app,
            num_supernodes=node_count,
            backend_config={
                "init_args": {
                    "num_cpus": CORES,  # as many actors, of one "CPU" each
                    "log_to_driver": False,
                    "_temp_dir": home,
                },
                "client_resources": {"num_cpus": 1},
            },
        )


if __name__ == "__main__":
    # Ray copies what __main__ defines into every call, and nothing would be kept between two
    # clients; what an importable module defines is only named.
    import flower_job

    flower_job.main()
