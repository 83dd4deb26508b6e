"""FedRCL as released: hardest pairs on every level, anchor by anchor."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedrcl import FedRCL
from dcfl.models import FeatureModel
from dcfl.models.networks import ResNet18
from dcfl.tensors import snapshot
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model
from tests.methods.cases import EXACT, batch, cosine, require_same

LABELS = [0, 0, 1, 2, 0, 1, 3, 0]  # classes 2 and 3 have one sample each


def client(network: FeatureModel | None = None) -> Client:
    network = (network or toy_model()).double().train()
    return Client(0, 2, network, snapshot(network), {}, {}, toy_client(LABELS), TRAINING)


def resnet() -> ResNet18:
    torch.manual_seed(0)
    return ResNet18(channels=1, size=8, classes=CLASSES)


def level_loss(features: Tensor, y: list[int], m: FedRCL) -> Tensor:
    contrast = divergence = torch.zeros((), dtype=torch.float64)
    for i in range(len(y)):
        s = [cosine(features[i], features[j]) for j in range(len(y))]
        same = sorted((s[j] for j in range(len(y)) if y[j] == y[i]), key=Tensor.item)  # with itself
        partners = sorted((s[j] for j in range(len(y)) if y[j] == y[i] and j != i), key=Tensor.item)
        negatives = sorted(
            (s[j] for j in range(len(y)) if y[j] != y[i]), key=Tensor.item, reverse=True
        )
        for p in same[: m.hardest_positives]:
            terms = [torch.exp((n - p) / m.temperature) for n in negatives[: m.hardest_negatives]]
            contrast = contrast + torch.log(1 + sum(terms, torch.tensor(0.0)))
        close = torch.tensor(0.0, dtype=torch.float64)
        for k in range(m.hardest_positives):
            q = partners[k] if k < len(partners) else torch.tensor(-1.0)
            q = q if q.item() >= m.threshold else torch.tensor(-1.0, dtype=torch.float64)
            close = close + torch.exp((q - 1) / m.temperature)
        divergence = divergence + torch.log(1 + close)
    # The released code averages over k places for positives, taken or not, of which the penalty has
    # one: the anchor itself.
    return (contrast + m.penalty * divergence) / (len(y) * m.hardest_positives)


def transcription(who: Client, given: Batch, m: FedRCL, levels: list[int]) -> Tensor:
    output = who.model(given.images)
    losses = [level_loss(output.stages[k], given.labels.tolist(), m) for k in levels]
    return F.cross_entropy(output.logits, given.labels) + m.mu * sum(losses) / len(losses)


def check(method: FedRCL, levels: list[int], labels: list[int] | None = None) -> None:
    who, given = client(), batch(labels or LABELS)
    loss, expected = method.objective(who)(given), transcription(who, given, method, levels)
    require_same(loss, expected, who.model)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mu": 0.3, "temperature": 0.5, "penalty": 2.0},
        {"temperature": 0.5, "hardest_positives": 2, "hardest_negatives": 3, "threshold": 0.1},
        {"temperature": 0.5, "threshold": -1.0},
    ],
)
def test_value_and_gradient_on_the_three_levels_of_the_cnn(fields: dict[str, float]) -> None:
    check(FedRCL(**fields), [0, 1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [[1] * 5, [0, 1, 2, 3], [0, 1], [2, 2]])
def test_batches_without_negatives_or_without_positives(labels: list[int]) -> None:
    check(FedRCL(temperature=0.5), [0, 1, 2], labels)


def test_a_batch_of_one_class_has_no_contrast_left() -> None:
    who, given = client(), batch([1] * 5)
    without_penalty = FedRCL(penalty=0.0).objective(who)(given)
    assert without_penalty.item() == pytest.approx(FedAvg().objective(who)(given).item(), abs=1e-12)


def test_the_levels_that_are_asked_for_are_averaged() -> None:
    check(FedRCL(levels=(1,)), [1])
    check(FedRCL(levels=(0, 2)), [0, 2])
    assert FedRCL(levels=(0, 1, 2)).objective(client())(batch(LABELS)).item() == pytest.approx(
        FedRCL().objective(client())(batch(LABELS)).item(), abs=1e-12
    )


def test_a_level_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 2"):
        FedRCL(levels=(0, 3)).objective(client())(batch(LABELS))


def test_the_resnet_has_five_levels_pooled_before_the_relu() -> None:
    """Of the stem's norm, and of the sum of residual and shortcut at the end of each stage."""
    network = resnet().double().train()
    seen: dict[str, Tensor] = {}

    def note(name: str, given: Tensor, out: object) -> None:
        seen[f"{name}<"] = given.clone()  # a ReLU in place comes later
        if isinstance(out, Tensor):
            seen[name] = out.clone()

    for name, module in network.named_modules():
        module.register_forward_hook(lambda _, given, out, name=name: note(name, given[0], out))
    stages = network(batch(LABELS).images).stages
    expected = [seen["stem.1"]]
    for k in range(4):
        before = seen[f"stages.{k}.second.norm2"] + seen[f"stages.{k}.second<"]
        expected.append(before)
    assert [stage.shape[1] for stage in stages] == [64, 64, 128, 256, 512]
    assert len(stages) == 5
    for stage, maps in zip(stages, expected, strict=True):
        pooled = maps.sum(dim=(2, 3)) / (maps.shape[2] * maps.shape[3])
        torch.testing.assert_close(stage, pooled, **EXACT)
        assert (maps < 0).any()


def test_all_five_levels_of_the_resnet_are_averaged() -> None:
    who, given = client(resnet()), batch(LABELS)
    method = FedRCL()
    with torch.no_grad():
        loss = method.objective(who)(given)
        expected = transcription(who, given, method, [0, 1, 2, 3, 4])
    torch.testing.assert_close(loss, expected, **EXACT)


def test_the_cnn_has_three_levels() -> None:
    assert len(toy_model()(batch(LABELS).images.float()).stages) == 3


def test_the_released_constants() -> None:
    released = FedRCL(
        mu=1.0,
        temperature=0.05,
        hardest_positives=1,
        hardest_negatives=2,
        threshold=0.7,
        penalty=1.0,
        levels="all",
    )
    assert FedRCL() == released
