"""What a trained model's representation looks like: `dcfl analyse`.

Imported on first use, because the command line starts without torch and matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcfl.analysis.page import write_analysis
    from dcfl.analysis.runs import Analysis, analyse_runs

__all__ = ["Analysis", "analyse_runs", "write_analysis"]

_HOMES = {
    "Analysis": "dcfl.analysis.runs",
    "analyse_runs": "dcfl.analysis.runs",
    "write_analysis": "dcfl.analysis.page",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dcfl.analysis' has no attribute {name!r}")
