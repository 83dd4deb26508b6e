"""Federated learning on non-IID data: DCFL and the methods it is compared with.

import dcfl
result = dcfl.run(method="dcfl-pw", federation={"rounds": 20})
print(result.summary["ema_accuracy"], result.folder)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcfl.experiment import Experiment
    from dcfl.methods import METHODS, Method
    from dcfl.runs.folder import load_model
    from dcfl.runs.run import run

__all__ = ["METHODS", "Experiment", "Method", "load_model", "run"]

_HOMES = {
    "Experiment": "dcfl.experiment",
    "METHODS": "dcfl.methods",
    "Method": "dcfl.methods",
    "load_model": "dcfl.runs.folder",
    "run": "dcfl.runs.run",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and `dcfl --help` does not need it."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    try:
        return import_module(f"dcfl.{name}")  # dcfl.losses, dcfl.errors, ...
    except ModuleNotFoundError as error:
        if error.name != f"dcfl.{name}":
            raise
    raise AttributeError(f"module 'dcfl' has no attribute {name!r}")
