"""The checker of networks finds each mistake, names it in one line, and lets sound ones pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from dcfl.models import FeatureModel, ModelSettings, Output
from dcfl.models.own_models import BUILT_IN, OWN_MODELS, OwnModel
from dcfl.system.own_files import OwnFile
from dcfl.testing.contract import Verdict, check_model
from dcfl.testing.model_properties import MODEL_PROPERTIES, Network
from tests.command_line import Call

FILE = OwnFile(Path("net.py"), b"", torch, {})


class Sound(FeatureModel):
    """A base for networks with one mistake each."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.classifier = nn.Linear(6, classes)

    def forward(self, images: Tensor) -> Output:
        embedding = self.features(images)
        return Output(self.classifier(embedding), embedding, (embedding,))

    def features(self, images: Tensor) -> Tensor:
        maps = torch.relu(self.norm(self.convolution(images)))
        return maps.mean(dim=(2, 3))


class NoStages(Sound):
    def forward(self, images: Tensor) -> Output:
        return super().forward(images)._replace(stages=())


class FewLogits(Sound):
    def forward(self, images: Tensor) -> Output:
        output = super().forward(images)
        return output._replace(logits=output.logits[:, :3])


class Maps(Sound):
    def forward(self, images: Tensor) -> Output:
        output = super().forward(images)
        return output._replace(stages=(self.convolution(images),))


class Bare(Sound):
    def forward(self, images: Tensor) -> Output:
        return super().forward(images).logits  # type: ignore[return-value]


class Unseeded(Sound):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        nn.init.constant_(self.classifier.bias, random.random())


class Restless(Sound):
    def features(self, images: Tensor) -> Tensor:
        return super().features(images) * (1 + random.random())


class Unused(Sound):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.auxiliary = nn.Linear(6, 6)


class CutOff(Sound):
    def forward(self, images: Tensor) -> Output:
        output = super().forward(images)
        return output._replace(embedding=output.embedding.detach())


class Beside(Sound):
    def forward(self, images: Tensor) -> Output:
        output = super().forward(images)
        return output._replace(embedding=output.embedding * 2)


class AlwaysMoving(Sound):
    def features(self, images: Tensor) -> Tensor:
        self.norm.train()
        return super().features(images)


class Twice(Sound):
    def features(self, images: Tensor) -> Tensor:
        return super().features(images) + super().features(images.flip(3))


class Layout(Sound):
    """Takes the numbers in the order in which they lie in memory."""

    def features(self, images: Tensor) -> Tensor:
        maps = self.norm(self.convolution(images))
        if maps.is_contiguous(memory_format=torch.channels_last):
            maps = maps.permute(0, 2, 3, 1).reshape(maps.shape)
        return torch.relu(maps).mean(dim=(2, 3))


