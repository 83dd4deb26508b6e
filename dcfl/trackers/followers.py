"""Lets trackers follow a run. One that fails is left out with a warning; the run goes on."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial

from dcfl.experiment import TrackerName
from dcfl.runs.rows import RoundRow, Summary
from dcfl.system.wording import one_line
from dcfl.trackers.tracker import FollowedRun, Tracker

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SHORTEST_SECRET = 6  # a shorter value of a variable may be part of any text
IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")  # user:password@


class Following:
    """The trackers that still follow the run."""

    def __init__(self, names: Sequence[TrackerName], own: Sequence[Tracker]) -> None:
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            self._guarded(name, partial(self._add_named, name))
        for tracker in own:
            self._add(type(tracker).__name__, tracker)
        self.summary: Summary | None = None  # set when the run has finished

    def _add_named(self, name: TrackerName) -> None:
        self._add(name, named(name))

    def _add(self, name: str, tracker: Tracker) -> None:
        unique = name if name not in self._trackers else f"{name} {len(self._trackers) + 1}"
        self._trackers[unique] = tracker

    def start(self, run: FollowedRun) -> None:
        self._each(lambda tracker: tracker.start(run))

    def round(self, row: RoundRow) -> None:
        self._each(lambda tracker: tracker.round(row))

    def finish(self) -> None:
        self._each(lambda tracker: tracker.finish(self.summary))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(call, tracker))

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            # Libraries print, and what a command prints is its answer.
            with redirect_stdout(sys.stderr) if name in TRACKERS else nullcontext():
                call()
        except Exception as error:
            self._trackers.pop(name, None)
            reason = without_secrets(one_line(error)) or type(error).__name__
            warnings.warn(
                f"the tracker {name} has failed and no longer follows the run: {reason}",
                stacklevel=4,
            )


@contextmanager
def following(
    run: FollowedRun, names: Sequence[TrackerName], own: Sequence[Tracker]
) -> Iterator[Following]:
    """Trackers by name and of one's own, from the run's start to its end or failure."""
    trackers = Following(names, own)
    trackers.start(run)
    try:
        yield trackers
    finally:
        trackers.finish()


# Imported when wanted, because the libraries are extras.


def _tensorboard() -> Tracker:
    from dcfl.trackers.to_tensorboard import ToTensorBoard

    return ToTensorBoard()


def _mlflow() -> Tracker:
    from dcfl.trackers.to_mlflow import ToMLflow

    return ToMLflow()


def _wandb() -> Tracker:
    from dcfl.trackers.to_wandb import ToWandB

    return ToWandB()


def _trackio() -> Tracker:
    from dcfl.trackers.to_trackio import ToTrackio

    return ToTrackio()


def _csv() -> Tracker:
    from dcfl.trackers.to_csv import ToCSV

    return ToCSV()


TRACKERS: dict[TrackerName, Callable[[], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "trackio": _trackio,
    "csv": _csv,
}


def named(name: TrackerName) -> Tracker:
    try:
        return TRACKERS[name]()
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs {error.name}: pip install 'dcfl[{name}]'") from error


def without_secrets(text: str) -> str:
    """Messages of libraries may repeat addresses with passwords, or keys from the environment."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "...")
    return IN_ADDRESS.sub("...@", text)
