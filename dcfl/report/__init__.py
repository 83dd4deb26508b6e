"""Recorded runs as one self-contained HTML page: no network, no other files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcfl.errors import RunFolderError, RunMissing
from dcfl.runs.folder import FILES, RecordedRun

if TYPE_CHECKING:
    from dcfl.report.document import Section

__all__ = ["find_all_runs", "find_runs", "write_report"]


def write_report(
    *folders: Path,
    out: Path | None = None,
    target: float | None = None,
    figures: Path | None = None,
    all_pairs: bool = False,
    by: str = "",
    more: Sequence[Section] = (),
    over: Sequence[str] = (),
) -> Path:
    """Write the page about all runs in `folders`; returns its path.

    The order of the folders is the order on the page; differences are taken against the first
    method unless `all_pairs` are asked for, and so is the accuracy whose cost is shown, unless
    there is a `target`. `by`: what methods are compared by. `over`: settings over which methods are
    drawn as curves. Without `out` it is report.html, inside the folder if there is only one. The
    folder `figures` gets its charts as SVG and PDF, for print. `more` stands first.
    """
    from dcfl.report.document import write_page  # here, because `find_runs` needs no pages
    from dcfl.report.run_page import page_of

    runs = find_all_runs(folders)
    if out is None:
        out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    if out.name in FILES and out.parent.resolve() in {run.folder.resolve() for run in runs}:
        raise RunFolderError(f"{out} belongs to the run: give the page another name")
    page = page_of(runs, target, more, all_pairs=all_pairs, over=over, by=by)
    return write_page(page, out, figures)


def find_all_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    runs = {run.folder.resolve(): run for folder in folders for run in find_runs(folder)}
    if not runs:
        raise RunFolderError("no folder given: name a run folder, or a folder of run folders")
    return list(runs.values())


def find_runs(folder: Path) -> list[RecordedRun]:
    """The run in this folder, or the runs directly below it: FedAvg first, because everything is
    compared with it, then by name, run2 before run10."""
    if (folder / "config.toml").is_file():
        return [RecordedRun.open(folder)]
    if not folder.is_dir():
        raise RunMissing(f"{folder}: no such folder")
    inside = sorted(folder.iterdir(), key=lambda path: natural(path.name))
    runs = [RecordedRun.open(path) for path in inside if (path / "config.toml").is_file()]
    if not runs:
        deeper = next(folder.glob("*/*/config.toml"), None)  # of a sweep or a reproduction
        hint = f"; there are runs in {deeper.parent.parent}" if deeper else ""
        raise RunMissing(
            f"{folder} holds no run: there is no config.toml in it or in a folder directly below "
            f"it{hint}"
        )
    return reference_first(runs)


def reference_first(runs: list[RecordedRun]) -> list[RecordedRun]:
    return sorted(runs, key=lambda run: run.config["method"].get("name") != "fedavg")


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that reads digits as numbers."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
