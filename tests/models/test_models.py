from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dcfl.errors import ConfigError
from dcfl.models import CNN, FeatureModel, ModelSettings, ResNet8, ResNet18, build_model
from dcfl.models.networks import Norm
from dcfl.tensors import sha256

NETWORKS = [CNN, ResNet8, ResNet18]
LEVELS = {CNN: [32, 64, 128], ResNet8: [16, 16, 32, 64], ResNet18: [64, 64, 128, 256, 512]}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet18_has_the_published_size() -> None:
    """11,173,962 for 10 classes with a 3x3 stem; counted layer by layer on the right."""
    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    convolutions = 3 * 64 * 9 + sum(
        a * b * 9 + 3 * b * b * 9 + (a * b if a != b else 0) for a, b in stages
    )
    norms = 2 * 64 + sum(2 * b * (4 + (a != b)) for a, b in stages)
    assert parameters(ResNet18(3, 32, 10)) == convolutions + norms + 512 * 10 + 10 == 11_173_962


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (3, 64)])
def test_outputs_have_the_promised_shapes(
    network: type[FeatureModel], channels: int, size: int
) -> None:
    model = network(channels, size, 7)  # type: ignore[call-arg]
    output = model(torch.randn(2, channels, size, size))
    assert output.logits.shape == (2, 7)
    assert output.embedding.shape == (2, LEVELS[network][-1])
    assert [stage.shape for stage in output.stages] == [(2, level) for level in LEVELS[network]]


@pytest.mark.parametrize("network", NETWORKS)
def test_another_width_is_another_width_of_every_layer(network: type[FeatureModel]) -> None:
    output = network(3, 16, 5, width=6)(torch.randn(2, 3, 16, 16))  # type: ignore[call-arg]
    own = LEVELS[network]
    assert [stage.shape[1] for stage in output.stages] == [6 * one // own[0] for one in own]


def test_resnet8_has_eight_layers_and_halves_larger_images() -> None:
    weighed = [m for m in ResNet8(3, 32, 10).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len([m for m in weighed if getattr(m, "kernel_size", None) != (1, 1)]) == 8
    assert [ResNet8(3, size, 10).stem[0].stride for size in (16, 17)] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 1}, "model.width must lie in 2 to 1024"),
        ({"width": 8, "name": "lenet"}, "lenet has layers of its own"),
        ({"width": 9, "norm": "group"}, "must be even"),
    ],
)
def test_a_width_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSettings(**settings)


@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_embeddings_are_after_the_relu_and_stages_before_it(network: type[FeatureModel]) -> None:
    output = network(3, 16, 5)(torch.randn(4, 3, 16, 16))  # type: ignore[call-arg]
    assert (output.embedding >= 0).all()
    assert (output.stages[0] < 0).any()
    assert (output.stages[-1] < 0).any()
    assert (output.stages[-1] <= output.embedding).all()  # the ReLU only adds


@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_the_classifier_sits_on_the_embedding(network: type[FeatureModel]) -> None:
    model = network(3, 16, 5, head="mlp256")  # type: ignore[call-arg]
    output = model(torch.randn(4, 3, 16, 16))
    assert output.embedding.shape == (4, 256)
    torch.testing.assert_close(output.logits, model.classifier(output.embedding))  # type: ignore[operator]


@pytest.mark.parametrize("norm", ["batch", "group", "batch-nostats"])
def test_only_batch_norm_keeps_running_statistics(norm: Norm) -> None:
    for network in NETWORKS:
        buffers = dict(network(3, 16, 5, norm=norm).named_buffers())
        assert bool(buffers) == (norm == "batch")


def test_group_norm_has_two_groups() -> None:
    groups = {
        m.num_groups for m in ResNet18(3, 16, 5, "group").modules() if isinstance(m, nn.GroupNorm)
    }
    assert groups == {2}


@torch.no_grad()
def test_a_basic_block_is_two_convolutions_and_a_shortcut() -> None:
    model = ResNet18(3, 16, 5).eval()
    block = model.stages[1].first
    x = torch.randn(2, 64, 8, 8)
    inner = F.relu(block.norm1(block.convolution1(x)))
    expected = block.norm2(block.convolution2(inner)) + block.shortcut[1](block.shortcut[0](x))
    torch.testing.assert_close(block(x), expected)
    assert block(x).shape == (2, 128, 4, 4)


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet18"])
@pytest.mark.parametrize("head", ["none", "mlp256", "side256"])
def test_initial_weights_depend_on_the_seed_alone(name: str, head: str) -> None:
    settings = ModelSettings(name=name, head=head)  # type: ignore[arg-type]
    before = torch.random.get_rng_state()
    one = sha256(build_model(settings, 1, 8, 10, seed=0).state_dict())
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert one == sha256(build_model(settings, 1, 8, 10, seed=0).state_dict())
    assert one != sha256(build_model(settings, 1, 8, 10, seed=1).state_dict())
