"""Results as files: Markdown, LaTeX, HTML and CSV; and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dcfl.analysis.analysis_page import write_analysis
from dcfl.analysis.findings import analyse_runs
from dcfl.comparisons.groups import Outcome
from dcfl.comparisons.pairs import Pair
from dcfl.paper.reproduction_page import markdown_page, order_table, page_about, sections_of
from dcfl.paper.results import CLAIMS, DUELS, QUANTITIES, Results, checks, ema_at, fluctuation, lead
from dcfl.report.document import Table, latex_tables, write_page
from dcfl.runs.folder import RecordedRun
from dcfl.system.storage import write_whole


def write_similarity(results: Results, folder: Path, figures: Path | None = None) -> list[Path]:
    """similarity-seedN/ for every seed that has a finished run, also in the folder `figures`."""
    by_seed: dict[int, list[RecordedRun]] = {}
    for cell_folder in results.cells:
        if cell_folder.finished and cell_folder.run is not None:
            by_seed.setdefault(cell_folder.cell.seed, []).append(cell_folder.run)
    return [
        write_analysis(
            analyse_runs(runs),
            folder / f"similarity-seed{seed}",
            figures and figures / f"similarity-seed{seed}",
        )
        for seed, runs in by_seed.items()
    ]


CSV_COLUMNS = (
    "recipe", "scale", "block", "column", "row", "metric", "seeds", "ours", "deviation", "paper",
    "difference", "rank", "paper_rank", "gain", "gain_deviation", "gain_low", "gain_high",
    "p", "wins", "ties", "pairs", "fluctuation",
)  # fmt: skip
RUN_COLUMNS = (
    "cell", "block", "column", "row", "seed", "max", "ema", "final", "client_max", "client_ema",
    "ema_quarter", "ema_half", "ema_three_quarters", "fluctuation", "train_loss", "rounds", "mb_up",
    "mb_down", "client_seconds", "seconds", "weights_sha256",
)  # fmt: skip


def write_results(results: Results, folder: Path, figures: Path | None = None) -> list[Path]:
    """NAME.md, .tex, .html and .csv, NAME-runs.csv with a row for every run; NAME-order.csv where
    the paper has an order. The charts go into NAME/ in the folder `figures`."""
    sections = list(sections_of(results))
    title = f"{results.recipe.title} ({results.scale.name} scale)"
    texts = {
        ".md": markdown_page(title, results, sections),
        ".tex": latex_tables(sections),
        ".csv": Table(CSV_COLUMNS, list(_csv_rows(results))).csv(),
        "-runs.csv": Table(RUN_COLUMNS, list(_run_rows(results))).csv(),
    }
    if results.recipe.published:
        texts["-order.csv"] = order_table(results.contests).csv()
    name = results.recipe.name
    page = page_about(title, results, sections)
    html = write_page(page, folder / f"{name}.html", figures and figures / name)
    paths = [folder / f"{name}{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text)
    return [*paths[:2], html, *paths[2:]]


def _csv_rows(results: Results) -> Iterator[list[str]]:
    for place, entries in results.entries.items():
        for metric in QUANTITIES:
            ours, papers = results.ranks(place, metric), results.papers_ranks(place, metric)
            for row, entry in entries.items():
                spread, published = entry.spread(metric), entry.published(metric)
                pair = results.against_reference(place, entry, metric)
                yield [
                    results.recipe.name,
                    results.scale.name,
                    *place,
                    row,
                    metric,
                    str(spread.count),
                    *_plain(spread.mean, spread.deviation, published),
                    *_plain(None if published is None else spread.mean - published),
                    *(str(known[row]) if row in known else "" for known in (ours, papers)),
                    *_gain_cells(pair),
                    *_plain(entry.fluctuation().mean),
                ]


def _gain_cells(pair: Pair | None) -> list[str]:
    """The cells from `gain` to `pairs` of CSV_COLUMNS."""
    if pair is None:
        return [""] * 8
    paired, p_value = pair.paired, pair.p_value
    return [
        *_plain(paired.spread.mean, paired.spread.deviation),
        *_plain(*(paired.interval or (None, None))),
        "" if p_value is None else f"{p_value:.2g}",
        *(str(count) for count in (paired.wins, paired.ties, paired.seeds)),
    ]


def plain_results(results: Results) -> dict[str, Any]:
    """What the CSV holds and the order of the methods, for programs."""
    rows = (dict(zip(CSV_COLUMNS, row, strict=True)) for row in _csv_rows(results))
    pairs = dict.fromkeys([*CLAIMS, *DUELS])
    return {
        "finished": results.finished,
        "cells": len(results.cells),
        "rows": [{key: _value(key, text) for key, text in row.items()} for row in rows],
        "order": [asdict(check) for check in checks(pairs, results.contests)],
        "lead": asdict(lead(results.contests)),
    }


def _value(key: str, text: str) -> str | float | None:
    if key in CSV_COLUMNS[: CSV_COLUMNS.index("seeds")]:
        return text
    return None if text in ("", "nan") else json.loads(text)


def _plain(*values: float | None) -> list[str]:
    return ["" if value is None or math.isnan(value) else f"{value:.3f}" for value in values]


def _run_rows(results: Results) -> Iterator[list[str]]:
    for cell_folder in results.cells:
        if not cell_folder.finished or cell_folder.run is None:
            continue
        cell, outcome = cell_folder.cell, Outcome.of(cell_folder.run)
        last = cell_folder.run.rounds[-1]
        client_seconds = sum(row.seconds for row in cell_folder.run.clients)
        yield [
            cell.name,
            cell.block,
            cell.column,
            cell.row,
            str(cell.seed),
            *_plain(outcome.max_accuracy, outcome.ema_accuracy, outcome.final_accuracy),
            *_plain(*(last[QUANTITIES[metric]] for metric in ("client-max", "client-ema"))),
            *_plain(*(ema_at(cell_folder.run, share) for share in (0.25, 0.5, 0.75))),
            *_plain(fluctuation(cell_folder.run), last.train_loss),
            str(outcome.rounds),
            *_plain(
                outcome.bytes_up / 1e6, outcome.bytes_down / 1e6, client_seconds, outcome.seconds
            ),
            cell_folder.run.summary.weights_sha256 if cell_folder.run.summary else "",
        ]
