"""DCFL's objectives against Eq. 10 written as loops over anchors."""

import copy
import pickle
import warnings
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import SettingsWarning
from dcfl.methods import Method
from dcfl.methods.dcfl import DCFLPrototypeWise, DCFLSampleWise
from dcfl.testing.toys import TRAINING, toy_client, toy_model
from tests.methods.cases import LABELS


def client(labels: list[int], shared: dict[str, Tensor] | None = None) -> Client:
    network = toy_model().double()
    data = toy_client(labels)
    return Client(0, 2, network, network.state_dict(), shared or {}, {}, data, TRAINING)


def batch(labels: list[int], second_view: bool = False) -> Batch:
    torch.manual_seed(1)
    images = torch.randn(len(labels), 1, 8, 8, dtype=torch.float64)
    other = torch.randn_like(images) if second_view else None
    return Batch(images, torch.tensor(labels), other)


def anchor_loss(positives: list[float], negatives: list[float], m: DCFLSampleWise) -> float:
    """Eq. 10 for one anchor, from the cosines of its positives and negatives."""
    attraction = sum(s / m.temperature for s in positives)
    repulsion = log(sum(exp(s / m.temperature) for s in negatives)) if negatives else 0.0
    loss = -m.align * attraction + m.uniform * len(positives) * repulsion
    return loss / len(positives) if m.reduction == "mean" and positives else loss


def contrastive_part(method: Method, who: Client, given: Batch) -> float:
    """(L - L_CE) / mu, with the forward pass repeated on the side."""
    whole = method.objective(who)(given)
    views = [given.images] if given.second_view is None else [given.images, given.second_view]
    logits = who.model(torch.cat(views)).logits[: len(given.labels)]
    part = (whole - F.cross_entropy(logits, given.labels)) / method.mu  # type: ignore[attr-defined]
    return part.item()


def cosines(a: Tensor, b: Tensor) -> list[list[float]]:
    return [[float(F.cosine_similarity(x, y, dim=0)) for y in b] for x in a]


@pytest.mark.parametrize("positives", ["same-class", "view", "same-class+view"])
@pytest.mark.parametrize("negatives", ["other-classes", "all-others", "all-but-positives"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("anchors", ["all", "with-positives", "sum"])
def test_sample_wise_is_equation_10(
    positives: str, negatives: str, reduction: str, anchors: str
) -> None:
    method = DCFLSampleWise(
        mu=0.7,
        positives=positives,
        negatives=negatives,
        reduction=reduction,
        anchors=anchors,  # type: ignore[arg-type]
    )
    who, given = client(LABELS), batch(LABELS, second_view=method.second_view)
    views = [given.images] if given.second_view is None else [given.images, given.second_view]
    z = who.model(torch.cat(views)).embedding.detach()
    labels = LABELS * len(views)
    s = cosines(z, z)

    losses, with_positives = [], 0
    for i in range(len(labels)):
        p, n = [], []
        for j in range(len(labels)):
            other_view = j != i and j % len(LABELS) == i % len(LABELS)
            same = j != i and labels[j] == labels[i]
            is_positive = other_view if positives == "view" else same
            if is_positive:
                p.append(s[i][j])
            is_negative = {
                "other-classes": labels[j] != labels[i],
                "all-others": j != i,
                "all-but-positives": j != i and not is_positive,
            }[negatives]
            if is_negative:
                n.append(s[i][j])
        losses.append(anchor_loss(p, n, method))
        with_positives += bool(p)
    divisor = {"all": len(losses), "with-positives": with_positives, "sum": 1}[anchors]
    assert contrastive_part(method, who, given) == pytest.approx(sum(losses) / divisor, abs=1e-9)


def test_without_its_own_view_among_the_negatives_an_image_is_not_pushed_from_it() -> None:
    """The bullet's reading: the positive is not in N_i, so attraction and repulsion stay apart."""
    torch.manual_seed(2)
    z = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)  # one image, two views
    repulsion = DCFLSampleWise(
        positives="view", negatives="all-but-positives", align=0.0, uniform=1.0
    )
    assert repulsion._contrast(z, torch.tensor([0])).item() == 0
    coupled = replace(repulsion, negatives="all-others")
    assert coupled._contrast(z, torch.tensor([0])).item() != 0


def test_prototype_wise_is_equation_10_over_the_known_prototypes() -> None:
    prototypes = torch.randn(4, 128, dtype=torch.float64)
    known = torch.tensor([True, True, False, True])
    method = DCFLPrototypeWise(mu=3.0)
    who = client(LABELS, {"prototypes": prototypes, "known": known})
    given = batch(LABELS)
    s = cosines(who.model(given.images).embedding.detach(), prototypes)
    losses = []
    for i, label in enumerate(LABELS):
        others = [s[i][g] for g in range(4) if g != label and known[g]]
        own = [s[i][label]] if known[label] else []  # class 2 has no prototype: nothing for it
        losses.append(anchor_loss(own, others, DCFLSampleWise()))  # one positive: sum is mean
    expected = sum(losses) / len(losses)
    assert contrastive_part(method, who, given) == pytest.approx(expected, abs=1e-9)


def test_prototype_wise_is_cross_entropy_while_there_are_no_prototypes() -> None:
    assert contrastive_part(DCFLPrototypeWise(mu=3.0), client(LABELS), batch(LABELS)) == 0


def test_prototypes_are_constants_in_the_gradient() -> None:
    prototypes = torch.randn(4, 128, dtype=torch.float64, requires_grad=True)
    shared = {"prototypes": prototypes, "known": torch.ones(4, dtype=torch.bool)}
    DCFLPrototypeWise().objective(client(LABELS, shared))(batch(LABELS)).backward()
    assert prototypes.grad is None


def test_gradients_flow_through_every_member_of_a_pair() -> None:
    """Detaching the candidates would halve the pull between two samples."""
    method, given = DCFLSampleWise(), batch([0, 0])
    z = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    method._contrast(z, given.labels).backward()
    cosine = F.cosine_similarity(z[0], z[1], dim=0)
    by_hand = torch.autograd.grad(-0.9 * cosine / 0.5, z)[0]
    torch.testing.assert_close(z.grad, by_hand)


def test_weights_that_do_not_sum_to_one_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="the paper asks for 1"):
        DCFLSampleWise(align=1.0, uniform=1.0)


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
def test_sample_wise_takes_the_mean_over_positives_and_the_mu_of_prototype_wise(
    dataset: str,
) -> None:
    method = DCFLSampleWise.for_dataset(dataset)
    assert method.reduction == "mean"
    assert method.mu == DCFLPrototypeWise.for_dataset(dataset).mu


@pytest.mark.parametrize("mu", [1.0, 10.0])
def test_the_sum_over_positives_with_a_mu_that_collapses_is_warned_about(mu: float) -> None:
    with pytest.warns(SettingsWarning, match="trains to chance"):
        DCFLSampleWise(reduction="sum", mu=mu)


@pytest.mark.parametrize(
    "values",
    [
        {"mu": 10.0},  # the mean
        {"mu": 0.1, "reduction": "sum"},
        {"mu": 10.0, "reduction": "sum", "positives": "view"},  # one positive: the sum is the mean
    ],
)
def test_what_trains_is_not_warned_about(values: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DCFLSampleWise(**values)


def test_neither_a_copy_nor_another_process_repeats_the_warning() -> None:
    with pytest.warns(SettingsWarning):
        method = DCFLSampleWise(reduction="sum", mu=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pickle.loads(pickle.dumps(copy.deepcopy(method))) == method
