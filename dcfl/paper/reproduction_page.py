"""Results as sections of tables and pictures, and those as HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dcfl.comparisons.pairs import Pair
from dcfl.comparisons.searches import edges
from dcfl.paper.recipe import REFERENCE, values_of
from dcfl.paper.results import (
    CLAIMS,
    DUELS,
    Contests,
    Metric,
    Place,
    ResultRow,
    Results,
    checks,
    lead,
    papers_mu,
    published_contests,
)
from dcfl.report import charts
from dcfl.report.charts import accuracy_chart, chart_note
from dcfl.report.comparison_section import pairs_table, ranking_section
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import interval, number, p_cell, plural, signed, with_deviation
from dcfl.system.wording import printable

ON_OWN_MIXES = "On the clients' own mixes of classes"
TITLES: dict[Metric, str] = {
    "ema": "EMA, %",
    "max": "MAX, %",
    "client-ema": f"{ON_OWN_MIXES}: EMA, %",
    "client-max": f"{ON_OWN_MIXES}: MAX, %",
}

ABOUT_PAIRS = (
    "EMA against FedAvg is taken seed by seed, in brackets with its 95 % interval (Student's t). "
    "p: how likely so large a difference is by chance, corrected for the methods here "
    "(Holm). Fluctuation: mean change from one scored round to the next in the second half."
)


def sections_of(results: Results) -> Iterator[Section]:
    for block in results.blocks:
        columns = results.columns(block)
        if results.recipe.published:
            for column in columns:
                yield _beside_the_paper(results, (block, column))
        else:
            yield _grid_section(results, block)
    ranking = results.ranking("ema") if results.recipe.published else None
    if ranking is not None:
        yield ranking_section(ranking)
    order = order_table(results.contests)
    if results.recipe.published and order.rows:
        yield Section("The order of the methods", tables=[order])


def split_name(split: str) -> str:
    return "IID" if split == "iid" else f"Dirichlet {split}"


def order_table(contests: Contests) -> Table:
    """Every inequality that the paper's order of the methods claims, and how often it holds."""
    pairs = dict.fromkeys([*CLAIMS, *DUELS])
    everywhere = {
        (check.low, check.high): check
        for check in [*checks(pairs, published_contests()), lead(published_contests())]
    }
    rows = [
        [
            f"{check.low} < {check.high}",
            f"{check.ours} of {check.of}",
            f"{check.papers} of {check.of}",
            f"{papers.papers} of {papers.of}",
        ]
        for check in [*checks(pairs, contests), lead(contests)]
        if check.of and (papers := everywhere[check.low, check.high])
    ]
    note = "Each data set and split counts twice: once for MAX and once for EMA, means over seeds."
    return Table(["Claim", "ours", "paper, same cells", "paper, all cells"], rows, note=note)


def page_about(title: str, results: Results, sections: Sequence[Section]) -> Page:
    return Page(title, _facts(results), _headline(results), sections, _cautions(results))


def markdown_page(title: str, results: Results, sections: Sequence[Section]) -> str:
    parts = [f"# {title}", results.recipe.question, *map(printable, _cautions(results))]
    for section in sections:
        parts += [f"## {section.title}", *section.paragraphs]
        parts += [table.markdown() for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> list[tuple[str, str]]:
    seeds = {cell_folder.cell.seed for cell_folder in results.cells if cell_folder.finished}
    facts = [
        ("scale", results.scale.name),
        ("cells", f"{results.finished} of {len(results.cells)} finished"),
        ("seeds", ", ".join(map(str, sorted(seeds))) or "none yet"),
    ]
    return facts + ([("changed", ", ".join(results.changes))] if results.changes else [])


def _headline(results: Results) -> str:
    """How the paper's claims fare; for a recipe without claims, its question."""
    claims = checks(CLAIMS, results.contests)
    best, sentences = lead(results.contests), []
    if claims:
        held, of = sum(check.ours for check in claims), sum(check.of for check in claims)
        sentences.append(
            f"{held} of the {of} inequalities that the paper's order of the methods claims in "
            f"these cells hold here; in the paper's own figures "
            f"{sum(check.papers for check in claims)} do."
        )
    if best.of:
        sentences.append(
            f"DCFL is above every other method in {best.ours} of {best.of}; in the paper's figures "
            f"in {best.papers}."
        )
    return " ".join(sentences) or results.recipe.question


def _cautions(results: Results) -> list[str]:
    missing = len(results.cells) - results.finished
    cautions = [results.scale.caption]
    if results.changes:
        cautions.append(f"Not the settings of this scale: {', '.join(results.changes)}.")
    if missing:
        verb = "is" if missing == 1 else "are"
        cautions.append(f"{plural(missing, 'cell')} of {len(results.cells)} {verb} not finished.")
    cautions += [f"{name} failed: {reason}" for name, reason in results.failures.items()]
    return cautions


def _beside_the_paper(results: Results, place: Place) -> Section:
    tables = [
        _table_beside_the_paper(results, place, "max", "ema"),
        _table_beside_the_paper(results, place, "client-max", "client-ema", ON_OWN_MIXES),
    ]
    title = f"{place[0]}, {split_name(place[1])}"
    groups = [entry.group for entry in results.entries[place].values()]
    picture = Picture(
        "Accuracy over rounds, bytes and the clients' time",
        f"Accuracy over rounds, {title}",
        "EMA bold. Over bytes, what methods send beside the weights moves their curve to the "
        "right. Over the seconds that clients have trained, all together, only runs that had the "
        "machine to themselves, or as many others beside them, can be compared."
        f"{chart_note(groups)}",
        accuracy_chart(groups),
    )
    pairs = results.pairs(place, "ema")
    if len(pairs.pairs) > 1 and any(pair.paired.seeds > 1 for pair in pairs.pairs):
        tables.append(pairs_table(pairs, "How sure the differences are"))
    return Section(title, tables=tables, pictures=[picture])


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
            number(entry.fluctuation().mean),
        ]
        for row, entry in results.entries[place].items()
    ]
    columns = ["Method"]
    for name in ("MAX", "EMA"):
        columns += [name, "paper's", "difference"]
    columns += ["EMA against FedAvg", "wins", "p", "rank (paper's)", "fluctuation"]
    return Table(columns, rows, title, note=ABOUT_PAIRS)


