"""What happens to cells while they are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dcfl import errors
from dcfl.errors import DCFLError
from dcfl.runs.rows import RoundRow
from dcfl.studies.cells.cell_folders import Cell, CellFolder

State = Literal["round", "finished", "stopped", "pruned", "failed"]


@dataclass(frozen=True)
class AfterRound:
    """What others hear of a round: the cell may be trained by another process."""

    round: int
    accuracy: float | None = None
    max_accuracy: float | None = None
    ema_accuracy: float | None = None
    lost: int = 0  # clients without a usable reply
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: RoundRow) -> AfterRound:
        return cls(
            row.round,
            row.accuracy,
            row.max_accuracy,
            row.ema_accuracy,
            row.sampled - row.ok,
            tuple(row.notices),
        )

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> AfterRound:
        return cls(**{**answer, "notices": tuple(answer["notices"])})


@dataclass(frozen=True)
class News:
    cell_folder: CellFolder[Cell]
    state: State
    after: AfterRound | None = None
    why: str = ""
    kind: str = ""  # the name of the error's class, if it failed

    @property
    def name(self) -> str:
        return self.cell_folder.name

    @property
    def round(self) -> int:
        return self.after.round if self.after else 0

    @property
    def error(self) -> Exception | None:
        """Why it failed, as the error that was raised where it was trained."""
        if self.state != "failed":
            return None
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, DCFLError):
            return kind(self.why)
        return RuntimeError(f"{self.name}: {self.why}")


Show = Callable[[News], None]
