"""Frozen parts of a model: what they are, and that nothing moves them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import evaluating, frozen, without_statistics
from dcfl.data import Augmentation
from dcfl.errors import ConfigError
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel, ModelSettings, Output, adapt, build_model
from dcfl.models.parts import freeze, frozen_tensors, sent_modules, within
from dcfl.tensors import load, sha256, snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model, visit

FIRST = ["convolutions.0", "norms.0"]


@pytest.mark.parametrize(
    ("name", "parts", "inside"),
    [
        ("stages.0.first.norm1", ["stages.0"], True),
        ("stages.0", ["stages.0"], True),
        ("stages.01.first", ["stages.0"], False),
        ("stages", ["stages.0"], False),
        ("classifier.weight", ["stem", "classifier"], True),
        ("classifier.weight", [], False),
    ],
)
def test_a_part_ends_at_a_dot(name: str, parts: list[str], inside: bool) -> None:
    assert within(name, parts) is inside


def test_a_part_is_frozen_with_its_parameters_and_statistics() -> None:
    model = build_model(ModelSettings("resnet8"), 1, 8, 4, seed=0)
    freeze(model, ["stem", "stages.0"])
    names = {name for name in model.state_dict() if name.startswith(("stem.", "stages.0."))}
    assert set(frozen_tensors(model)) == names
    trained = {name for name, live in model.named_parameters() if live.requires_grad}
    assert trained == {name for name, _ in model.named_parameters()} - names
    assert not any(module in sent_modules(model) for module in model.stem.modules())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["stem"], 'has no part "stem"; it has convolutions, norms, classifier'),
        (["convolution"], "has no part"),
        (["convolutions", "norms", "classifier"], "leaves nothing to train"),
    ],
)
def test_a_part_that_is_not_there_and_a_whole_model_are_refused(
    parts: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        freeze(toy_model(), parts)
    assert "\n" not in str(error.value)


def test_a_module_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dcfl\.FeatureModel"):
        freeze(nn.Linear(2, 2), ["weight"])


class Dropping(FeatureModel):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        self.classifier = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Output:
        hidden = self.body(images.flatten(1))
        return Output(self.classifier(hidden), hidden, (hidden,))


def test_frozen_parts_stay_in_evaluation_mode() -> None:
    model = Dropping()
    freeze(model, ["body"])
    images = torch.randn(8, 1, 8, 8)
    expected = model.eval()(images).embedding
    _evaluated(model)
    assert torch.equal(frozen(model, snapshot(model)).train()(images).embedding, expected)
    with without_statistics(model):
        assert torch.equal(model.train()(images).embedding, expected)
    assert model.classifier.training
    assert int(model.body[1].num_batches_tracked) == 0  # type: ignore[arg-type]


def test_frozen_parts_of_an_adapted_module_too() -> None:
    """Its own `train` puts all of its layers in training mode."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = adapt(module)
    freeze(model, ["1", "2"])
    model.train()(torch.randn(8, 1, 8, 8))
    assert [layer.training for layer in module] == [True, False, False, True]
    assert int(module[2].num_batches_tracked) == 0  # type: ignore[arg-type]


def _evaluated(model: FeatureModel) -> None:
    with evaluating(model.train()):
        pass
    assert not any(module.training for module in model.get_submodule("body").modules())


def test_training_is_sgd_on_the_rest() -> None:
    """Against torch's own SGD, with the frozen layers in evaluation mode."""
    data = toy_client([0, 1, 2, 3] * 4, Augmentation())
    model = toy_model()
    freeze(model, FIRST)
    sent = {n: t for n, t in snapshot(model).items() if n not in frozen_tensors(model)}
    update, _ = visit(METHODS["fedavg"](), data, received=Broadcast(1, sent, {}), model=model)

    other = toy_model().train()
    other.convolutions[0].eval(), other.norms[0].eval()  # type: ignore[index]
    rest = [p for name, p in other.named_parameters() if not within(name, FIRST)]
    optimizer = torch.optim.SGD(rest, 0.05, momentum=0.9, weight_decay=5e-4)
    for batch in data.training_batches(2, TRAINING.batch_size, 0, 1, 0, second_view=False):
        optimizer.zero_grad()
        F.cross_entropy(other(batch.images).logits, batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(rest, 10.0)
        optimizer.step()
    assert update.weights.keys() == sent.keys()
    for name, tensor in other.state_dict().items():
        if name in sent:
            torch.testing.assert_close(update.weights[name], tensor)
        else:
            assert torch.equal(model.state_dict()[name], toy_model().state_dict()[name])


def test_a_shared_parameter_is_frozen_under_both_of_its_names() -> None:
    model = Dropping()
    model.twin = model.classifier
    freeze(model, ["classifier"])
    assert {name.partition(".")[0] for name in frozen_tensors(model)} == {"classifier", "twin"}


def test_a_message_may_leave_out_what_is_frozen_and_nothing_else() -> None:
    model = toy_model(seed=1)
    freeze(model, FIRST)
    sent = {n: t for n, t in snapshot(model).items() if n not in frozen_tensors(model)}
    assert sha256(frozen(model, sent).state_dict()) == sha256(model.state_dict())
    load(model, sent, optional=frozen_tensors(model))
    sent.pop("classifier.bias")
    with pytest.raises(KeyError):
        load(model, sent, optional=frozen_tensors(model))
    with pytest.raises(ConfigError, match="Missing key"):
        frozen(model, sent)
