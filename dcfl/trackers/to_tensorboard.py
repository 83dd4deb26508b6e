"""Event files for TensorBoard, in tensorboard/ of the run folder: `tensorboard --logdir runs`."""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

from dcfl.runs.folder import require_own
from dcfl.runs.rows import RoundRow, Summary
from dcfl.trackers.tracker import FollowedRun, numbers


class ToTensorBoard:
    def start(self, run: FollowedRun) -> None:
        # TensorBoard forgets what an earlier process wrote of the rounds that are repeated.
        repeated = run.rounds_done + 1 if run.rounds_done else None
        folder = run.folder / "tensorboard"
        require_own(folder)
        self._writer = SummaryWriter(str(folder), purge_step=repeated)
        lines = [f"    {key} = {value}" for key, value in run.settings.items()]
        self._writer.add_text("settings", "\n".join(lines), run.rounds_done)

    def round(self, row: RoundRow) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row.round)
        self._writer.flush()  # somebody may be watching

    def finish(self, summary: Summary | None) -> None:
        self._writer.close()