class Hidden(Sound):
    """Half of its state is outside the state dict."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.offset = torch.randn(6)

    def features(self, images: Tensor) -> Tensor:
        return super().features(images) + self.offset


SHARED = nn.Linear(6, 10)


class Sharing(Sound):
    """Its copies keep the same layer."""

    def features(self, images: Tensor) -> Tensor:
        return super().features(images) * SHARED.weight.mean()

    def __deepcopy__(self, memo: object) -> Sharing:
        return self


class Failing(Sound):
    def forward(self, images: Tensor) -> Output:
        raise RuntimeError("two\nlines")


def checked(build: Callable[..., object]) -> list[Verdict]:
    with patch.dict(OWN_MODELS, {"net": OwnModel("net", FILE, build)}):
        return check_model(Network(ModelSettings("net"), channels=1, size=8, classes=10))


NEED, AGAIN, GRADIENTS, LOGITS, NORM, LAYOUT, STATE, COPIES, TRAINS = MODEL_PROPERTIES


@pytest.mark.parametrize(
    ("network", "property", "detail"),
    [
        (NoStages, NEED, "there are no stages"),
        (FewLogits, NEED, "logits [1, 3] for 1 images of 10 classes"),
        (Maps, NEED, "stage 0 is [1, 6, 8, 8]: not a vector for each of 1 images"),
        (Bare, NEED, "it returns Tensor, not dcfl.Output"),
        (Unseeded, AGAIN, "built twice with one seed, its weights differ"),
        (Restless, AGAIN, "two equal steps gave different gradients"),
        (Unused, GRADIENTS, "auxiliary.weight and 1 more got no gradient"),
        (CutOff, GRADIENTS, "the embedding is cut off from the graph"),
        (Beside, LOGITS, "the logits do not depend on the embedding"),
        (AlwaysMoving, NORM, "changed in evaluation mode"),
        (Twice, NORM, "norm.num_batches_tracked counted 2 batches in one step"),
        (Layout, LAYOUT, "differs between channels-last and row-major images"),
        (Hidden, STATE, "its weights give other logits"),
        (Sharing, COPIES, "a change of its copy changed it"),
        (Failing, NEED, "RuntimeError: two lines"),
    ],
)
def test_each_mistake_is_found(network: type[Sound], property: str, detail: str) -> None:
    by_property = {verdict.property: verdict for verdict in checked(network)}
    assert not by_property[property].holds
    assert detail in by_property[property].detail
    assert all("\n" not in verdict.detail for verdict in by_property.values())


def test_what_cannot_be_built_is_one_verdict() -> None:
    (verdict,) = checked(lambda channels, size, classes: 3)
    assert not verdict.holds
    assert "is no torch.nn.Module but int" in verdict.detail


@pytest.mark.parametrize(
    "network", [Sound, lambda *shape: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]
)
def test_a_sound_network_passes(network: Callable[..., object]) -> None:
    assert [verdict for verdict in checked(network) if not verdict.holds] == []


# Not those for series and token ids: the contract has images.
@pytest.mark.parametrize(
    "name", [name for name in BUILT_IN if name not in ("resnet18", "cnn1d", "transformer")]
)
@pytest.mark.parametrize("head", ["none", "side16"])
def test_dcfls_own_networks_pass(name: str, head: str) -> None:
    network = Network(ModelSettings(name, head=head), channels=3, size=16, classes=5)
    assert [verdict for verdict in check_model(network) if not verdict.holds] == []


def test_statistics_of_the_batch_are_remarked_on() -> None:
    network = Network(ModelSettings(norm="batch-nostats"), channels=1, size=8, classes=5)
    by_property = {verdict.property: verdict for verdict in check_model(network)}
    assert by_property[NORM].holds
    assert "depends on the rest of its batch" in by_property[NORM].detail


FUNCTION = """
from torch import nn

def tiny(channels, size, classes):
    network = nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
    network.register_parameter("unused", nn.Parameter(network[1].bias.clone()))
    return network
"""


def test_the_command(cli: Call, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FUNCTION.replace("    network.reg", "    # "))
    code, out, _ = cli("check", "net.py", "--images", "1x8x8", "--classes", "4")
    assert code == 0
    assert out.count("✓") == len(MODEL_PROPERTIES) + 1
    assert "tiny\n  ✓ can be built: 260 parameters" in out
    (tmp_path / "net.py").write_text(FUNCTION)
    code, out, _ = cli("check", "net.py", "--json")
    assert code == 1
    assert [v["holds"] for v in json.loads(out)["tiny"]].count(False) >= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "none.py: no such file"),
        (["empty.py"], "empty.py defines no method and no network"),
        (["cnn", "--images", "3x8x9"], "--images 3x8x9: give channels and size"),
        (["cnn", "--images", "0x8x8"], "1 to 64 channels"),
        (["timm:../x"], "there is no network 'timm:../x'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, cli: Call, tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    code, _, err = cli("check", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_a_network_of_ones_own_from_new_to_run(cli: Call, tmp_path: Path) -> None:
    code, out, _ = cli("new", "model", "my-net")
    assert code == 0
    assert "dcfl run --model-file my_net.py" in out
    assert cli("check", "my_net.py")[0] == 0
    fast = ("federation.rounds=1", "federation.participation=0.1", "--json")
    assert cli("run", "--model-file", "my_net.py", *fast)[0] == 0
    assert "there already" in cli("new", "model", "my-net")[2]
    assert "resnet8 already" in cli("new", "model", "resnet8")[2]
