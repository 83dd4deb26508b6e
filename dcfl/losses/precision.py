"""Computes losses in float32 or better, whatever autocast or the model's dtype says."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

Parameters = ParamSpec("Parameters")


def _raised(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def in_full_precision(loss: Callable[Parameters, Tensor]) -> Callable[Parameters, Tensor]:
    """Run a loss outside autocast, with half-precision arguments converted to float32.

    exp(1 / temperature) overflows float16 for temperatures below 0.09, and bfloat16 has steps of
    0.125 near 20. float64 stays float64.
    """

    @wraps(loss)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        first = args[0] if args else next(iter(kwargs.values()))
        device = first.device.type if isinstance(first, Tensor) else "cpu"
        with torch.autocast(device, enabled=False):
            return loss(
                *(_raised(value) for value in args),
                **{name: _raised(value) for name, value in kwargs.items()},
            )

    return wrapper
