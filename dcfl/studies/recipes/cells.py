"""The cells of a reproduction on disk, and which are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dcfl.config import as_tables
from dcfl.errors import ConfigError, RunFolderError
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import complete, differences, flat
from dcfl.studies.recipes.recipe import Cell

FAILED = "failed.txt"  # in the folder of a cell whose clients all diverged: says why


@dataclass(frozen=True)
class CellFolder:
    """A cell, and the folder that its run is recorded in."""

    cell: Cell
    path: Path

    @property
    def name(self) -> str:
        return self.cell.name

    @cached_property
    def run(self) -> RecordedRun | None:
        """As it was when first read; None if it has not begun."""
        if not (self.path / "config.toml").is_file():
            return None
        run = RecordedRun.open(self.path)
        refuse_another_run(self.cell.experiment, run)
        return run

    def check(self) -> None:
        """Refuse a damaged or a different run, before any time is spent on the other cells."""
        if self.run is not None and self.run.finished:
            _ = self.run.rounds  # reading them checks them

    @property
    def finished(self) -> bool:
        return self.run is not None and self.run.finished

    @property
    def failed(self) -> str:
        """Why the method diverged; empty if it did not, or has not yet."""
        path = self.path / FAILED
        return path.read_text(encoding="utf-8") if path.is_file() and not self.finished else ""

    @property
    def ended(self) -> bool:
        return self.finished or bool(self.failed)

    @property
    def rounds_left(self) -> int:
        done = len(self.run.rounds) if self.run else 0
        return 0 if self.ended else self.cell.experiment.federation.rounds - done

    @property
    def experiment(self) -> Experiment:
        output = self.cell.experiment.output
        return replace(
            self.cell.experiment,
            # Nobody makes cells longer, and there are hundreds of them.
            output=replace(output, dir=str(self.path), report=False, keep_checkpoint=False),
        )


def refuse_another_run(experiment: Experiment, run: RecordedRun) -> None:
    """A folder of the same name with other settings must not pass for a result of this recipe."""
    wanted, recorded = complete(flat(as_tables(experiment))), complete(flat(run.config))
    for key, value, before in differences(wanted, recorded, "result", "seed"):
        if value != "auto":  # a recorded config has what "auto" stood for
            raise RunFolderError(
                f"{run.folder} holds another run: {key} was {before!r} and would be {value!r}; "
                f"give the recipe another folder with --out"
            )


def matching(cells: Iterable[CellFolder], only: Sequence[str]) -> list[CellFolder]:
    """The cells whose name contains one of the texts; each once, though recipes may share them."""
    unique = {cell.name: cell for cell in cells}
    if not only:
        return list(unique.values())
    for text in only:
        if not any(text in name for name in unique):
            raise ConfigError(
                f"--only {text}: no such cell; the first is {next(iter(unique))}, and `--plan` "
                f"shows all {len(unique)}"
            )
    return [cell for cell in unique.values() if any(text in cell.name for text in only)]
