"""Decides whether a run has trained enough: federation.patience and federation.target_accuracy."""

from __future__ import annotations

from dcfl.experiment import FederationSettings
from dcfl.runs.rounds_so_far import RoundsSoFar


def reason_to_end(federation: FederationSettings, rounds: RoundsSoFar) -> str:
    """Why the run ends before its last round; empty if it goes on. Depends on the rows alone, so
    that a resumed run ends where an uninterrupted one does."""
    last, best = rounds.last, rounds.best
    if last is None or best is None or last.accuracy is None or last.round >= federation.rounds:
        return ""
    images = "kept-back images" if federation.choose_by == "holdout" else "test images"
    if 0 < federation.target_accuracy <= last.accuracy:
        return (
            f"stopped after round {last.round}: {last.accuracy:.2f} % of the {images} are right, "
            f"and federation.target_accuracy is {federation.target_accuracy:g}"
        )
    if 0 < federation.patience <= rounds.since_best:
        return (
            f"stopped after round {last.round}: the accuracy on {images} was best in round "
            f"{best.round} ({best.accuracy:.2f} %), and federation.patience is "
            f"{federation.patience}"
        )
    return ""
