"""Federated learning on non-IID data: DCFL and the methods it is compared with.

    import dcfl

    result = dcfl.run(method="dcfl-pw", federation={"rounds": 20})
    print(result.summary.ema_accuracy, result.folder)

The names in `__all__` are the public ones. `dcfl.losses`, `dcfl.evaluation` and `dcfl.errors` are
modules of public functions and exceptions; `METHODS` is the dict of all methods by name. Everything
else in the package is internal and may change; docs/architecture.md says where to look.
"""

# ruff: noqa: I001
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below, as type checkers and editors read it
    from dcfl import errors as errors, evaluation as evaluation, losses as losses
    from dcfl.client import Batch as Batch, Client as Client
    from dcfl.comparisons.comparison import Comparison as Comparison, compare as compare
    from dcfl.comparisons.sweeping import sweep as sweep
    from dcfl.config import load_experiment as load_experiment
    from dcfl.data import Dataset as Dataset
    from dcfl.experiment import Experiment as Experiment
    from dcfl.messages import ClientUpdate as ClientUpdate
    from dcfl.methods import METHODS as METHODS, Method as Method, Objective as Objective
    from dcfl.methods import ServerStep as ServerStep
    from dcfl.models import (
        FeatureModel as FeatureModel,
        ModelSettings as ModelSettings,
        Output as Output,
        adapt as adapt,
        build_model as build_model,
    )
    from dcfl.runs.folder import open_run as open_run
    from dcfl.runs.model_file import load_model as load_model
    from dcfl.runs.rows import RoundRow as RoundRow, Summary as Summary
    from dcfl.runs.run import Result as Result, Run as Run
    from dcfl.runs.training import resume as resume, run as run
    from dcfl.scores import Scores as Scores
    from dcfl.testing.contract import check as check
    from dcfl.trackers import Tracker as Tracker
    from dcfl.trained.evaluate import evaluate as evaluate
    from dcfl.trained.predict import predict as predict

    __version__: str

_NAMES = {
    "": "errors evaluation losses",  # modules of public names
    ".client": "Batch Client",
    ".comparisons.comparison": "Comparison compare",
    ".comparisons.sweeping": "sweep",
    ".config": "load_experiment",
    ".data": "Dataset",
    ".experiment": "Experiment",
    ".messages": "ClientUpdate",
    ".methods": "METHODS Method Objective ServerStep",
    ".models": "FeatureModel ModelSettings Output adapt build_model",
    ".runs.folder": "open_run",
    ".runs.model_file": "load_model",
    ".runs.rows": "RoundRow Summary",
    ".runs.run": "Result Run",
    ".runs.training": "resume run",
    ".scores": "Scores",
    ".testing.contract": "check",
    ".trackers": "Tracker",
    ".trained.evaluate": "evaluate",
    ".trained.predict": "predict",
}
_HOMES = {name: f"dcfl{home}" for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and `dcfl --help` does not need it."""
    if name == "__version__":
        return import_module("dcfl.system.build").build()
    if _HOMES.get(name, "dcfl") != "dcfl":
        return getattr(import_module(_HOMES[name]), name)
    try:
        return import_module(f"dcfl.{name}")  # dcfl.losses, dcfl.errors, ...
    except ModuleNotFoundError as error:
        if error.name != f"dcfl.{name}":
            raise
    raise AttributeError(f"module 'dcfl' has no attribute {name!r}")
