"""Results as tables and pictures: Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.plots import accuracy_figure, traffic_figure
from dcfl.report.text import number, plural, signed
from dcfl.runs.groups import Outcome, Spread
from dcfl.studies.recipes.order import Contests
from dcfl.studies.recipes.order_page import leaders_csv, order_csv, order_section, split_name
from dcfl.studies.recipes.published import papers_mu
from dcfl.studies.recipes.recipe_figures import client_time_figure, gain_figure, weights_figure
from dcfl.studies.recipes.results import Entry, Metric, Place, Results
from dcfl.system.printable import printable
from dcfl.system.storage import storage, write_whole

CSV_COLUMNS = (
    "recipe",
    "scale",
    "block",
    "column",
    "row",
    "metric",
    "seeds",
    "ours",
    "deviation",
    "paper",
    "difference",
    "rank",
    "paper_rank",
    "gain",
    "gain_deviation",
    "wins",
    "pairs",
)
RUN_COLUMNS = (
    "cell",
    "block",
    "column",
    "row",
    "seed",
    "max",
    "ema",
    "final",
    "client_max",
    "client_ema",
    "rounds",
    "mb_up",
    "mb_down",
    "client_seconds",
    "seconds",
    "weights_sha256",
)
ON_OWN_MIXES = "On the clients' own mixes of classes"
TITLES: dict[Metric, str] = {
    "ema": "EMA, %",
    "max": "MAX, %",
    "client-ema": f"{ON_OWN_MIXES}: EMA, %",
    "client-max": f"{ON_OWN_MIXES}: MAX, %",
}


def write_results(results: Results, folder: Path) -> list[Path]:
    """NAME.md, .tex, .html and .csv, NAME-runs.csv with a row for every run; NAME-order.csv and
    NAME-best.csv where the paper has an order."""
    sections = list(_sections(results))
    title = f"{results.recipe.title} ({results.scale.name} scale)"
    texts = {
        ".md": _markdown(title, results, sections),
        ".tex": "\n".join(_latex(section) for section in sections),
        ".html": _html(title, results, sections),
        ".csv": Table(CSV_COLUMNS, list(_csv_rows(results))).csv(),
        "-runs.csv": Table(RUN_COLUMNS, list(_run_rows(results))).csv(),
    }
    if results.recipe.published:
        texts["-order.csv"] = order_csv(results.contests)
        texts["-best.csv"] = leaders_csv(results.contests)
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{results.recipe.name}{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text)
    return paths


def _latex(section: Section) -> str:
    parts = []
    for table in section.tables:
        title = ", ".join(filter(None, [section.title, table.title]))
        parts.append(f"% {printable(title)}\n{table.latex()}")
    return "\n".join(parts)


def _html(title: str, results: Results, sections: Sequence[Section]) -> str:
    facts, headline = _facts(results), _headline(results)
    return render_document(title, facts, headline, sections, _cautions(results))


def _markdown(title: str, results: Results, sections: Sequence[Section]) -> str:
    parts = [f"# {title}", results.recipe.question, *map(printable, _cautions(results))]
    for section in sections:
        parts += [f"## {section.title}", *section.paragraphs]
        parts += [table.markdown() for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> list[tuple[str, str]]:
    seeds = {kept.cell.seed for kept in results.cells if kept.finished}
    facts = [
        ("scale", results.scale.name),
        ("cells", f"{results.finished} of {len(results.cells)} finished"),
        ("seeds", ", ".join(map(str, sorted(seeds))) or "none yet"),
    ]
    return facts + ([("changed", ", ".join(results.changes))] if results.changes else [])


def _headline(results: Results) -> str:
    """What came out of the paper's claims; without any, what is asked."""
    checks, found = [check for check in results.order() if check.of], results.leaders()
    said = []
    if checks:
        held, of = sum(check.ours for check in checks), sum(check.of for check in checks)
        said.append(
            f"{held} of the {of} inequalities that the paper's order of the methods claims in "
            f"these cells hold here; in the paper's own figures "
            f"{sum(check.papers for check in checks)} do."
        )
    if found:
        said.append(
            f"DCFL is above every other method in {sum(one.dcfl_leads for one in found)} of "
            f"{len(found)}; in the paper's figures in "
            f"{sum(one.dcfl_leads_in_the_paper for one in found)}."
        )
    return " ".join(said) or results.recipe.question


