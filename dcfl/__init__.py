"""Federated learning on non-IID data: DCFL and the methods it is compared with.

    import dcfl

    result = dcfl.run(method="dcfl-pw", federation={"rounds": 20})
    print(result.summary.ema_accuracy, result.folder)

The names in `__all__` are the public ones. `dcfl.losses`, `dcfl.evaluation` and `dcfl.errors` are
modules of public functions and exceptions; `METHODS` is the dict of all methods by name. Everything
else in the package is internal and may change; docs/architecture.md says where to look.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcfl import errors, evaluation, losses
    from dcfl.client import Batch, Client
    from dcfl.comparisons.comparison import Comparison, compare
    from dcfl.comparisons.sweeping import sweep
    from dcfl.config import load_experiment
    from dcfl.data import Dataset
    from dcfl.experiment import Experiment
    from dcfl.methods import METHODS, Method, Objective
    from dcfl.models import FeatureModel, Output, adapt
    from dcfl.runs.model_file import load_model
    from dcfl.runs.rows import RoundRow, Summary
    from dcfl.runs.run import Result, Run
    from dcfl.runs.training import resume, run
    from dcfl.scores import Scores
    from dcfl.trained.evaluate import evaluate
    from dcfl.trained.predict import predict

__all__ = [
    "METHODS",
    "Batch",
    "Client",
    "Comparison",
    "Dataset",
    "Experiment",
    "FeatureModel",
    "Method",
    "Objective",
    "Output",
    "Result",
    "RoundRow",
    "Run",
    "Scores",
    "Summary",
    "adapt",
    "compare",
    "errors",
    "evaluate",
    "evaluation",
    "load_experiment",
    "load_model",
    "losses",
    "predict",
    "resume",
    "run",
    "sweep",
]

_HOMES = {
    "METHODS": "dcfl.methods",
    "Batch": "dcfl.client",
    "Client": "dcfl.client",
    "Comparison": "dcfl.comparisons.comparison",
    "Dataset": "dcfl.data",
    "Experiment": "dcfl.experiment",
    "FeatureModel": "dcfl.models",
    "Method": "dcfl.methods",
    "Objective": "dcfl.methods",
    "Output": "dcfl.models",
    "Result": "dcfl.runs.run",
    "RoundRow": "dcfl.runs.rows",
    "Run": "dcfl.runs.run",
    "Scores": "dcfl.scores",
    "Summary": "dcfl.runs.rows",
    "adapt": "dcfl.models",
    "compare": "dcfl.comparisons.comparison",
    "evaluate": "dcfl.trained.evaluate",
    "load_experiment": "dcfl.config",
    "load_model": "dcfl.runs.model_file",
    "predict": "dcfl.trained.predict",
    "resume": "dcfl.runs.training",
    "run": "dcfl.runs.training",
    "sweep": "dcfl.comparisons.sweeping",
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
