"""What a worker does on a GPU, proven without one: nothing is on the wrong device, and nothing
waits for the device but in the places listed here.

Two devices stand in for it. The simulated one computes, so that whole runs must give the bits of
the CPU. On torch's own "meta" there are no numbers at all: whatever asks for one raises.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from dcfl import local_training
from dcfl.client import Batch, Client
from dcfl.data import Augmentation, FederatedData
from dcfl.engines.attacks import attack_on
from dcfl.engines.embedded import Embedded
from dcfl.engines.engine import Session
from dcfl.engines.memories import Memories
from dcfl.engines.pool import ClientOrders
from dcfl.engines.regions import SharedRegions
from dcfl.engines.runner import ClientRunner
from dcfl.engines.worker_processes import ClientTask, Worker
from dcfl.errors import ClientFailure
from dcfl.evaluation import score_model
from dcfl.experiment import AttackSettings
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS, Method
from dcfl.methods.method import Objective
from dcfl.models import ModelSettings, build_model
from dcfl.privacy import PrivacySettings, Protection
from dcfl.server import ServerSettings
from dcfl.server.compression import compression_for
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.system import transfers
from dcfl.tensors import sha256, snapshot
from tests import toys
from tests.engines.runs import COMPRESSIONS, TRAINING, Flat, bits, trained
from tests.engines.simulated_gpu import Record, caller, process_with_gpu, simulated_gpu

# Where a client's round waits for the device, each once.
WAITS = {
    "train_client",  # the loss, and whether all that was made is finite
    "Region.put",  # the reply, into shared memory
}
# Prototypes of a model without running statistics: its images come in an order that depends on all.
MIXED = "Images._keys"
# What a method asks for in one of a client's rounds.
ONCE = {
    "fedma": (1, ["require_matchable"]),  # whether it can train this network
    "fedala": (2, ["FedALA.start"] * 11),  # the loss of each pass, until it settles
}
EPOCHS = {"fedrep": 2, "fedpac": 2}  # its classifier and the rest take turns


def variant(name: str, **fields: Any) -> Method:
    return METHODS[name](**fields)


METHODS_AND_VARIANTS: dict[str, Method] = {
    **{name: method() for name, method in METHODS.items()},
    "dcfl-sw, views": variant("dcfl-sw", positives="view", negatives="all-others"),
    "dcfl-sw, both": variant("dcfl-sw", positives="same-class+view", anchors="with-positives"),
    "dcfl-sw, sums": variant(
        "dcfl-sw", mu=0.01, reduction="sum", anchors="sum", negatives="all-but-positives"
    ),
    "dcfl-pw, received": variant("dcfl-pw", prototype_model="received", prototype_normalize=True),
    "dcfl-pw, running": variant("dcfl-pw", prototype_model="running", min_class_count=2),
    "fedproc, published": variant("fedproc", schedule="published", prototype_momentum=0.5),
    "fedrcl, one level": variant("fedrcl", levels=(1,), hardest_positives=2),
    "fedscl, sum": variant("fedscl", reduction="sum"),
    "fedsol, head": variant("fedsol", variant="fixed", perturb="head"),
}
EVERY_METHOD = pytest.mark.parametrize(
    "method", METHODS_AND_VARIANTS.values(), ids=METHODS_AND_VARIANTS
)
FOR_CI = toys.ZOO - {"fedala"}  # where a test of the paper's methods and one more will do
AUGMENTATIONS = {
    "none": Augmentation(),
    "crop": Augmentation(crop=1),
    "all": Augmentation(crop=1, flip=True, rotation=10.0, cutout=2),
}
MODELS = [
    ModelSettings("cnn"),
    ModelSettings("cnn", norm="group", head="mlp256"),
    ModelSettings("cnn", norm="batch-nostats"),
    ModelSettings("lenet"),
]
RESNET = ModelSettings("resnet18")
EVERY_MODEL = pytest.mark.parametrize(
    "model", [*MODELS, RESNET], ids=lambda model: f"{model.name}, {model.norm}"
)


def runner_of(
    method: Method,
    settings: ModelSettings = MODELS[0],
    augmentation: Augmentation = AUGMENTATIONS["crop"],
    epochs: int = 1,
) -> ClientRunner:
    """Three clients of 20 images; with a client that has a last batch of one image."""
    dataset = toys.dataset().augmented_by(augmentation)
    if settings.name == "lenet":  # wants larger images
        train, test = (
            replace(part, pixels=part.pixels.repeat(1, 2, 2, 1))
            for part in (dataset.train, dataset.test)
        )
        dataset = replace(dataset, train=train, test=test)
    model = build_model(settings, dataset.channels, dataset.size, dataset.classes, seed=0)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = FederatedData(dataset, toys.federated().partition)
    training = replace(TRAINING, epochs=max(epochs, EPOCHS.get(method.name, 1)))
    return ClientRunner(method, model, data, training, seed=0)


@dataclass
class Served:
    """What a worker made of two rounds of two clients and an evaluation."""

    replies: list[ClientUpdate]
    waits: list[list[str]]  # of each client's round
    score: dict[str, Any]
    kept: list[str]  # hashes of what the clients remember

    @property
    def hashes(self) -> list[object]:
        made = [(sha256(r.weights), sha256(r.upload), r.metrics.get("loss")) for r in self.replies]
        return [*made, self.score, *self.kept]


def served(runner: ClientRunner, device: torch.device, record: Record) -> Served:
    """Drive a worker as a pool does."""
    regions, memories = SharedRegions(2), Memories(Path("never written"), budget=10**9)
    worker, orders = Worker(runner, regions, device), ClientOrders(regions, memories)
    weights, shared, clients = snapshot(runner.model), dict[str, Tensor](), (0, 1)
    replies: list[ClientUpdate] = []
    waits: list[list[str]] = []
    for round in (1, 2):
        broadcast = runner.compression.packed(Broadcast(round, weights, shared))
        orders.begin_round(broadcast)
        uploads = []
        for position, client in enumerate(clients):
            task = ClientTask(client, position, 20)
            task.order = orders.order(task)
            before = len(record.waits)
            answer = worker.answer(task.order)
            waits.append(record.waits[before:])
            reply = orders.reply(task, answer)
            assert isinstance(reply, ClientUpdate), str(reply)
            copies = {name: tensor.clone() for name, tensor in reply.weights.items()}
            replies.append(replace(reply, weights=copies))
            uploads.append(reply.upload)
        memories.settle(clients)
        received = runner.compression.received(broadcast)
        weights = dict(runner.compression.received_update(replies[-1], received).weights)
        shared = dict(runner.method.merge(shared, uploads, 3))
    sent = regions.evaluated.put(weights)
    order = {"do": "score", "evaluation": 1, "weights": sent, "part": (0, 20)}
    score = worker.answer(order)
    regions.close()
    return Served(replies, waits, score, [sha256(memories[client]) for client in clients])


def require_same(runner: ClientRunner, *also: str) -> None:
    """The worker on the simulated GPU: the bits of the CPU, with each wait once per client."""
    expected = served(copy.deepcopy(runner), torch.device("cpu"), Record())
    with simulated_gpu() as (gpu, record):
        found = served(runner, gpu, record)
    if any(isinstance(layer, nn.GroupNorm) for layer in runner.model.modules()):
        # torch's backward pass of GroupNorm chooses another layout where it is not on the CPU.
        for one, other in zip(found.replies, expected.replies, strict=True):
            for name, tensor in one.weights.items():
                assert torch.allclose(tensor, other.weights[name], rtol=1e-3, atol=1e-5), name
    else:
        assert found.hashes == expected.hashes, "other bits than on the CPU"
    for waits, round in zip(found.waits, (1, 1, 2, 2), strict=True):  # of two clients
        assert sorted(waits) == sorted([*WAITS, *also, *asked(runner.method, round)]), waits


def asked(method: Method, round: int) -> list[str]:
    when, asks = ONCE.get(method.name, (0, []))
    return asks if round == when else []


@pytest.fixture(scope="module")
def there() -> Iterator[Callable[..., Any]]:
    """Call a function in the process that has a GPU."""
    with process_with_gpu() as call:
        yield call


@EVERY_METHOD
def test_a_worker_computes_on_its_gpu_alone_and_waits_once_per_client(
    method: Method, there: Callable[..., Any]
) -> None:
    there(require_same, runner_of(method))


@pytest.mark.parametrize(
    "model",
    [*MODELS, pytest.param(RESNET, marks=pytest.mark.slow)],
    ids=lambda model: f"{model.name}, {model.norm}",
)
def test_every_model_and_all_augmentation(model: ModelSettings, there: Callable[..., Any]) -> None:
    also = [MIXED] if model.norm == "batch-nostats" else []
    prototypes, views = METHODS["dcfl-pw"](), METHODS_AND_VARIANTS["dcfl-sw, views"]
    there(require_same, runner_of(prototypes, model, AUGMENTATIONS["all"]), *also)
    there(require_same, runner_of(views, model, AUGMENTATIONS["all"]))


def test_waits_do_not_grow_with_the_steps(there: Callable[..., Any]) -> None:
    method = METHODS["fedsol"]()
    there(require_same, runner_of(method, augmentation=AUGMENTATIONS["none"], epochs=3))


@pytest.mark.parametrize("method", ["fedavg", "fedsol"])
def test_float16_scales_its_losses_without_reading_them(
    method: str, there: Callable[..., Any]
) -> None:
    runner = runner_of(METHODS[method]())
    runner.model.autocast = torch.float16
    there(require_only_listed_waits, runner)


def require_only_listed_waits(runner: ClientRunner, *also: str) -> None:
    with simulated_gpu() as (gpu, record):
        for waits in served(runner, gpu, record).waits:
            assert sorted(waits) == sorted([*WAITS, *also]), waits


def test_private_replies(there: Callable[..., Any]) -> None:
    runner = runner_of(METHODS["fedavg"](), ModelSettings(norm="group"))
    trainable = frozenset(name for name, _ in runner.model.named_parameters())
    settings = PrivacySettings(clip=0.1, noise=0.5)
    private = Protection(settings, runner.method, trainable, {}, seed=0)
    there(require_same, replace(runner, protection=private))


def test_compression(there: Callable[..., Any]) -> None:
    runner = runner_of(METHODS["scaffold"]())
    packs = compression_for(COMPRESSIONS["top-k"], runner.model, seed=0)
    there(require_same, replace(runner, compression=packs))


@pytest.mark.parametrize("kind", ["noise", "sign-flip", "label-flip", "prototype-flip"])
def test_attackers(kind: Any, there: Callable[..., Any]) -> None:
    attack = attack_on(3, AttackSettings(kind, share=1.0), seed=0)
    runner = replace(runner_of(METHODS["dcfl-pw"]()), attack=attack)
    reading = {"noise": ["Attack._noise"], "prototype-flip": ["Attack.reply"]}
    there(require_same, runner, *reading.get(kind, []))


# Whole runs, with one GPU and no pool


@contextmanager
def connected(session: Session) -> Iterator[Embedded]:
    """All clients in this process, on the GPU."""
    memories = Memories(session.memories, budget=10**9)
    yield Embedded(session.runner.on(GPU.get()), memories)


def require_the_same_run(folder: Path, method: Method, **settings: Any) -> None:
    on_cpu = trained(folder / "cpu", method, 1, **settings)
    with simulated_gpu() as (gpu, record):
        GPU.set(gpu)
        on_gpu = trained(folder / "gpu", method, 1, connect=connected, **settings)
    assert bits(on_gpu) == bits(on_cpu)
    assert {tensor.device.type for tensor in on_gpu.result().weights.values()} == {"cpu"}
    assert next(on_gpu.result().model.parameters()).device.type == "cpu"
    assert set(record.waits) <= {"train_client", "Embedded.run", "score", "Dataset.cell_sizes"}


GPU: ContextVar[torch.device] = ContextVar("GPU")


@pytest.mark.parametrize("method", ["fedavg", "moon", "dcfl-pw", "scaffold", "fedsol"])
def test_a_run_on_one_gpu_has_the_bits_of_the_cpu(
    method: str, tmp_path: Path, there: Callable[..., Any]
) -> None:
    there(require_the_same_run, tmp_path, METHODS[method](), rounds=2)


def test_dropout_and_a_server_optimiser(tmp_path: Path, there: Callable[..., Any]) -> None:
    server = ServerSettings(aggregation="median", optimizer=OPTIMIZERS["fedadam"]())
    dropout = {"model": Flat(dropout=0.5), "server": server}
    there(require_the_same_run, tmp_path, METHODS["fedavg"](), rounds=2, **dropout)


# The test of the tests


@dataclass(frozen=True)
class Reading(Method):
    """What a method must not do in a step."""

    how: str = ""

    def objective(self, client: Client) -> Objective:
        plain = super().objective(client)

        def loss(batch: Batch) -> Tensor:
            made = plain(batch)
            others: dict[str, Callable[[], object]] = {
                "item": lambda: made.item(),
                "float": lambda: float(made.detach()),
                "tolist": lambda: batch.labels.tolist(),
                "truth": lambda: bool((batch.labels > 0).any()),
                "cpu": lambda: batch.labels.cpu(),
                "mask": lambda: batch.images[batch.labels > 0],
                "nonzero": lambda: batch.labels.nonzero(),
                "mixed": lambda: batch.labels + torch.zeros(len(batch.labels)),
                "index": lambda: batch.labels[torch.arange(2)],
                "sent": lambda: torch.zeros(2).to(batch.labels.device),
                "created": lambda: torch.tensor([1.0, 2.0], device=batch.labels.device),
            }
            others[self.how]()
            return made

        return loss


HOWS = ["item", "float", "tolist", "truth", "cpu", "mask", "nonzero", "mixed", "index"]
HOWS += ["sent", "created"]


def require_caught(how: str) -> None:
    runner = runner_of(Reading(how))
    weights = snapshot(runner.model)
    with simulated_gpu() as (gpu, _):
        on_gpu = runner.on(gpu)
        reply, _ = on_gpu.train(Broadcast(1, on_gpu.here(weights), {}), 0, {})
        assert isinstance(reply, ClientFailure), how
        torchs_own = ("tolist() is not supported", "Could not run")  # with Python's tensors
        assert any(text in reply.reason for text in ("Refused", *torchs_own)), reply.reason


@pytest.mark.parametrize("how", HOWS)
def test_a_method_that_stalls_a_gpu_would_be_caught(how: str, there: Callable[..., Any]) -> None:
    there(require_caught, how)


@dataclass(frozen=True)
class Counts(Method):
    """Sends and keeps tensors that it has made on the CPU."""

    def upload(self, client: Client) -> dict[str, Tensor]:
        return {"images": torch.tensor(len(client.data))}

    def remember(self, client: Client) -> dict[str, Tensor]:
        return {"round": torch.tensor(client.round)}


def require_trained() -> None:
    runner = runner_of(Counts())
    weights = snapshot(runner.model)
    with simulated_gpu() as (gpu, _):
        on_gpu = runner.on(gpu)
        reply, kept = on_gpu.train(Broadcast(1, on_gpu.here(weights), {}), 0, {})
        assert isinstance(reply, ClientUpdate), reply
        assert {*kept} == {"round"}


def test_a_method_may_send_what_it_made_on_the_cpu(there: Callable[..., Any]) -> None:
    there(require_trained)


# On "meta", torch's own device without numbers


@pytest.fixture
def numberless(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Zeros for all that is read from a device; who reads is recorded. Plain SGD steps: torch has
    fused ones for no device without numbers."""
    readers: list[str] = []

    def zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
        if any(tensor.device.type != "cpu" for tensor in tensors):
            assert {tensor.device.type for tensor in tensors} == {"meta"}
            readers.append(caller("zeros"))
        return [torch.zeros_like(tensor, device="cpu") for tensor in tensors]

    def unfused(*tensors: list[Tensor], fused: bool, **settings: Any) -> None:
        assert fused
        sgd(*tensors, foreach=True, **settings)

    monkeypatch.setattr(transfers, "_on_host", zeros)
    monkeypatch.setattr(local_training, "sgd", unfused)
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())  # not for meta
    return readers