def _cautions(results: Results) -> list[str]:
    missing = len(results.cells) - results.finished
    said = [results.scale.caption]
    if results.changes:
        said.append(f"Not the settings of this scale: {', '.join(results.changes)}.")
    if missing:
        verb = "is" if missing == 1 else "are"
        said.append(f"{plural(missing, 'cell')} of {len(results.cells)} {verb} not finished.")
    said += [f"{name} failed: {why}" for name, why in results.failures.items()]
    return said


def _sections(results: Results) -> Iterator[Section]:
    for block in results.blocks:
        columns = results.columns(block)
        if results.recipe.published:
            for column in columns:
                yield _beside_the_paper(results, (block, column))
        else:
            yield _grid_section(results, block)
    order = order_section(results.contests)
    if results.recipe.published and order.tables:
        yield order


def _beside_the_paper(results: Results, place: Place) -> Section:
    tables = [_table_beside_the_paper(results, place, "max", "ema")]
    if "client-ema" in results.metrics(place[0]):
        tables.append(
            _table_beside_the_paper(results, place, "client-max", "client-ema", ON_OWN_MIXES)
        )
    title = f"{place[0]}, {split_name(place[1])}"
    groups = [entry.group for entry in results.entries[place].values()]
    pictures = [
        Picture.of(
            "Over rounds", accuracy_figure(groups), f"Accuracy over rounds, {title}", "EMA bold."
        ),
        Picture.of(
            "Over bytes",
            traffic_figure(groups),
            f"Accuracy over bytes sent, {title}",
            "What methods send beside the weights moves their curve to the right.",
        ),
        Picture.of(
            "Over the clients' time",
            client_time_figure(groups),
            f"Accuracy over seconds of clients' work, {title}",
            "Seconds that clients have trained, all together. Only runs that had the machine to "
            "themselves, or as many others beside them, can be compared.",
        ),
    ]
    return Section(title, tables=tables, pictures=pictures)


def _table_beside_the_paper(
    results: Results, place: Place, best: Metric, average: Metric, title: str = ""
) -> Table:
    ours, papers = results.ranks(place, average), results.papers_ranks(place, average)
    rows = [
        [
            row,
            *_compared(entry, best),
            *_compared(entry, average),
            *_gain(results, place, entry, average),
            f"{ours[row]} ({papers[row]})" if row in papers else "–",
        ]
        for row, entry in results.entries[place].items()
    ]
    columns = ["Method"]
    for name in ("MAX", "EMA"):
        columns += [name, "paper's", "difference"]
    columns += ["EMA against FedAvg", "wins", "rank (paper's)"]
    return Table(columns, rows, title)


def _compared(entry: Entry, metric: Metric) -> list[str]:
    spread = entry.spread(metric)
    paper = entry.published(metric)
    if paper is None:
        return [_written(spread), "–", "–"]
    return [_written(spread), number(paper), signed(spread.mean - paper)]


def _gain(results: Results, place: Place, entry: Entry, metric: Metric = "ema") -> list[str]:
    paired = results.against_reference(place, entry, metric)
    if paired is None:
        return ["–", "–"]
    return [_written(paired.spread, sign=True), f"{paired.wins} of {len(paired.differences)}"]


