"""Scores against torchmetrics, which sees all images at once and counts nothing."""

import math
from dataclasses import replace
from functools import reduce
from operator import add
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl.evaluation import score_model
from dcfl.scores import CONFIDENCE_BINS, ODDS_BINS, ODDS_REACH, ODDS_SCALE, Scores, scores_of
from dcfl.testing.toys import toy_model
from tests import toys

CASES = [(2, 1.0), (5, 0.3), (10, 3.0), (30, 10.0)]  # classes, and how sure the classifier is


def answers(classes: int, sure: float = 1.0, count: int = 600, seed: int = 0) -> tuple[Tensor, ...]:
    """Logits of a classifier that is right more often than not, and labels with every class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    noise = torch.randn(count, classes, generator=generator)
    return sure * (noise + 1.5 * torch.nn.functional.one_hot(labels, classes)), labels


@pytest.mark.parametrize(("classes", "sure"), CASES)
def test_answers_are_judged_as_by_torchmetrics(classes: int, sure: float) -> None:
    logits, labels = answers(classes, sure)
    scores = Scores.of(logits, labels)
    expected = oracle.multiclass_confusion_matrix(logits, labels, classes)
    assert torch.equal(scores.confusion, expected.double())
    averages: tuple[dict[str, Any], ...] = tuple(
        {"num_classes": classes, "average": average} for average in ("micro", "macro", None)
    )
    micro, macro, each = averages
    for ours, theirs in [
        (scores.accuracy, oracle.multiclass_accuracy(logits, labels, **micro)),
        (scores.balanced_accuracy, oracle.multiclass_accuracy(logits, labels, **macro)),
        (scores.macro_f1, oracle.multiclass_f1_score(logits, labels, **macro)),
        (scores.recall, oracle.multiclass_recall(logits, labels, **each)),
        (scores.precision, oracle.multiclass_precision(logits, labels, **each)),
        (scores.f1, oracle.multiclass_f1_score(logits, labels, **each)),
    ]:
        torch.testing.assert_close(torch.as_tensor(ours).float(), 100 * theirs)


@pytest.mark.parametrize(("classes", "sure"), CASES)
def test_calibration_is_judged_as_by_torchmetrics(classes: int, sure: float) -> None:
    logits, labels = answers(classes, sure)
    probabilities = logits.double().softmax(dim=1)
    theirs = oracle.multiclass_calibration_error(probabilities, labels, classes, CONFIDENCE_BINS)
    scores = Scores.of(logits, labels)
    assert scores.calibration_error == pytest.approx(100 * theirs.item(), abs=1e-4)
    confidence, accuracy = scores.reliability
    images = scores.confidence[0]
    known = images > 0
    gap = (images * (confidence - accuracy).abs())[known].sum() / images.sum()
    assert gap.item() == pytest.approx(scores.calibration_error)


@pytest.mark.parametrize(("classes", "sure"), CASES)
def test_loss_is_the_mean_cross_entropy(classes: int, sure: float) -> None:
    logits, labels = answers(classes, sure)
    expected = torch.nn.functional.cross_entropy(logits.double(), labels).item()
    assert Scores.of(logits, labels).loss == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("classes", "sure"), CASES[:3])  # float64 tells probabilities apart here
def test_auc_is_that_of_torchmetrics_with_the_same_bins(classes: int, sure: float) -> None:
    logits, labels = answers(classes, sure)
    steps = torch.linspace(-ODDS_REACH, ODDS_REACH, ODDS_BINS + 1, dtype=torch.float64)
    edges = torch.sigmoid(ODDS_SCALE * torch.sinh(steps))
    probabilities = logits.double().softmax(dim=1)
    theirs = oracle.multiclass_auroc(
        probabilities, labels, classes, average=None, thresholds=torch.from_numpy(np.unique(edges))
    )
    ours = Scores.of(logits, labels).auc
    torch.testing.assert_close(ours, theirs.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("classes", "sure"), CASES)
def test_auc_is_within_its_bound_of_the_exact_one(classes: int, sure: float) -> None:
    logits, labels = answers(classes, sure)
    scores = Scores.of(logits, labels)
    exact = oracle.multiclass_auroc(
        logits.double().softmax(dim=1), labels, classes, average=None
    ).double()
    assert ((scores.auc - exact).abs() <= scores.auc_error + 1e-7).all()
    assert scores.mean_auc_error < 0.01
    assert scores.mean_auc == pytest.approx(exact.mean().item(), abs=5e-4)


def test_auc_needs_neither_separation_nor_luck() -> None:
    """Everything right, everything wrong, and all alike."""
    labels = torch.tensor([0, 0, 1, 1])
    right = torch.nn.functional.one_hot(labels, 2).float()
    assert Scores.of(4 * right, labels).auc.tolist() == [1.0, 1.0]
    assert Scores.of(-4 * right, labels).auc.tolist() == [0.0, 0.0]
    alike = Scores.of(torch.zeros(4, 2), labels)
    assert (alike.auc.tolist(), alike.auc_error.tolist()) == ([0.5, 0.5], [0.5, 0.5])


def test_very_sure_classifiers_are_still_told_apart() -> None:
    """Probabilities of 1 in float64, whose odds differ."""
    logits = torch.tensor([[50.0, 0.0], [90.0, 0.0]])
    assert Scores.of(logits, torch.tensor([1, 0])).auc.tolist() == [1.0, 1.0]


LOGITS = st.floats(-200, 200, width=32)
SAMPLES = st.integers(2, 5).flatmap(
    lambda classes: st.lists(
        st.tuples(
            st.lists(LOGITS, min_size=classes, max_size=classes), st.integers(0, classes - 1)
        ),
        min_size=1,
        max_size=25,
    )
)


@settings(deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_parts_add_up_to_the_whole_to_the_last_bit(samples: list[Any], random: Random) -> None:
    classes = len(samples[0][0])
    logits = torch.tensor([row for row, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    order = list(range(len(samples)))
    random.shuffle(order)
    parts = [Scores.of(logits[i : i + 1], labels[i : i + 1]) for i in order]
    whole = Scores.of(logits, labels)
    together = reduce(add, parts, Scores.none(classes))
    assert together == whole
    assert Scores.of_tensors(whole.tensors, classes) == whole
    assert (whole.accuracy, whole.loss) == (together.accuracy, together.loss)
    assert whole.absent == [label for label in range(classes) if label not in labels]


@settings(deadline=None)
@given(SAMPLES)
def test_auc_is_within_its_bound_of_a_count_of_all_pairs(samples: list[Any]) -> None:
    logits = torch.tensor([row for row, _ in samples], dtype=torch.float64)
    labels = torch.tensor([label for _, label in samples])
    scores = Scores.of(logits, labels)
    for label, (auc, error) in enumerate(zip(scores.auc, scores.auc_error, strict=True)):
        rest = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=1)
        odds = logits[:, label] - rest.logsumexp(dim=1)
        own, others = odds[labels == label], odds[labels != label]
        if not len(own) or not len(others):
            assert auc.isnan()
            continue
        above = (own[:, None] - others[None, :]).sign()
        assert abs(auc - (above + 1).mean() / 2) <= error + 1e-9


def test_a_class_without_images_is_nan_and_in_no_mean() -> None:
    logits, labels = answers(4)
    some = labels != 2
    scores = Scores.of(logits[some], labels[some])
    assert scores.absent == [2]
    for values in (scores.recall, scores.precision, scores.f1, scores.auc):
        assert values.isnan().tolist() == [False, False, True, False]
    assert scores.balanced_accuracy == pytest.approx(scores.recall[[0, 1, 3]].mean().item())
    assert math.isfinite(scores.macro_f1 + scores.mean_auc)


def test_a_class_that_is_never_answered_has_no_precision_and_counts_in_f1() -> None:
    scores = Scores.of(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert scores.precision[1].isnan()
    assert scores.f1.tolist() == pytest.approx([200 / 3, 0.0])


def test_no_images_have_no_scores() -> None:
    none = Scores.none(3)
    assert none.images == 0
    values = (none.accuracy, none.balanced_accuracy, none.mean_auc, none.loss)
    assert all(math.isnan(value) for value in values)


def test_a_weight_stands_for_so_many_images() -> None:
    scores = Scores.of(*answers(3))
    assert scores + scores == scores.weighted(2.0)
    assert scores.weighted(0.37).macro_f1 == pytest.approx(scores.macro_f1)
    Scores.of_tensors(scores.weighted(0.37).tensors, 3)
    with pytest.raises(ValueError, match="3 and of 4"):
        scores + Scores.none(4)


def test_counts_that_no_images_can_have_are_refused() -> None:
    good = Scores.of(*answers(3))
    more = good.confusion.clone()
    more[0, 0] += 1
    confident = good.confidence.clone()
    confident[1, -1] *= 2
    for bad in (
        replace(good, confusion=more),
        replace(good, confidence=confident),
        replace(good, odds=-good.odds),
        replace(good, odds=good.odds[:, :, :10]),
        replace(good, confusion=good.confusion.float()),
        replace(good, total_loss=math.nan),
        replace(good, total_loss=1e12),
        replace(good, confusion=good.confusion * math.nan),
        Scores.of(*answers(4)),
    ):
        with pytest.raises(ValueError, match="scores"):
            Scores.of_tensors(bad.tensors, 3)
    with pytest.raises(ValueError, match="scores"):
        Scores.of_tensors({"confusion": good.confusion}, 3)


def test_a_model_that_has_diverged_has_no_scores() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Scores.of(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]))


def test_a_model_gets_the_accuracy_of_the_training_loop() -> None:
    toy, model = toys.dataset(test=1203), toy_model()
    scores = scores_of(model, toy.test, toy.preparation, toy.classes)
    accuracy, loss, by_class, _ = score_model(model, toy)
    assert scores.images == 1203
    assert scores.accuracy == pytest.approx(accuracy)
    assert scores.loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(scores.recall, by_class)
