"""Trackio: a run in the local project `dcfl` (TRACKIO_PROJECT), in the folder that Trackio itself
uses (TRACKIO_DIR): `trackio show`. Nothing leaves this machine."""

from __future__ import annotations

import os

import trackio

from dcfl.runs.rows import RoundRow, Summary
from dcfl.trackers.tracker import PROJECT, FollowedRun, numbers


class ToTrackio:
    def start(self, run: FollowedRun) -> None:
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
            name=f"{run.name}-{run.id[:8]}",  # by which it is found again
            resume="allow",
            config=dict(run.settings),
            embed=False,
        )

    def round(self, row: RoundRow) -> None:
        self._run.log(numbers(row), step=row.round)

    def finish(self, summary: Summary | None) -> None:
        self._run.finish()
