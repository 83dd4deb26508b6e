"""The interface of all trackers: three methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dcfl.runs.rows import RoundRow, Row, Summary

PROJECT = "dcfl"  # where a tracker sorts runs into projects or experiments


@dataclass(frozen=True)
class FollowedRun:
    """What a tracker learns when it begins to follow a run."""

    id: str  # 32 hexadecimal digits; a resumed run keeps it
    folder: Path
    settings: Mapping[str, Any]  # those that numbers depend on, by dotted key
    rounds_done: int = 0  # a resumed run repeats what a tracker may have seen after these

    @property
    def name(self) -> str:
        return self.folder.name


class Tracker(Protocol):
    """Follows one run. What it raises costs a warning: the run goes on without it.

    Example:
        >>> import dcfl
        >>> class Printer:
        ...     def start(self, run):
        ...         print("follows", run.name)
        ...     def round(self, row):
        ...         print("round", row.round)
        ...     def finish(self, summary):
        ...         print("finished" if summary else "stopped")
        >>> result = dcfl.run(out="runs/followed", federation={"rounds": 1}, trackers=[Printer()])
        follows followed
        round 1
        finished
    """

    def start(self, run: FollowedRun) -> None:
        """Before the first round, or before the next one of a resumed run."""

    def round(self, row: RoundRow) -> None:
        """After each round, once its row is in rounds.jsonl."""

    def finish(self, summary: Summary | None) -> None:
        """At the end. None: the run was stopped or has failed, and may be resumed."""


def numbers(row: Row) -> dict[str, float]:
    """The quantities of a row that can be drawn as curves."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    }
