"""Contrastive terms on several levels of the network, against loops over anchors on each level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.config import experiment_from
from dcfl.errors import ConfigError, ProtocolError
from dcfl.losses import relaxed_contrastive
from dcfl.messages import num_bytes
from dcfl.methods import METHODS, Method
from dcfl.methods.dcfl import DCFLPrototypeWise, DCFLSampleWise
from dcfl.methods.fedproc import FedProc
from dcfl.methods.fedrcl import FedRCL
from dcfl.methods.fedscl import FedSCL
from dcfl.methods.method import Levels
from dcfl.models.networks import ResNet18
from dcfl.tensors import snapshot
from dcfl.testing.contract import check_method
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model, two_rounds, visit
from tests.methods.cases import LABELS, batch, cosine, require_same

KNOWN = [True, True, False, True]
WIDTHS = [32, 64, 128]  # of the toy's stages
CHOICES: list[tuple[Levels, list[int]]] = [("all", [0, 1, 2]), ((1,), [1]), ((2, 0), [2, 0])]
WITH_LEVELS = ("dcfl-sw", "dcfl-pw", "fedscl", "fedproc", "fedrcl")


def client(prototypes: Tensor | None = None, head: str = "none") -> Client:
    if head == "none":
        network = toy_model().double().train()
    else:
        torch.manual_seed(0)
        network = ResNet18(1, 8, CLASSES, head=head).double().train()  # type: ignore[arg-type]
    shared = {} if prototypes is None else {"prototypes": prototypes, "known": torch.tensor(KNOWN)}
    return Client(0, 2, network, snapshot(network), shared, {}, toy_client(LABELS), TRAINING)


def pull_and_push(z: Tensor, candidates: list[tuple[Tensor, str]], method: Any) -> Tensor:
    """Of one anchor, from vectors that are each "same", of its class, or "other"."""
    tau = method.temperature
    same = [cosine(z, vector) / tau for vector, kind in candidates if kind == "same"]
    other = [cosine(z, vector) / tau for vector, kind in candidates if kind == "other"]
    if not same:
        return z.sum() * 0
    if isinstance(method, FedSCL | FedProc):  # coupled: the positives are in the denominator too
        below = torch.log(sum(torch.exp(one) for one in same + other))  # type: ignore[arg-type]
        return below - sum(same) / len(same)
    push = torch.log(sum(torch.exp(one) for one in other)) if other else z.sum() * 0  # type: ignore[arg-type]
    return -method.align * sum(same) / len(same) + method.uniform * push


def on_level(features: Tensor, prototypes: Tensor | None, method: Any) -> Tensor:
    losses = []
    for i, label in enumerate(LABELS):
        if prototypes is None:
            others = [j for j in range(len(LABELS)) if j != i]
            candidates = [(features[j], "same" if LABELS[j] == label else "other") for j in others]
        else:
            candidates = [
                (prototypes[c], "same" if c == label else "other")
                for c in range(CLASSES)
                if KNOWN[c]
            ]
        losses.append(pull_and_push(features[i], candidates, method))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("levels", "stages"), CHOICES, ids=str)
@pytest.mark.parametrize("kind", [DCFLSampleWise, DCFLPrototypeWise, FedSCL, FedProc])
def test_value_and_gradient_are_the_mean_over_the_levels(
    kind: type[Any], levels: Levels, stages: list[int]
) -> None:
    method, given = kind(mu=0.7, temperature=0.2, levels=levels), batch()
    widths = [WIDTHS[stage] for stage in stages]
    torch.manual_seed(5)
    by_level = [torch.randn(CLASSES, width, dtype=torch.float64) for width in widths]
    with_prototypes = kind in (DCFLPrototypeWise, FedProc)
    who = client(torch.cat(by_level, dim=1) if with_prototypes else None)
    loss = method.objective(who)(given)
    output = who.model(given.images)
    terms = [
        on_level(output.stages[stage], vectors if with_prototypes else None, method)
        for stage, vectors in zip(stages, by_level, strict=True)
    ]
    expected = F.cross_entropy(output.logits, given.labels) + 0.7 * sum(terms) / len(terms)
    require_same(loss, expected, who.model)


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_the_last_level_is_the_embedding_and_the_default_of_all_but_fedrcl(name: str) -> None:
    method: Any = METHODS[name]
    assert method().levels == ("all" if name == "fedrcl" else "last")
    output = toy_model()(batch().images.float())
    assert method(levels="last").levels_of(output)[0] is output.embedding
    assert [level.shape[1] for level in method(levels="all").levels_of(output)] == WIDTHS


def test_the_second_view_is_contrasted_on_every_level() -> None:
    method, given = DCFLSampleWise(mu=0.7, positives="view", levels="all"), batch()
    who, views = client(), torch.cat([given.images, given.images.flip(3)])
    loss = method.objective(who)(Batch(given.images, given.labels, given.images.flip(3)))
    output = who.model(views)
    terms = [method._contrast(stage, given.labels) for stage in output.stages]
    entropy = F.cross_entropy(output.logits[: len(LABELS)], given.labels)
    require_same(loss, entropy + 0.7 * sum(terms) / 3, who.model)


@pytest.mark.parametrize("head", ["side16", "mlp16"])
def test_heads_come_after_the_levels(head: str) -> None:
    """A head sees the term on the last level alone."""
    who, given = client(head=head), batch()
    for levels, reached in (("last", True), ("all", False)):
        who.model.zero_grad()
        loss = DCFLSampleWise(levels=levels).objective(who)(given)  # type: ignore[arg-type]
        (loss - F.cross_entropy(who.model(given.images).logits, given.labels)).backward()  # type: ignore[no-untyped-call]
        moved = {
            name
            for name, live in who.model.named_parameters()
            if live.grad is not None and live.grad.abs().max() > 1e-12
        }
        assert any("head" in name or "side" in name for name in moved) == reached
        assert not any("classifier" in name for name in moved)


# --- prototypes per level: what goes up ----------------------------------------------------------


@pytest.mark.parametrize("source", ["trained", "received", "running"])
@pytest.mark.parametrize("normalize", [False, True])
def test_sums_have_every_level_side_by_side(source: str, normalize: bool) -> None:
    how: dict[str, Any] = {"prototype_model": source, "prototype_normalize": normalize}
    method = DCFLPrototypeWise(levels="all", **how)
    update, _ = visit(method, toy_client(LABELS))
    assert update.upload["sums"].shape == (CLASSES, sum(WIDTHS))
    for stage, sums in enumerate(update.upload["sums"].split(WIDTHS, dim=1)):
        alone, _ = visit(DCFLPrototypeWise(levels=(stage,), **how), toy_client(LABELS))
        scale = 3**0.5 if normalize else 1.0  # together of unit length
        torch.testing.assert_close(sums * scale, alone.upload["sums"])
        assert torch.equal(update.upload["counts"], alone.upload["counts"])
    method.check_upload(update, TRAINING)
    if normalize:
        update.upload["sums"][:] *= 3
        with pytest.raises(ProtocolError, match="longer than their number"):
            method.check_upload(update, TRAINING)


def test_what_is_sent_grows_with_the_levels_as_its_cost_says() -> None:
    method = DCFLPrototypeWise(levels="all")
    rounds = two_rounds(method, "batch", LABELS)
    sizes = {"classes": CLASSES, "d": sum(WIDTHS)}
    assert num_bytes(rounds.first[0].update.upload) == eval(method.cost.up, sizes)
    assert num_bytes(rounds.shared) == eval(method.cost.down, sizes)


# --- contract and config -------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_the_contract_holds_on_every_level(name: str) -> None:
    parent: type[Any] = METHODS[name]
    other: Levels = "last" if name == "fedrcl" else "all"

    @dataclass(frozen=True)
    class Elsewhere(parent):  # type: ignore[misc]
        levels: Levels = other

    Elsewhere.name = name
    failed = [one for one in check_method(Elsewhere, "batch") if not one.holds]
    assert failed == []


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_levels_come_from_a_config(name: str) -> None:
    def method(levels: object) -> Any:
        return experiment_from(None, {"method": {"name": name, "levels": levels}}).method

    assert [method("all").levels, method("last").levels] == ["all", "last"]
    assert method([0, 2]).levels == (0, 2)
    for wrong, why in ((-1, "must be"), ([-1], "0 or more"), ([], "name stages"), ("x", "must be")):
        with pytest.raises(ConfigError, match=why):
            method(wrong)
    with pytest.raises(ConfigError, match=r"levels = \[0, 3\].* 0 to 2"):
        METHODS[name](levels=(0, 3)).levels_of(toy_model()(batch().images.float()))  # type: ignore[call-arg]


def test_methods_on_the_embedding_alone_have_no_levels() -> None:
    others = {name for name in METHODS if "levels" not in METHODS[name].__dataclass_fields__}
    assert others == set(METHODS) - set(WITH_LEVELS)
    output = toy_model()(batch().images.float())
    (level,) = Method.levels_of(METHODS["moon"](), output)
    assert level is output.embedding


def test_the_hardest_pairs_of_the_last_level_alone() -> None:
    who, given = client(), batch()
    method = FedRCL(mu=0.7, levels="last", temperature=0.5)
    expected = relaxed_contrastive(who.model(given.images).embedding, given.labels, 0.5)
    entropy = F.cross_entropy(who.model(given.images).logits, given.labels)
    require_same(method.objective(who)(given), entropy + 0.7 * expected, who.model)
