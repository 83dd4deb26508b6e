"""Trackers: programs that follow runs and show their curves. `output.trackers` names those that
dcfl knows; anything with the three methods of `Tracker` is one too. One that fails is left out with
a warning, and the run goes on."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self

from dcfl.experiment import TrackerName
from dcfl.messages import LOG
from dcfl.runs.rows import RoundRow, Row, Summary
from dcfl.system.storage import open_to_append, read_whole, storage, write_whole
from dcfl.system.wording import csv_line, install_command, one_line

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SHORTEST_SECRET = 6  # a shorter value of a variable may be part of any text
IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")  # user:password@


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
        """Called before the first round, or before the next one of a resumed run."""

    def round(self, row: RoundRow) -> None:
        """Called after each round, once its row is in rounds.jsonl."""

    def finish(self, summary: Summary | None) -> None:
        """Called at the end. None: the run was stopped or has failed, and may be resumed."""


def numbers(row: Row) -> dict[str, float]:
    own = {f"{LOG}{name}": value for name, value in getattr(row, "logged", {}).items()}
    return {
        name: float(value)
        for name, value in {**row, **own}.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "round"
    }


class Following:
    """The trackers that still follow the run, from its start to its end or failure."""

    def __init__(
        self, run: FollowedRun, names: Sequence[TrackerName], own: Sequence[Tracker]
    ) -> None:
        self._run = run
        self._trackers: dict[str, Tracker] = {name: TRACKERS[name]() for name in names}
        for tracker in own:
            name = type(tracker).__name__
            unique = name if name not in self._trackers else f"{name} {len(self._trackers) + 1}"
            self._trackers[unique] = tracker
        self.summary: Summary | None = None  # set when the run has finished

    def __enter__(self) -> Self:
        self._each(lambda tracker: tracker.start(self._run))
        return self

    def __exit__(self, *_: object) -> None:
        self._each(lambda tracker: tracker.finish(self.summary))

    def round(self, row: RoundRow) -> None:
        self._each(lambda tracker: tracker.round(row))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                # Libraries print, and what a command prints is its answer.
                with redirect_stdout(sys.stderr) if name in TRACKERS else nullcontext():
                    call(tracker)
            except Exception as error:
                del self._trackers[name]
                reason = without_secrets(one_line(error)) or type(error).__name__
                if isinstance(error, ModuleNotFoundError) and name in TRACKERS:
                    reason = f"it needs {error.name}: {install_command(name)}"
                warnings.warn(
                    f"the tracker {name} has failed and no longer follows the run: {reason}",
                    stacklevel=4,
                )


def without_secrets(text: str) -> str:
    """Messages of libraries may repeat addresses with passwords, or keys from the environment."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "...")
    return IN_ADDRESS.sub("...@", text)


# By name. Their libraries are extras: each is imported when its tracker starts.


class ToCSV:
    """rounds.csv in the run folder: a line per round, for spreadsheets."""

    columns = tuple(
        f.name for f in fields(RoundRow) if f.name not in ("sites", "notices", "logged")
    )

    def start(self, run: FollowedRun) -> None:
        self._path, before = run.folder / "rounds.csv", ""
        if run.rounds_done and self._path.is_file():
            lines = read_whole(self._path).decode("utf-8").splitlines(keepends=True)[1:]
            before = "".join(line for line in lines if int(line.split(",")[0]) <= run.rounds_done)
        write_whole(self._path, csv_line(self.columns) + before)

    def round(self, row: RoundRow) -> None:
        with storage(self._path), open_to_append(self._path, "a") as stream:
            stream.write(csv_line(row[column] for column in self.columns))

    def finish(self, summary: Summary | None) -> None:
        """Nothing is left to write."""


class ToTensorBoard:
    """Event files in tensorboard/ of the run folder: `tensorboard --logdir runs`."""

    def start(self, run: FollowedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard forgets what an earlier process wrote of the rounds that are repeated.
        repeated = run.rounds_done + 1 if run.rounds_done else None
        folder = run.folder / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=repeated)
        lines = [f"    {key} = {value}" for key, value in run.settings.items()]
        self._writer.add_text("settings", "\n".join(lines), run.rounds_done)

    def round(self, row: RoundRow) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row.round)
        self._writer.flush()  # somebody may be watching

    def finish(self, summary: Summary | None) -> None:
        self._writer.close()


TRACKERS: dict[TrackerName, Callable[[], Tracker]] = {
    "tensorboard": ToTensorBoard,
    "csv": ToCSV,
}
