"""The pool gives the bits of one process, whoever trains which client and whoever ends first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl import evaluation
from dcfl.client import Batch, Client
from dcfl.data import Dataset, Images
from dcfl.data.augment import Preparation
from dcfl.engines import regions
from dcfl.messages import Tensors
from dcfl.methods import METHODS, Method, Objective
from dcfl.models import FeatureModel, Output
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.testing.toys import toy_model
from tests.engines.runs import COMPRESSIONS, Flat, bits, federation, made_ready, trained
from tests.toys import PERSONAL


@pytest.fixture
def same(tmp_path: Path) -> Callable[..., None]:
    """A run in this process and runs in pools say the same, to the last bit."""

    def look(method: Method, workers: Sequence[int] = (2,), **settings: Any) -> None:
        alone = bits(trained(tmp_path / "1", method, 1, **settings))
        assert all(row["ok"] == row["sampled"] for row in alone["rounds"])
        for count in workers:
            pooled = trained(tmp_path / str(count), method, count, **settings)
            assert bits(pooled) == alone

    return look


@pytest.mark.parametrize("method", sorted(METHODS.keys() - PERSONAL))
def test_every_method_has_the_bits_of_one_process(method: str, same: Callable[..., None]) -> None:
    same(METHODS[method](), (2, 3), dataset=federation((3, 10, 5, 8)))


@pytest.mark.parametrize(
    "server",
    [
        ServerSettings("samples"),
        ServerSettings("fednova"),
        ServerSettings("uniform", OPTIMIZERS["fedacg"]()),
        ServerSettings(secure=True),
        ServerSettings("samples", OPTIMIZERS["fedadam"]()),
        ServerSettings("multi-krum", byzantine=0.1),  # 6 replies withstand one attacker
        ServerSettings("trimmed-mean", OPTIMIZERS["fedacg"]()),
    ],
    ids=lambda server: f"{server.aggregation}-{server.optimizer.name}",
)
def test_so_do_aggregations_and_server_optimisers(
    server: ServerSettings, same: Callable[..., None]
) -> None:
    same(METHODS["fedavg"](), server=server, model=Flat())


@pytest.mark.parametrize("method", ["scaffold", "moon", "dcfl-pw"])
def test_so_do_samples_of_the_clients(method: str, same: Callable[..., None]) -> None:
    same(METHODS[method](), (3,), participation=0.5, rounds=4, model=Flat())


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_so_do_compressed_messages(kind: str, same: Callable[..., None]) -> None:
    """With a method that uploads and remembers too, in half of the rounds."""
    settings = {"participation": 0.5, "rounds": 5, "model": Flat()}
    same(METHODS["scaffold"](), (3,), compression=COMPRESSIONS[kind], **settings)


def test_so_do_two_threads_for_each_client(same: Callable[..., None]) -> None:
    same(METHODS["moon"](), threads=2, dataset=federation((3, 8, 5)))


@pytest.mark.parametrize("method", ["moon", "scaffold"])
@pytest.mark.parametrize("workers", [1, 2])
def test_memories_on_disk_have_the_bits_of_those_in_ram(
    method: str, workers: int, tmp_path: Path
) -> None:
    in_ram = trained(tmp_path / "ram", METHODS[method](), 1)
    on_disk = made_ready(
        tmp_path / "disk", METHODS[method](), workers, memory_budget=0, keep_checkpoint=False
    )
    for _ in on_disk.rounds():
        assert list((on_disk.folder / "memories").glob("client-*"))
    assert bits(on_disk) == bits(in_ram)
    assert not (on_disk.folder / "memories").exists()


def coloured() -> Dataset:
    """The toys in three colours."""
    grey = federation()

    def in_colour(images: Images) -> Images:
        return Images(
            torch.cat([images.pixels, 255 - images.pixels] * 2, 3)[..., :3], images.labels
        )

    crop = grey.preparation.augmentation
    preparation = Preparation((0.3, 0.6, 0.3), (0.3, 0.2, 0.3), crop)
    train, test = in_colour(grey.train), in_colour(grey.test)
    return replace(grey, train=train, test=test, preparation=preparation)


def test_a_module_a_method_and_data_that_no_import_can_find(same: Callable[..., None]) -> None:
    class Odd(FeatureModel):
        """Kernels of one pixel, tied weights, a parameter that does not train, buffers."""

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv2d(3, 5, 1)
            self.depth = nn.Conv2d(5, 5, 3, groups=5)
            self.again = self.depth
            self.features = nn.Linear(5 * 36, 7)
            self.classifier = nn.Linear(7, 4)
            self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
            self.register_buffer("calls", torch.zeros(3, dtype=torch.uint8))
            self.register_buffer("passing", torch.ones(5, 1, 1), persistent=False)

        def forward(self, images: Tensor) -> Output:
            if self.training:
                self.calls += 1
            maps = self.depth(self.mix(images) * self.passing).relu()
            embedding = self.features(maps.flatten(1)) * self.scale
            return Output(self.classifier(embedding), embedding, (maps.mean((2, 3)),))

    @dataclass(frozen=True)
    class Drawn(Method):
        """Everything that a method may do, with tensors of several types and shapes."""

        pull: float = 0.1

        def objective(self, client: Client) -> Objective:
            usual = super().objective(client)
            target = {**client.received, **client.memory, **client.shared}["mix.weight"].float()

            def loss(batch: Batch) -> Tensor:
                there = dict(client.trainable())["mix.weight"]
                return usual(batch) + self.pull * (there - target).square().sum()

            return loss

        def upload(self, client: Client) -> Tensors:
            kernel = client.model.get_parameter("mix.weight").detach().clone()
            return {"half": kernel.bfloat16(), "count": torch.tensor(len(client.data))}

        def remember(self, client: Client) -> Tensors:
            kernel = client.model.get_parameter("mix.weight").detach().clone()
            return {"mix.weight": kernel.double(), "none": torch.empty(0, 3)}

        def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
            total = sum(int(upload["count"]) for upload in uploads)
            kernels = [upload["half"] * int(upload["count"]) / total for upload in uploads]
            return {"mix.weight": torch.stack(kernels).sum(dim=0)}

    same(Drawn(), (2, 3), model=Odd(), dataset=coloured(), memory_budget=0)


def test_the_order_of_completion_plays_no_part(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Dawdling(METHODS["scaffold"]):  # type: ignore[misc]
        name = "scaffold"
        slow: tuple[int, ...] = ()

        def objective(self, client: Client) -> Objective:
            time.sleep(0.05 if client.id in self.slow else 0)
            return super().objective(client)  # type: ignore[no-any-return]

    model = Flat()
    alone = bits(trained(tmp_path / "alone", Dawdling(), 1, model=model))
    for slow in ((0,), (1, 5)):
        pooled = trained(tmp_path / str(slow), Dawdling(slow=slow), 3, model=model)
        assert bits(pooled) == alone


@pytest.mark.parametrize("sizes", [tuple(range(2, 14)), tuple(range(13, 1, -1))])
def test_more_clients_than_slots(
    sizes: tuple[int, ...], same: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "SLOTS_BYTES", 0)
    same(METHODS["scaffold"](), dataset=federation(sizes), rounds=3, model=Flat())


def test_so_does_a_model_without_running_statistics(
    same: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches cross the borders of parts."""
    monkeypatch.setattr(evaluation, "PART", 70)
    same(
        METHODS["dcfl-pw"](), (2, 3), dataset=federation(test=230), model=toy_model("batch-nostats")
    )


