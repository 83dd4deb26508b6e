"""Any classifier as a FeatureModel. The oracle: dcfl's own network, whose layers a plain module has
under the same names, must train to the same bits."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dcfl
from dcfl.client import frozen, without_statistics
from dcfl.errors import ConfigError
from dcfl.models import CNN, FeatureModel, adapt
from dcfl.models.adapted import AdaptedModel
from dcfl.tensors import load, sha256, snapshot

STAGES = ("norms.0", "norms.1", "norms.2")


class Plain(nn.Module):
    """The CNN as its users would write it: images in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 32, 64, 128)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(widths[i], widths[i + 1], 3, (1, 2, 2)[i], padding=1, bias=False)
            for i in range(3)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.classifier = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for convolve, normalise in zip(self.convolutions, self.norms, strict=True):
            maps = F.relu_(normalise(convolve(maps)))
        logits: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return logits


class Rooted(nn.Module):
    """With parameters and buffers of its own, as vision transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.fc = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT * self.scale
        tokens = torch.cat([self.token.expand(len(images), 1, 8), tokens], dim=1)
        logits: Tensor = self.fc(self.block(tokens)[:, 0])
        return logits


def twins() -> tuple[CNN, AdaptedModel]:
    torch.manual_seed(0)
    native, plain = CNN(1, 8, 10), Plain()
    plain.load_state_dict(native.state_dict())
    adapted = adapt(plain, stages=STAGES)
    assert isinstance(adapted, AdaptedModel)
    return native, adapted


def trained(model: FeatureModel, out: Path, **more: object) -> str:
    result = dcfl.run(
        model=model,
        out=out,
        data={"clients": 4},
        training={"epochs": 1},
        federation={"rounds": 2, "participation": 0.5},
        output={"report": False},
        **more,
    )
    return result.summary.weights_sha256


@pytest.mark.parametrize("method", ["dcfl-pw", "fedrcl", "moon", "fedsol", "scaffold"])
def test_it_trains_to_the_bits_of_a_model_made_for_dcfl(method: str, tmp_path: Path) -> None:
    native, adapted = twins()
    assert trained(native, tmp_path / "native", method=method) == trained(
        adapted, tmp_path / "adapted", method=method
    )


def test_in_a_pool_and_in_half_precision_too(tmp_path: Path) -> None:
    native, adapted = twins()
    for name, engine in {"pool": {"workers": 2}, "half": {"precision": "bfloat16"}}.items():
        hashes = {
            trained(model, tmp_path / f"{name}-{kind}", engine=engine)
            for kind, model in {"native": native, "adapted": adapted}.items()
        }
        assert len(hashes) == 1, name


@given(batch=st.integers(2, 5), last=st.booleans(), layout=st.booleans(), train=st.booleans())
@settings(max_examples=20)
def test_the_outputs_are_those_of_its_layers(
    batch: int, last: bool, layout: bool, train: bool
) -> None:
    native, adapted = twins()
    if last:
        adapted = adapt(adapted.module, "classifier", STAGES)  # type: ignore[assignment]
    images = torch.randn(batch, 1, 8, 8)
    if layout:
        images = images.contiguous(memory_format=torch.channels_last)
        for model in (native, adapted):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours, theirs = adapted.train(train)(images), native.train(train)(images)
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.embedding, theirs.embedding)
    assert all(map(torch.equal, ours.stages, theirs.stages))
    assert sha256(adapted.state_dict()) == sha256(native.state_dict())


@pytest.mark.parametrize("build", [Plain, Rooted])
def test_names_are_those_of_the_module_and_nothing_is_copied(build: type[nn.Module]) -> None:
    module = build()
    before = copy.deepcopy(module.state_dict())
    model = adapt(module)
    assert list(model.state_dict()) == list(module.state_dict())
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in module.named_parameters()
    ]
    assert [name for name, _ in model.named_buffers()] == [
        name for name, _ in module.named_buffers()
    ]
    pretrained = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    module.load_state_dict(pretrained)
    assert sha256(model.state_dict()) == sha256(pretrained)
    model.load_state_dict(before)
    assert sha256(module.state_dict()) == sha256(before)


@pytest.mark.parametrize("build", [Plain, Rooted])
def test_a_copy_lives_its_own_life(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = adapt(build()).eval()
    images = torch.randn(3, 1, 8, 8)
    before = model(images)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert torch.equal(model(images).logits, before.logits)
    assert not torch.equal(other(images).embedding, before.embedding)
    twin = frozen(other, snapshot(model))
    torch.testing.assert_close(twin(images).logits, before.logits)  # torch has faster ways there
    load(other, snapshot(model))
    assert torch.equal(other(images).embedding, before.embedding)
    sent = pickle.loads(pickle.dumps(model))  # as Ray does
    assert torch.equal(sent(images).logits, before.logits)


def test_the_mode_reaches_the_module_itself() -> None:
    model = adapt(Rooted())
    assert isinstance(model, AdaptedModel)
    for mode in (False, True):
        assert model.train(mode).module.training is mode
        assert model.module.block.training is mode  # type: ignore[union-attr]


def test_nothing_is_kept_between_two_calls() -> None:
    """A graph that stays would double the memory, and forbid copies."""
    module = Plain()
    model = adapt(module, stages=STAGES)
    model(torch.randn(2, 1, 8, 8))
    module(torch.randn(2, 1, 8, 8))  # whoever calls the module itself, leaves nothing either
    copy.deepcopy(model)
    with without_statistics(model):
        model(torch.randn(2, 1, 8, 8))
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 3, 8, 8))
    copy.deepcopy(model)


def test_every_parameter_gets_its_gradient() -> None:
    model = adapt(Rooted(), stages=["patches", "block"])
    output = model(torch.randn(4, 1, 8, 8))
    assert [stage.shape for stage in output.stages] == [(4, 8), (4, 8)]
    output.logits.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_side_head(tmp_path: Path) -> None:
    native, _ = twins()
    plain = Plain()
    plain.load_state_dict(native.state_dict())
    sided = adapt(plain, head="side16")
    output = sided(torch.randn(2, 1, 8, 8))
    assert output.projection is not None
    assert output.projection.shape == (2, 16)
    assert {*sided.state_dict()} - {*plain.state_dict()} == {
        f"side.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    }
    with torch.no_grad():
        assert torch.equal(plain.eval()(torch.ones(2, 1, 8, 8)), sided(torch.ones(2, 1, 8, 8))[0])
    trained(sided, tmp_path / "run", method="dcfl-sw")


class Wrapped(NamedTuple):
    logits: Tensor


class Answering(nn.Module):
    """What it returns is given."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer
        self.fc = nn.Linear(64, 10)
        self.unused = nn.ModuleDict({"twice": nn.Linear(10, 10)}) if answer == "twice" else None

    def forward(self, images: Tensor) -> object:
        logits = self.fc(images.flatten(1))
        if self.answer == "wrapped":
            return Wrapped(logits)
        if self.answer == "twice":
            assert self.unused is not None
            again = self.unused["twice"]
            return again(again(logits))
        return {"tuple": (logits, logits), "flat": logits[0]}.get(self.answer, logits)


