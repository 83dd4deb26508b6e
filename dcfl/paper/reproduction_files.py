"""Results as files: Markdown, LaTeX, HTML and CSV; and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dcfl.analysis.analysis_page import write_analysis
from dcfl.analysis.findings import analyse_runs
from dcfl.comparisons.groups import Outcome
from dcfl.paper.reproduction_page import markdown_page, page_about, sections_of
from dcfl.paper.results import METRICS, Results, claim_checks, ema_at, fluctuation
from dcfl.report.document import Table, latex_tables, write_page
from dcfl.runs.folder import RecordedRun
from dcfl.system.storage import write_whole


def write_similarity(results: Results, folder: Path, figures: Path | None = None) -> list[Path]:
    """similarity-seedN/ for every seed that has a finished run, also in the folder `figures`."""
    by_seed: dict[int, list[RecordedRun]] = {}
    for cell, run in results.finished:
        by_seed.setdefault(cell.seed, []).append(run)
    return [
        write_analysis(
            analyse_runs(runs),
            folder / f"similarity-seed{seed}",
            figures and figures / f"similarity-seed{seed}",
        )
        for seed, runs in by_seed.items()
    ]


RUN_COLUMNS = (
    "cell", "block", "column", "row", "seed", "max", "ema", "final", "client_max", "client_ema",
    "ema_quarter", "ema_half", "ema_three_quarters", "fluctuation", "train_loss", "rounds", "mb_up",
    "mb_down", "client_seconds", "seconds", "weights_sha256",
)  # fmt: skip


def write_results(results: Results, folder: Path, figures: Path | None = None) -> list[Path]:
    """NAME.md, .tex and .html, and NAME-runs.csv with a row for every run. The charts go into NAME/
    in the folder `figures`."""
    sections, rows = list(sections_of(results)), [list(map(_text, run)) for run in _runs(results)]
    name, title = results.recipe.name, f"{results.recipe.title} ({results.scale.name} scale)"
    page = page_about(title, results, sections)
    html = write_page(page, folder / f"{name}.html", figures and figures / name)
    texts = {
        folder / f"{name}.md": markdown_page(title, results, sections),
        folder / f"{name}.tex": latex_tables(sections),
        folder / f"{name}-runs.csv": Table(RUN_COLUMNS, rows).csv(),
    }
    for path, text in texts.items():
        write_whole(path, text)
    return [html, *texts]


def plain_results(results: Results) -> dict[str, Any]:
    """The runs, the methods compared with FedAvg, and their order, for programs."""
    return {
        "finished": len(results.finished),
        "cells": len(results.cells),
        "runs": [dict(zip(RUN_COLUMNS, map(_known, run), strict=True)) for run in _runs(results)],
        "compared": [
            {"block": place[0], "column": place[1], "metric": metric, **pair.to_json()}
            for place in results.entries
            for metric in METRICS
            for pair in results.against_reference(place, metric).values()
        ],
        "order": [asdict(check) for check in claim_checks(results.contests)],
    }


def _known(value: Any) -> Any:
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _text(value: Any) -> str:
    if _known(value) is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _runs(results: Results) -> Iterator[list[Any]]:
    """A row of RUN_COLUMNS for each run."""
    for cell, run in results.finished:
        outcome, last = Outcome.of(run), run.rounds[-1]
        yield [
            cell.name,
            cell.block,
            cell.column,
            cell.row,
            cell.seed,
            outcome.max_accuracy,
            outcome.ema_accuracy,
            outcome.final_accuracy,
            last.max_client_accuracy,
            last.ema_client_accuracy,
            *(ema_at(run, share) for share in (0.25, 0.5, 0.75)),
            fluctuation(run),
            last.train_loss,
            outcome.rounds,
            outcome.bytes_up / 1e6,
            outcome.bytes_down / 1e6,
            sum(row.seconds for row in run.clients),
            outcome.seconds,
            run.summary.weights_sha256 if run.summary else "",
        ]
