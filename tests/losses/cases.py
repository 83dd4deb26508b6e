"""Inputs for the loss tests, and the comparison with the reference loops."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# The same examples in every run and on every machine.
quick = settings(max_examples=50, deadline=None, derandomize=True)

seeds = st.integers(0, 2**31)
temperatures = st.floats(0.05, 2.0)
weights = st.floats(0.0, 2.0)
reductions = st.sampled_from(["sum", "mean"])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cosines(rows: int, columns: int, seed: int = 0) -> Tensor:
    uniform = torch.rand(rows, columns, generator=generator(seed), dtype=torch.float64)
    return 2 * uniform - 1


def mask(rows: int, columns: int, share: float, seed: int) -> Tensor:
    return torch.rand(rows, columns, generator=generator(seed)) < share


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64)


def clustered(labels: Tensor, dimensions: int, seed: int = 0, spread: float = 0.5) -> Tensor:
    """Features around one centre per class: some pairs lie above FedRCL's threshold, some below."""
    centres = normal(int(labels.max()) + 1, dimensions, seed)
    return centres[labels] + spread * normal(len(labels), dimensions, seed + 1)


def random_labels(rows: int, classes: int, seed: int) -> Tensor:
    return torch.randint(classes, (rows,), generator=generator(seed))


def permutation(size: int, seed: int = 0) -> Tensor:
    return torch.randperm(size, generator=generator(seed))


def others(labels: Tensor) -> Tensor:
    return ~torch.eye(len(labels), dtype=torch.bool)


def same(labels: Tensor) -> Tensor:
    return (labels[:, None] == labels[None, :]) & others(labels)


def different(labels: Tensor) -> Tensor:
    return labels[:, None] != labels[None, :]


@st.composite
def masked_similarities(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Any two masks, overlapping or not; sparse ones leave rows without positives or candidates."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(0, 7))
    first, second = draw(st.sampled_from([0.1, 0.5, 1.0])), draw(st.sampled_from([0.1, 0.5, 1.0]))
    seed = draw(seeds)
    return (
        cosines(rows, columns, seed),
        mask(rows, columns, first, seed + 1),
        mask(rows, columns, second, seed + 2),
    )


@st.composite
def labelled_features(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    # With one dimension all cosines are +-1 and the gradient at a tie is nobody's business.
    rows, dimensions = draw(st.integers(1, 7)), draw(st.integers(2, 5))
    labels = random_labels(rows, draw(st.integers(1, 4)), draw(seeds))
    return clustered(labels, dimensions, draw(seeds)), labels


def value_and_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The value and its gradient in every input; zero where it does not depend on one."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    if not value.requires_grad:
        return [value, *(torch.zeros_like(x) for x in leaves)]
    gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    return [value.detach(), *gradients]


def assert_agree(
    loss: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
    fixed: tuple[Tensor, ...] = (),
    **options: Any,
) -> None:
    """Same value and same gradients in `inputs`; `fixed` are masks, labels or constant features."""
    measured = value_and_gradients(lambda *x: loss(*x, *fixed, **options), *inputs)
    expected = value_and_gradients(lambda *x: reference(*x, *fixed, **options), *inputs)
    assert measured[0].shape == ()
    assert measured[0].dtype == torch.float64
    close(measured, expected)


def close(measured: Any, expected: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(measured, expected, rtol=tolerance, atol=tolerance)


def gradients_check(function: Callable[..., Tensor], *inputs: Tensor) -> bool:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(function, leaves)
