"""What a run must know of its earlier rounds; their rows are in rounds.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dcfl.runs.rows import RoundRow

TOTALS = ("bytes_up", "bytes_down", "sampled", "ok", "failed", "late", "rejected", "dropped")


class Scored(NamedTuple):
    round: int
    accuracy: float


@dataclass(frozen=True)
class RoundsSoFar:
    """Of one size, however many rounds there were."""

    last: RoundRow | None = None  # it also has MAX and EMA
    totals: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0))  # integers
    used: int = 0  # replies that entered the model, over all rounds
    unchanged: int = 0  # the latest rounds in a row that did not change the model
    best: Scored | None = None  # the first round with the highest accuracy
    since_best: int = 0  # rounds scored after it

    @property
    def count(self) -> int:
        return self.last.round if self.last else 0

    def best_is(self, row: RoundRow) -> bool:
        return self.best is not None and self.best.round == row.round

    def and_then(self, row: RoundRow) -> RoundsSoFar:
        so_far = RoundsSoFar(
            last=row,
            totals={name: total + row[name] for name, total in self.totals.items()},
            used=self.used + row.used,
            unchanged=0 if row.used else self.unchanged + 1,
            best=self.best,
            since_best=self.since_best + (row.accuracy is not None),
        )
        if row.accuracy is None or (self.best and row.accuracy <= self.best.accuracy):
            return so_far
        return replace(so_far, best=Scored(row.round, row.accuracy), since_best=0)
