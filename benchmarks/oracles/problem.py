"""The small problem on which the authors' code and ours are compared, and the file of the numbers.

    python -m benchmarks.oracles.NAME CHECKOUT

runs the authors' code in CHECKOUT, a clone of their repository, and writes what it computed to
`tests/methods/oracles/NAME.json`. Tests compare ours with it. Their code is in no file of ours.

Four clients hold a few 4x4 pictures each; the network has 109 parameters, in float64. Clients train
on all their pictures at once, so that the order in which a loader draws them does not matter.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.data import ClientData, Images
from dcfl.data.augment import Preparation
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Tensors
from dcfl.methods import Method
from dcfl.methods.method import addressed
from dcfl.models import FeatureModel
from dcfl.models.output import Output
from dcfl.models.parts import personal_tensors, personalise, with_personal
from dcfl.server import Server, ServerState
from dcfl.server.server import ServerSettings
from dcfl.tensors import copies, snapshot

FIXTURES = Path(__file__).parents[2] / "tests" / "methods" / "oracles"
CLASSES = 4
LABELS = [
    [0, 0, 0, 0, 1, 1, 2],
    [1, 2, 2, 2, 2, 2, 3, 3, 3],
    [3, 3, 0],
    [1, 1, 1, 1, 2, 3],
]
STEPS, LR, ROUNDS = 3, 0.3, 3
# Plain gradient descent. What the local loop adds to it has tests of its own.
TRAINING = LocalTraining(
    epochs=STEPS,
    batch_size=64,
    lr=LR,
    lr_decay=1.0,
    momentum=0.0,
    weight_decay=0.0,
    max_grad_norm=0.0,
)


class Tiny(FeatureModel):
    """16 pixels, five tanh units, four classes; in float64 whatever it is given."""

    def __init__(self, seed: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.Linear(16, 5, dtype=torch.float64)
        self.classifier = nn.Linear(5, CLASSES, bias=bias, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(0.4 * drawn)

    def forward(self, images: Tensor) -> Output:
        embedding = torch.tanh(self.body(images.to(self.body.weight.dtype).flatten(1)))
        return Output(self.classifier(embedding), embedding, (embedding,))


class Straight(FeatureModel):
    """A network of one linear layer, whose outputs mix as its weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(16, CLASSES, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(0.4 * drawn)

    def forward(self, images: Tensor) -> Output:
        flat = images.to(self.classifier.weight.dtype).flatten(1)
        return Output(self.classifier(flat), flat, (flat,))


class Logits(nn.Module):
    """The same network as other people's code expects one: images in, logits out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.inner = Tiny(seed)

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).logits


def client_data(client: int) -> ClientData:
    labels = torch.tensor(LABELS[client])
    generator = torch.Generator().manual_seed(100 + client)
    pixels = torch.randint(0, 256, (len(labels), 4, 4, 1), generator=generator, dtype=torch.uint8)
    return ClientData(Images(pixels, labels), CLASSES, Preparation((0.5,), (0.5,)))


def tensors_of(client: int) -> tuple[Tensor, Tensor]:
    """A client's pictures as a network gets them, in float64, and their labels."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # in which pictures are prepared
    data = client_data(client)
    images = data.preparation.clean(data.images.pixels).double()
    torch.set_default_dtype(usual)
    return images, data.images.labels


def batch_of(client: int) -> Batch:
    return Batch(*tensors_of(client))


def loader(client: int) -> torch.utils.data.DataLoader[Any]:
    """As most code wants its data: all pictures in one batch, in any order."""
    images, labels = tensors_of(client)
    data = torch.utils.data.TensorDataset(images, labels)
    return torch.utils.data.DataLoader(data, batch_size=len(labels), shuffle=True)


# Ours


def in_the_middle(
    client: int = 0, shared: Tensors | None = None, memory: Tensors | None = None
) -> Client:
    """A client in a later round: its weights are those of seed 1, it had received those of 0."""
    received = snapshot(Tiny(0))
    return Client(
        client, 2, Tiny(1), received, shared or {}, memory or {}, client_data(client), TRAINING
    )


def value_and_gradient(
    loss: Tensor, parameters: Mapping[str, Tensor]
) -> tuple[float, dict[str, list[float]]]:
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return float(loss.detach()), numbers(
        {
            name: torch.zeros_like(live) if own is None else own
            for (name, live), own in zip(parameters.items(), gradients, strict=True)
        }
    )


def our_rounds(
    method: Method,
    cohorts: Sequence[Sequence[int]],
    settings: ServerSettings | None = None,
    training: LocalTraining = TRAINING,
    model: Callable[[], FeatureModel] = Tiny,
    memories: dict[int, Tensors] | None = None,
    shared: list[Tensors] | None = None,
) -> list[Tensors]:
    """The server's weights after each round, with these clients in it; `memories`: what they have
    kept in the end is put there; `shared`: what the server shares after each round."""
    scratch = model()
    personalise(scratch, method.personal)
    own = copies(personal_tensors(scratch))
    names = frozenset(name for name, _ in scratch.named_parameters())
    settings, unsent = settings or ServerSettings(), frozenset(own)
    server = Server(method, len(LABELS), names, training, settings, unsent=unsent)
    state = ServerState(0, snapshot(scratch), {}, {})
    memories = {} if memories is None else memories
    weights = []
    for cohort in cohorts:
        sent, updates = server.broadcast(state), []
        for client in cohort:
            update, memories[client] = train_client(
                method,
                scratch,
                client_data(client),
                addressed(sent, method, client),
                memories.get(client, with_personal(own, {})),
                training,
                client,
                seed=0,
            )
            updates.append(replace(update, weights=dict(update.weights)))
        state, reports = server.aggregate(state, sent, updates)
        assert all(report.outcome == "ok" for report in reports), reports
        weights.append(state.weights)
        if shared is not None:
            shared.append(state.shared)
    return weights


# Theirs


class _Stub(ModuleType):
    """A module in which every capital name is a class that takes anything and does nothing, and
    every other name a module or function like it."""

    __all__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():
            return _Stub(name)
        return type(name, (), {"__init__": _ignore, "__call__": _ignore, "DEFAULT": None})

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


def _ignore(self: object, *args: object, **kwargs: object) -> None:
    pass


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of these packages, which are imported and play no part in what is computed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def checkout(*stubs: str) -> Path:
    """The clone named on the command line, first in the path of imports; `stubs`: packages that its
    files import for logging and pictures only."""
    path = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(path))
    sys.meta_path.insert(0, Stubs(stubs))
    torch.set_default_dtype(torch.float64)
    return path


def numbers(tensors: Tensors) -> dict[str, list[float]]:
    return {
        name.removeprefix("inner."): tensor.detach().double().flatten().tolist()
        for name, tensor in tensors.items()
    }


def inputs_sha256() -> str:
    """Of the initial weights and all pictures: a generator that draws others would be noticed."""
    digest = hashlib.sha256()
    for tensor in [*snapshot(Tiny(0)).values(), *snapshot(Tiny(1)).values()]:
        digest.update(tensor.numpy().tobytes())
    for client in range(len(LABELS)):
        digest.update(client_data(client).images.pixels.numpy().tobytes())
    return digest.hexdigest()


def write(name: str, repository: str, path: Path, files: Sequence[str], **content: Any) -> None:
    """Store what the authors' code computed, with where it came from. `name` is the method's."""
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    record = {
        "repository": repository,
        "commit": commit,
        "files": list(files),
        "made_by": f"benchmarks/oracles/{Path(sys.argv[0]).name}",
        "inputs": inputs_sha256(),
        **content,
    }
    target = FIXTURES / f"{name}.json"
    target.write_text(json.dumps(record) + "\n")
    print(f"{target.name}: {target.stat().st_size} bytes")
