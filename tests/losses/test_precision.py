"""What holds for every loss: float32 maths for half precision, no overflow, untouched inputs."""

from functools import partial

import pytest
import torch

from dcfl import losses
from tests.losses import reference
from tests.losses.cases import close, clustered, cosines, different, normal, others, same

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2, 3])
# 200 squared times 32 is beyond float16: the norm itself must not be taken in half precision.
FEATURES = 200 * clustered(LABELS, 32)
# Numbers that every dtype holds exactly: only the first argument is rounded in these tests.
GLOBAL, PREVIOUS = (normal(8, 32, seed).mul(8).round().div(8) for seed in (5, 6))
COSINES = cosines(8, 8).fill_diagonal_(1.0)
# float32's exp ends at 88, and 1 / 0.01 is 100.
COSINES[0, 1:3] = torch.tensor([1.0, -1.0])


def decoupled(module, s, **options):
    return module.decoupled_contrastive(s, same(LABELS), different(LABELS), **options)


def supervised(module, s, **options):
    return module.supervised_contrastive(s, same(LABELS), others(LABELS), **options)


def relaxed(module, z, **options):
    return module.relaxed_contrastive(z, LABELS, **options)


def moon(module, z, **options):
    return module.model_contrastive(z, GLOBAL.to(z.dtype), PREVIOUS.to(z.dtype), **options)


def first_visit(module, z):
    return module.model_contrastive(z, GLOBAL.to(z.dtype), None)


def decorrelation(module, z):
    return module.decorrelation(z)


def cosine(module, z):
    return module.cosine_similarity(z, PREVIOUS.to(z.dtype))


TEMPERED = {
    "decoupled sum": (decoupled, COSINES),
    "decoupled mean": (partial(decoupled, reduction="mean"), COSINES),
    "supervised sum": (partial(supervised, reduction="sum"), COSINES),
    "supervised mean": (supervised, COSINES),
    "relaxed": (relaxed, FEATURES),
    "relaxed, three positives": (partial(relaxed, hardest_positives=3), FEATURES),
    "model": (moon, FEATURES),
}
EVERY = TEMPERED | {
    "model, first visit": (first_visit, FEATURES),
    "decorrelation": (decorrelation, FEATURES),
    "cosine": (cosine, FEATURES),
}

tempered = pytest.mark.parametrize(("loss", "x"), TEMPERED.values(), ids=TEMPERED)
every = pytest.mark.parametrize(("loss", "x"), EVERY.values(), ids=EVERY)
half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_full_precision_is_kept(loss, x, dtype):
    assert loss(losses, x.to(dtype)).dtype == dtype


@every
@half
def test_half_precision_input_is_computed_in_float32(loss, x, dtype):
    value = loss(losses, x.to(dtype))
    assert value.dtype == torch.float32
    close(value, loss(losses, x.to(dtype).float()), tolerance=1e-6)


@every
@half
def test_autocast_changes_neither_value_nor_gradient(loss, x, dtype):
    plain, cast = (x.float().requires_grad_() for _ in range(2))
    expected = loss(losses, plain)
    with torch.autocast("cpu", dtype=dtype):
        value = loss(losses, cast)
    assert value.dtype == torch.float32
    close(value, expected, tolerance=1e-6)
    if expected.requires_grad:
        expected.sum().backward()
        value.sum().backward()
        close(cast.grad, plain.grad, tolerance=1e-6)


@every
@half
def test_half_precision_input_under_autocast_gives_float32(loss, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        value = loss(losses, x.to(dtype))
    assert value.dtype == torch.float32
    close(value, loss(losses, x.to(dtype)), tolerance=1e-6)


@tempered
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"]
)
def test_temperature_of_one_hundredth_stays_finite(loss, x, dtype):
    leaf = x.to(dtype).requires_grad_()
    value = loss(losses, leaf, temperature=0.01)
    value.backward()
    assert value.isfinite()
    assert leaf.grad.isfinite().all()


@tempered
def test_temperature_of_one_hundredth_is_accurate_in_float32(loss, x):
    expected = loss(reference, x, temperature=0.01)
    value = loss(losses, x.float(), temperature=0.01).double()
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)


def test_opposite_positives_and_near_negatives_do_not_overflow_the_relaxed_loss():
    # (n - p) / tau = 200: the largest exponent that cosines and this temperature can make.
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    value = losses.relaxed_contrastive(features, labels, temperature=0.01, penalty=0.0)
    assert value.item() == pytest.approx(200, rel=1e-5)


@every
def test_inputs_are_left_untouched(loss, x):
    before = x.clone()
    loss(losses, x)
    assert torch.equal(x, before)


def test_masks_are_left_untouched():
    positives, negatives = same(LABELS), different(LABELS)
    losses.decoupled_contrastive(COSINES, positives, negatives)
    losses.supervised_contrastive(COSINES, positives, negatives)
    assert torch.equal(positives, same(LABELS))
    assert torch.equal(negatives, different(LABELS))