def _written(spread: Spread, sign: bool = False) -> str:
    mean = signed(spread.mean) if sign else number(spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {number(spread.deviation)}"


def _grid_section(results: Results, block: str) -> Section:
    columns, rows = results.columns(block), results.rows(block)

    def cell(row: str, column: str, gain: bool, metric: Metric) -> str:
        entry = results.entries.get((block, column), {}).get(row)
        if entry is None:
            return "–"
        if not gain:
            return _written(entry.spread(metric))
        return _gain(results, (block, column), entry)[0]

    alone = (block, "") in results.entries  # rows without a column, such as FedAvg in a search
    head = [results.recipe.columns, *(["–"] if alone else []), *columns]
    over = [*([""] if alone else []), *columns]
    tables = [
        Table(head, [[row, *(cell(row, c, False, metric) for c in over)] for row in rows], title)
        for metric, title in TITLES.items()
        if metric in results.metrics(block)
    ]
    if results.recipe.chooses:
        tables.insert(0, _best(results, block))
    gains = [[row, *(cell(row, c, True, "ema") for c in columns)] for row in rows]
    if any(value != "–" for row in gains for value in row[1:]):
        kept = [row for row in gains if any(value != "–" for value in row[1:])]
        tables.append(Table([head[0], *columns], kept, "EMA against FedAvg, points, seed by seed"))
    return Section(block, tables=tables, pictures=list(_pictures(results, block)))


def _best(results: Results, block: str) -> Table:
    """The column with the highest EMA in each row, and what the paper chose."""
    rows = []
    for row in results.rows(block):
        tried = {
            column: results.entries[block, column][row].spread("ema").mean
            for column in results.columns(block)
            if row in results.entries[block, column]
        }
        if tried:
            best = max(tried, key=tried.__getitem__) if len(tried) > 1 else "–"
            rows.append([row, ", ".join(tried), best, papers_mu(row, block) or "–"])
    return Table([results.recipe.columns, "tried", "best", "paper's"], rows, "Chosen by EMA")


def _pictures(results: Results, block: str) -> Iterator[Picture]:
    if results.recipe.picture == "lines":
        figure = gain_figure(results, block)
        text = f"EMA against FedAvg over {results.recipe.columns}, {block}"
        yield Picture.of("", figure, text, "Points of EMA over FedAvg; bars: from least to most.")
    if results.recipe.picture == "map":
        figure = weights_figure(results, block)
        text = f"EMA against FedAvg over mu and {results.recipe.columns}, {block}"
        yield Picture.of("", figure, text, "Points of EMA over FedAvg: blue is better.")


def _csv_rows(results: Results) -> Iterator[list[str]]:
    for place, entries in results.entries.items():
        for metric in results.metrics(place[0]):
            own, paper = results.ranks(place, metric), results.papers_ranks(place, metric)
            for row, entry in entries.items():
                spread, published = entry.spread(metric), entry.published(metric)
                paired = results.against_reference(place, entry, metric)
                gain = paired.spread if paired else None
                yield [
                    results.recipe.name,
                    results.scale.name,
                    *place,
                    row,
                    metric,
                    str(spread.count),
                    *_plain(spread.mean, spread.deviation, published),
                    *_plain(None if published is None else spread.mean - published),
                    *(str(known[row]) if row in known else "" for known in (own, paper)),
                    *(_plain(gain.mean, gain.deviation) if gain else ["", ""]),
                    str(paired.wins) if paired else "",
                    str(len(paired.differences)) if paired else "",
                ]


def plain_results(results: Results) -> dict[str, Any]:
    """For programs: what the CSV holds, and the order of the methods."""
    rows = (dict(zip(CSV_COLUMNS, row, strict=True)) for row in _csv_rows(results))
    return {
        "finished": results.finished,
        "cells": len(results.cells),
        "rows": [{key: _value(key, text) for key, text in row.items()} for row in rows],
        "order": [asdict(check) for check in results.order() if check.of],
        "duels": [asdict(check) for check in results.duels() if check.of],
        "leaders": [asdict(one) for one in results.leaders()],
        "leads": [asdict(lead) for lead in results.leads()],
    }


def _value(key: str, text: str) -> str | float | None:
    if key in CSV_COLUMNS[: CSV_COLUMNS.index("seeds")]:
        return text
    return None if text in ("", "nan") else json.loads(text)


def _plain(*values: float | None) -> list[str]:
    return ["" if value is None or math.isnan(value) else f"{value:.3f}" for value in values]


def _run_rows(results: Results) -> Iterator[list[str]]:
    for kept in results.cells:
        if not kept.finished or kept.run is None:
            continue
        cell, out = kept.cell, Outcome.of(kept.run)
        worked = sum(row.seconds for row in kept.run.clients)
        yield [
            cell.name,
            cell.block,
            cell.column,
            cell.row,
            str(cell.seed),
            *_plain(out.max_accuracy, out.ema_accuracy, out.final_accuracy),
            *_plain(out.max_client_accuracy, out.ema_client_accuracy),
            str(out.rounds),
            *_plain(out.bytes_up / 1e6, out.bytes_down / 1e6, worked, out.seconds),
            kept.run.summary.weights_sha256 if kept.run.summary else "",
        ]


def combined_contests(all_results: Iterable[Results]) -> Contests:
    """Over the cells of several tables."""
    return {place: scores for results in all_results for place, scores in results.contests.items()}
