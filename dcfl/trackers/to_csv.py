"""rounds.csv in the run folder: a line per round, for spreadsheets."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path

from dcfl.runs.rows import RoundRow, Summary
from dcfl.system.storage import open_to_append, storage, write_whole
from dcfl.trackers.tracker import FollowedRun

COLUMNS = [field.name for field in fields(RoundRow) if field.name not in ("sites", "notices")]


class ToCSV:
    def start(self, run: FollowedRun) -> None:
        self._path = run.folder / "rounds.csv"
        write_whole(self._path, _line(COLUMNS) + "".join(_lines_before(run, self._path)))

    def round(self, row: RoundRow) -> None:
        with storage(self._path), open_to_append(self._path, "a") as stream:
            stream.write(_line([row[column] for column in COLUMNS]))

    def finish(self, summary: Summary | None) -> None:
        """All is written."""


def _lines_before(run: FollowedRun, path: Path) -> list[str]:
    """Of the rounds that a resumed run does not repeat."""
    if not run.rounds_done or not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)[1:]
    return [line for line in lines if int(line.split(",")[0]) <= run.rounds_done]


def _line(values: list[object] | list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