def test_clients_with_few_images_or_none(tmp_path: Path) -> None:
    """The server turns those down that have none."""
    model, dataset = Flat(), federation((1, 0, 6, 9, 2))
    alone, pooled = (
        bits(
            trained(
                tmp_path / str(workers), METHODS["fedavg"](), workers, model=model, dataset=dataset
            )
        )
        for workers in (1, 2)
    )
    assert [row["rejected"] for row in alone["rounds"]] == [1, 1, 1]
    assert pooled == alone


def test_two_pools_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    alone = {
        name: bits(trained(tmp_path / name, METHODS[name](), 1)) for name in ("moon", "fedsol")
    }
    runs = {name: made_ready(tmp_path / f"{name}-2", METHODS[name](), 2) for name in alone}
    for _ in zip(*(run.rounds() for run in runs.values()), strict=True):
        pass
    assert {name: bits(run) for name, run in runs.items()} == alone


def test_memories_and_uploads_of_any_size_at_any_time(same: Callable[..., None]) -> None:
    """A small reply must not cut short the slot of a later large one."""

    @dataclass(frozen=True)
    class Uneven(Method):
        def upload(self, client: Client) -> Tensors:
            return self.remember(client)

        def remember(self, client: Client) -> Tensors:
            size = (7 * client.id + 5 * client.round) % 4
            return {f"rows{size}": torch.full((10**size, 3), client.id / 7)}

    same(Uneven(), (2, 3), rounds=6, model=Flat())


def test_a_module_with_dropout(same: Callable[..., None]) -> None:
    """What it draws must not depend on who trained before in the same process."""
    same(METHODS["fedavg"](), (2, 3), model=Flat(dropout=0.5))


def test_a_method_that_uploads_live_parameters(same: Callable[..., None]) -> None:
    """In one process the next client overwrites the model before `merge` sees the upload."""

    @dataclass(frozen=True)
    class LiveUpload(Method):
        def objective(self, client: Client) -> Objective:
            return towards(client, client.shared)

        def upload(self, client: Client) -> Tensors:
            return dict(client.trainable())

        def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
            return dict(uploads[0])

    same(LiveUpload(), model=Flat())


def test_a_method_that_remembers_live_parameters(same: Callable[..., None]) -> None:
    @dataclass(frozen=True)
    class LiveMemory(Method):
        def objective(self, client: Client) -> Objective:
            return towards(client, client.memory)

        def remember(self, client: Client) -> Tensors:
            return dict(client.trainable())

    same(LiveMemory(), model=Flat())


def towards(client: Client, target: Tensors) -> Objective:
    def loss(batch: Batch) -> Tensor:
        usual = F.cross_entropy(client.model(batch.images).logits, batch.labels)
        apart = [
            (live - target[name]).square().sum() for name, live in client.trainable() if target
        ]
        return usual + sum(apart, torch.zeros(()))

    return loss