def test_logits_may_come_in_an_object() -> None:
    assert adapt(Answering("wrapped"))(torch.zeros(2, 1, 8, 8)).logits.shape == (2, 10)


class Auxiliary(nn.Module):
    """Registers a head that it does not use after the one that it uses."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.fc, self.auxiliary = nn.Linear(64, 10), nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(images.flatten(1))
        return logits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adapt(3), "adapt takes a torch.nn.Module, not int"),  # type: ignore[arg-type]
        (lambda: adapt(CNN(1, 8, 10)), "CNN is a FeatureModel already"),
        (lambda: adapt(nn.Conv2d(1, 10, 3)), "Conv2d has no linear layer: name"),
        (lambda: adapt(Plain(), "fc"), "no layer 'fc'; its layers: convolutions, norms, class"),
        (lambda: adapt(Plain(), stages=["x"]), "no layer 'x'"),
        (lambda: adapt(Plain(), head="mlp16"), 'use "side256"'),
        (lambda: adapt(Plain(), head="beside"), 'use "none"'),
        (lambda: adapt(Answering("tuple")), r"must return logits \[batch, classes\], not tuple"),
        (lambda: adapt(Answering("flat")), r"must return logits \[batch, classes\], not \[10\]"),
        (lambda: adapt(Answering("twice")), "a tensor passed it 2 times instead of once"),
        (lambda: adapt(Auxiliary(10)), r'last linear layer, "auxiliary": a tensor passed it never'),
        (lambda: adapt(Auxiliary(3)), "gives 3 numbers and not the 10 class scores: name"),
        (lambda: adapt(Auxiliary(3), "auxiliary"), "passed it never"),
    ],
)
def test_what_cannot_be_adapted_is_said_in_one_line(make, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message) as caught:
        trained(make(), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_module_whose_state_is_no_tensors_is_refused() -> None:
    class Odd(Plain):
        def get_extra_state(self) -> object:
            return {"anything": 1}

    with pytest.raises(ConfigError, match="cannot be sent: _extra_state is no tensor"):
        adapt(Odd())


def test_a_layer_that_is_not_linear_may_be_the_classifier() -> None:
    """As in SqueezeNet: a convolution, and then the mean."""
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = adapt(network, embedding="2", head="side8")
    output = model(torch.randn(2, 1, 8, 8))
    assert (output.logits.shape, output.embedding.shape) == ((2, 10), (2, 4))


def test_it_can_be_compiled() -> None:
    """Without a compiler's help: the graph is traced and run as it is."""
    _, adapted = twins()
    images = torch.randn(4, 1, 8, 8)
    expected = adapted.eval()(images)
    adapted.compile(backend="eager")
    found = adapted(images)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.embedding, expected.embedding)
    assert all(map(torch.equal, found.stages, expected.stages))
