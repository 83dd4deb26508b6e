"""Weights & Biases: a run in the project `dcfl` (WANDB_PROJECT), with its files in wandb/ of the
run folder.

Without an API key, which WANDB_API_KEY or `wandb login` set, it writes offline, and `wandb sync`
uploads later. WANDB_MODE decides otherwise.
"""

from __future__ import annotations

import os
from typing import Any

import wandb

from dcfl.runs.folder import require_own
from dcfl.runs.rows import RoundRow, Summary
from dcfl.trackers.tracker import PROJECT, FollowedRun, numbers


class ToWandB:
    def start(self, run: FollowedRun) -> None:
        require_own(run.folder / "wandb")
        mode: Any = os.environ.get("WANDB_MODE")
        if not mode and not wandb.login(prompt=False):
            mode = "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=run.folder,
            mode=mode,
            config=dict(run.settings),
            allow_val_change=True,  # a longer run has another number of rounds
            reinit="create_new",  # others may follow runs of this process too
            # The run folder has the code, and what is printed is the user's own.
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )

    def round(self, row: RoundRow) -> None:
        self._run.log(numbers(row), step=row.round)

    def finish(self, summary: Summary | None) -> None:
        if summary is not None:
            self._run.summary.update(dict(summary.to_json()))
        self._run.finish(exit_code=0 if summary else 1)
