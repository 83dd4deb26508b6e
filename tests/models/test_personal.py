"""Personal parts of a model: what they are, and that each client has its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.data import Augmentation
from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.methods.method import Method
from dcfl.models import FeatureModel, ModelSettings, Output, build_model
from dcfl.models.parts import (
    freeze,
    personal_and_rest,
    personal_tensors,
    personalise,
    sent_modules,
    unsent_tensors,
    with_personal,
)
from dcfl.server import Server, ServerState
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model, visit

HEAD = {"classifier.weight", "classifier.bias"}


def test_norms_are_all_normalisation_layers_with_their_statistics() -> None:
    model = build_model(ModelSettings("resnet8"), 1, 8, 4, seed=0)
    personalise(model, ["norms"])
    layers = [n for n, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert set(personal_tensors(model)) == {f"{n}.{kind}" for n in layers for kind in kinds}
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in sent_modules(model))


def test_what_is_frozen_is_not_personal() -> None:
    model = toy_model()
    freeze(model, ["norms.0"])
    personalise(model, ["norms", "classifier"])
    own = personal_tensors(model)
    assert not any(name.startswith("norms.0.") for name in own)
    assert own.keys() > HEAD
    assert unsent_tensors(model).keys() - own.keys() == {
        name for name in model.state_dict() if name.startswith("norms.0.")
    }


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["head"], 'federation.personal: the model has no part "head"; it has convolutions, norms'),
        (["convolutions", "norms", "classifier"], "leaves nothing to train together"),
    ],
)
def test_names_that_do_not_fit_are_refused(parts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        personalise(toy_model(), parts)
    assert "\n" not in str(error.value)


def test_a_frozen_part_cannot_be_personal() -> None:
    model = toy_model()
    freeze(model, ["classifier"])
    with pytest.raises(ConfigError, match="names nothing that is trained: classifier"):
        personalise(model, ["classifier"])


def test_other_modules_and_models_without_norms_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dcfl\.FeatureModel"):
        personalise(nn.Linear(2, 2), ["weight"])
    with pytest.raises(ConfigError, match="the model has no normalisation layers"):
        personalise(Line(), ["norms"])


def test_memory_is_the_methods_alone_without_a_personal_part() -> None:
    remembered = {"c": torch.ones(1)}
    assert with_personal({}, remembered) is remembered
    kept = with_personal({"classifier.bias": torch.zeros(2)}, remembered)
    own, rest = personal_and_rest(kept)
    assert (list(own), list(rest)) == (["classifier.bias"], ["c"])


class Line(FeatureModel):
    """y = b * a * x, with one number each: the body a, the head b."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)
        nn.init.constant_(self.body.weight, 1.0)
        nn.init.constant_(self.head.weight, 0.5)

    def forward(self, images: Tensor) -> Output:
        hidden = self.body(images.flatten(1).mean(dim=1, keepdim=True))
        return Output(self.head(hidden), hidden, (hidden,))


class Pull(Method):
    """L = sum(w) over all numbers: one plain step moves each of them by -lr."""

    def objective(self, client):  # type: ignore[no-untyped-def]
        return lambda batch: sum(live.sum() for _, live in client.trainable())


PLAIN = LocalTraining(
    epochs=1,
    batch_size=4,
    lr=0.25,
    lr_decay=1.0,
    momentum=0.0,
    weight_decay=0.0,
    max_grad_norm=0.0,
)


def rounds(steps: dict[int, int], count: int, head_epochs: int = 0) -> tuple[Tensors, dict]:  # type: ignore[type-arg]
    """So many rounds of clients with so many batches each; the global weights and memories."""
    model = Line()
    personalise(model, ["head"])
    training = replace(PLAIN, head_epochs=head_epochs)
    server = Server(Pull(), 2, frozenset({"body.weight", "head.weight"}), training)
    server = replace(server, unsent=frozenset({"head.weight"}))
    state = ServerState(0, snapshot(model), {}, {})
    first = with_personal(snapshot(model, ["head.weight"]), {})
    memories: dict[int, Tensors] = dict.fromkeys(steps, first)
    for _ in range(count):
        broadcast = server.broadcast(state)
        assert list(broadcast.weights) == ["body.weight"]
        replies: list[ClientUpdate] = []
        for client, batches in steps.items():
            reply, memories[client] = visit(
                Pull(),
                toy_client([0, 1] * 2 * batches),
                received=broadcast,
                memory=memories[client],
                training=training,
                client=client,
                model=model,
            )
            assert list(reply.weights) == ["body.weight"]
            replies.append(reply)
        state, _ = server.aggregate(state, broadcast, replies)
    heads = {client: personal_and_rest(kept)[0]["head.weight"] for client, kept in memories.items()}
    return state.weights, heads


