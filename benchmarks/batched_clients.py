"""Are several clients in one batched call quicker than one after the other?

    python benchmarks/batched_clients.py [CLIENTS] [BATCH_SIZE]

Steps of FedAvg with a LeNet, as in job J3 of benchmarks/bench: each client's own weights and batch.
`torch.func` maps one functional step over all clients, which turns convolutions into grouped ones.
Prints seconds per step of all clients in both ways on one thread, how many operations each way
starts (on a GPU: kernel launches), and how far the results lie apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from dcfl.models import LeNet

REPEATS = 20
VIEWS = (
    "view",
    "expand",
    "permute",
    "transpose",
    "aten.t.",
    "detach",
    "alias",
    "squeeze",
    "select",
)


class Operations(TorchDispatchMode):
    """Counts what would be a kernel on a GPU: everything but views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not any(view in str(func) for view in VIEWS)
        return func(*args, **(kwargs or {}))


def seconds(step: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return min(times)


def operations(step: Callable[[], object]) -> int:
    with Operations() as counted:
        step()
    return counted.count


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Channels last, as in a run.
    images = torch.randn(clients, batch, 32, 32, 3).permute(0, 1, 4, 2, 3)
    labels = torch.randint(0, 10, (clients, batch))
    models = [LeNet(3, 32, 10).to(memory_format=torch.channels_last) for _ in range(clients)]
    weights, _ = stack_module_state(models)  # type: ignore[arg-type]

    def one_by_one() -> list[list[Tensor]]:
        found = []
        for model, x, y in zip(models, images, labels, strict=True):
            model.zero_grad()
            F.cross_entropy(model(x).logits, y).backward()  # type: ignore[no-untyped-call]
            found.append([p.grad for p in model.parameters() if p.grad is not None])
        return found

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(models[0], parameters, (x,)).logits, y)

    together = vmap(grad(loss))
    alone, batched = one_by_one(), list(together(weights, images, labels).values())
    apart = max(
        float((mine - batched[i][k].detach()).abs().max() / mine.abs().max())
        for k, gradients in enumerate(alone)
        for i, mine in enumerate(gradients)
    )
    ways = {"one by one": one_by_one, "together": lambda: together(weights, images, labels)}
    print(f"{clients} clients, batches of {batch}; gradients differ by {apart:.1e} at most")
    for name, step in ways.items():
        print(f"{name:12} {1000 * seconds(step):6.1f} ms a step, {operations(step)} operations")


if __name__ == "__main__":
    main()