def ask_for_no_number(runner: ClientRunner) -> None:
    """Three rounds of one client on "meta"."""
    runner = runner.on(torch.device("meta"))
    weights, shared, memory = snapshot(runner.model), dict[str, Tensor](), dict[str, Tensor]()
    for round in (1, 2, 3):
        reply, kept = runner.train(Broadcast(round, weights, runner.here(shared)), 0, memory)
        assert isinstance(reply, ClientUpdate), reply
        made = [*reply.weights.values(), *reply.upload.values(), *kept.values()]
        assert {tensor.device.type for tensor in made} == {"meta"}
        weights, memory = dict(reply.weights), dict(kept)
        upload = {name: torch.ones_like(t, device="cpu") for name, t in reply.upload.items()}
        shared = dict(runner.method.merge(shared, [upload], 3))


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=pytest.mark.slow if name in FOR_CI else ())
        for name, method in METHODS_AND_VARIANTS.items()
    ],
)
def test_a_client_asks_for_no_number(method: Method, numberless: list[str]) -> None:
    ask_for_no_number(runner_of(method, augmentation=AUGMENTATIONS["all"]))
    rounds = [[*asked(method, round), "train_client"] for round in (1, 2, 3)]
    assert numberless == [name for names in rounds for name in names]


@pytest.mark.slow
@EVERY_MODEL
def test_no_model_asks_for_a_number(model: ModelSettings, numberless: list[str]) -> None:
    ask_for_no_number(runner_of(METHODS["dcfl-pw"](), model))
    assert [reader for reader in numberless if reader != MIXED] == ["train_client"] * 3


@pytest.mark.slow
@EVERY_MODEL
def test_an_evaluation_reads_once_per_part(model: ModelSettings, numberless: list[str]) -> None:
    runner = runner_of(METHODS["fedavg"](), model).on(torch.device("meta"))
    score_model(runner.model, runner.data.dataset)
    assert [reader for reader in numberless if reader != MIXED] == ["score", "Dataset.cell_sizes"]
