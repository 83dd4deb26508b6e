"""The paper's figure: an analysis of the runs, side by side, seed by seed."""

from __future__ import annotations

from pathlib import Path

from dcfl.runs.folder import RecordedRun
from dcfl.studies.analysis.analysis_page import write_analysis
from dcfl.studies.analysis.findings import analyse_runs
from dcfl.studies.recipes.results import Results


def write_similarity(results: Results, folder: Path) -> list[Path]:
    """similarity-seedN/ for every seed that has a finished run."""
    by_seed: dict[int, list[RecordedRun]] = {}
    for cell_folder in results.cells:
        if cell_folder.finished and cell_folder.run is not None:
            by_seed.setdefault(cell_folder.cell.seed, []).append(cell_folder.run)
    return [
        write_analysis(analyse_runs(runs), folder / f"similarity-seed{seed}")
        for seed, runs in by_seed.items()
    ]