def _compared(entry: ResultRow, metric: Metric) -> list[str]:
    spread = entry.spread(metric)
    paper = entry.published(metric)
    if paper is None:
        return [with_deviation(spread), "–", "–"]
    return [with_deviation(spread), number(paper), signed(spread.mean - paper)]


def _gain(results: Results, place: Place, entry: ResultRow, metric: Metric = "ema") -> list[str]:
    pair = results.against_reference(place, entry, metric)
    if pair is None:
        return ["–", "–", "–"]
    wins = f"{pair.paired.wins} of {pair.paired.seeds}"
    return [_with_interval(pair), wins, p_cell(pair.p_value)]


def _with_interval(pair: Pair) -> str:
    mean, ends = signed(pair.paired.spread.mean), pair.paired.interval
    return mean if ends is None else f"{mean} ({interval(ends)})"


def _grid_section(results: Results, block: str) -> Section:
    columns, rows = results.columns(block), results.rows(block)
    if results.recipe.searched:
        columns.sort(key=values_of)

    def cell(row: str, column: str, gain: bool, metric: Metric) -> str:
        entry = results.entries.get((block, column), {}).get(row)
        if entry is None:
            return "–"
        if not gain:
            return with_deviation(entry.spread(metric))
        return _gain(results, (block, column), entry)[0]

    alone = (block, "") in results.entries  # rows without a column, such as FedAvg in a search
    head = [results.recipe.columns, *(["–"] if alone else []), *columns]
    over = [*([""] if alone else []), *columns]
    tables = [
        Table(head, [[row, *(cell(row, c, False, metric) for c in over)] for row in rows], title)
        for metric, title in TITLES.items()
    ]
    if results.recipe.searched:
        tables.insert(0, _best(results, block))
    gains = [[row, *(cell(row, c, True, "ema") for c in columns)] for row in rows]
    if any(value != "–" for row in gains for value in row[1:]):
        known = [row for row in gains if any(value != "–" for value in row[1:])]
        tables.append(Table([head[0], *columns], known, "EMA against FedAvg, points, seed by seed"))
    return Section(block, tables=tables, pictures=list(_pictures(results, block)))


def _best(results: Results, block: str) -> Table:
    """The column with the highest EMA in each row, of those with most seeds, and the paper's."""
    axes, rows = results.recipe.columns.split(", "), []
    for row in results.rows(block):
        places = [(block, column) for column in results.columns(block)]
        entries = {p: results.entries[p][row] for p in places if row in results.entries[p]}
        seeds = max((len(entry.runs) for entry in entries.values()), default=0)
        tried = {
            values_of(column): entry.spread("ema").mean
            for (_, column), entry in entries.items()
            if len(entry.runs) == seeds
        }
        if tried:
            best = max(tried, key=tried.__getitem__)
            values = ", ".join(f"{value:g}" for value in best)
            at_edge = ", ".join(axes[axis] for axis in edges(best, tried)) or "–"
            paper = papers_mu(row, block) or "–"
            rows.append([row, str(len(tried)), str(seeds), values, at_edge, paper])
    columns = [results.recipe.columns, "trials", "seeds", "best", "at the edge", "paper's mu"]
    note = "At the edge: nothing was tried on one side of the best value."
    return Table(columns, rows, "Chosen by EMA", note=note)


def _pictures(results: Results, block: str) -> Iterator[Picture]:
    """What each method gains over FedAvg, by column."""
    if results.recipe.picture != "lines":
        return
    columns, across = results.columns(block), results.recipe.columns
    rows = [row for row in results.rows(block) if row != REFERENCE]
    gains = _gains(results, block, rows)
    up = {"label": "EMA against FedAvg (points)", **charts.reach(gains)}
    lines = charts.lines_over(columns, rows, gains)
    yield Picture(
        "",
        f"EMA against FedAvg over {across}, {block}",
        "Points of EMA over FedAvg; bars: from least to most.",
        charts.plot(charts.places(across, columns), up, [{"series": lines}]),
    )


def _gains(results: Results, block: str, rows: Sequence[str]) -> NDArray[np.float64]:
    """Points of EMA over FedAvg by row and column: the mean over seeds, the least and the greatest;
    NaN where there is nothing to compare."""
    columns = results.columns(block)
    gains = np.full((3, len(rows), len(columns)), np.nan)
    for across, column in enumerate(columns):
        for down, row in enumerate(rows):
            entry = results.entries.get((block, column), {}).get(row)
            pair = entry and results.against_reference((block, column), entry, "ema")
            if pair:
                differences = pair.paired.differences
                ends = (min(differences), max(differences))
                gains[:, down, across] = (pair.paired.spread.mean, *ends)
    return gains