def test_by_hand_the_body_is_averaged_and_each_head_goes_its_own_way() -> None:
    """One client takes one step of -0.25 a round, the other three: the body moves by the mean,
    -0.5 a round, the heads by -0.25 and -0.75, and the server's head not at all."""
    weights, heads = rounds({0: 1, 1: 3}, 2)
    assert weights["body.weight"].tolist() == [[1.0 - 2 * 0.5]]
    assert weights["head.weight"].tolist() == [[0.5], [0.5]]
    assert heads[0].tolist() == [[0.5 - 2 * 0.25]] * 2
    assert heads[1].tolist() == [[0.5 - 2 * 0.75]] * 2


def test_by_hand_the_head_trains_first_and_then_the_body() -> None:
    """FedRep: two epochs of the head alone, then one of the body alone."""
    weights, heads = rounds({0: 1, 1: 3}, 1, head_epochs=2)
    assert weights["body.weight"].tolist() == [[1.0 - 0.5]]
    assert heads[0].tolist() == [[0.5 - 2 * 0.25]] * 2
    assert heads[1].tolist() == [[0.5 - 2 * 0.75]] * 2


def test_fedrep_is_sgd_on_the_head_and_then_on_the_body() -> None:
    """Against torch's own SGD. The server hears of the body's steps alone."""
    data = toy_client([0, 1, 2, 3] * 4, Augmentation())
    model = toy_model()
    personalise(model, ["classifier"])
    sent = {n: t for n, t in snapshot(model).items() if n not in HEAD}
    training = replace(TRAINING, head_epochs=1)
    update, memory = visit(
        METHODS["fedavg"](), data, received=Broadcast(1, sent, {}), model=model, training=training
    )
    other = toy_model().train()
    head = [p for name, p in other.named_parameters() if name in HEAD]
    body = [p for name, p in other.named_parameters() if name not in HEAD]
    optimizers = [
        torch.optim.SGD(part, 0.05, momentum=0.9, weight_decay=5e-4) for part in (head, body)
    ]
    for batch in data.training_batches(3, TRAINING.batch_size, 0, 1, 0, second_view=False):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(other(batch.images).logits, batch.labels).backward()
        later = batch.epoch >= 1
        torch.nn.utils.clip_grad_norm_(body if later else head, 10.0)
        optimizers[later].step()
    assert update.num_steps == 4
    assert update.weights.keys() == sent.keys()
    own, _ = personal_and_rest(memory)
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close({**update.weights, **own}[name], tensor)


def test_a_client_continues_with_its_own_part_whoever_trained_in_between() -> None:
    model = toy_model()
    personalise(model, ["norms", "classifier"])
    sent = {n: t for n, t in snapshot(model).items() if n not in personal_tensors(model)}
    broadcast, method = Broadcast(1, sent, {}), METHODS["moon"]()
    _, first = visit(method, toy_client([0, 1] * 8), received=broadcast, model=model)
    again, _ = visit(method, toy_client([2, 3] * 8), received=broadcast, memory=first, model=model)
    visit(method, toy_client([1, 2] * 8), received=broadcast, model=model)
    once_more, _ = visit(
        method, toy_client([2, 3] * 8), received=broadcast, memory=first, model=model
    )
    assert sha256(again.weights) == sha256(once_more.weights)


class Telltale(Method):
    def upload(self, client):  # type: ignore[no-untyped-def]
        return {name: live.detach() for name, live in client.trainable()}


def test_an_upload_of_a_personal_tensor_is_refused() -> None:
    model = toy_model()
    personalise(model, ["classifier"])
    with pytest.raises(ConfigError, match=r"uploads classifier\.bias, which federation\.personal"):
        visit(Telltale(), toy_client([0, 1] * 4), model=model)
