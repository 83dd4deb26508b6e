"""Results as sections of tables and pictures, and those as HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dcfl.comparisons.pairs import Pair
from dcfl.config import as_tables
from dcfl.methods import METHODS
from dcfl.paper.recipe import REFERENCE, ROWS, Choice, Recipe, RecipeCell, values_of
from dcfl.paper.results import (
    METRICS,
    Contest,
    Metric,
    Place,
    ResultRow,
    Results,
    claim_checks,
)
from dcfl.paper.scales import Scale, searched_key
from dcfl.report import charts
from dcfl.report.charts import accuracy_chart, chart_note
from dcfl.report.document import Page, Picture, Section, Table
from dcfl.report.text import interval, number, p_cell, plural, signed, with_deviation
from dcfl.runs.identity import flat
from dcfl.system.wording import printable

ABOUT_PAIRS = (
    "EMA against FedAvg is taken seed by seed, in brackets with its 95 % interval (Student's t); "
    "within: a larger difference is ruled out, by the interval. p: how likely so large a "
    "difference is by chance, corrected for the methods here (Holm). Fluctuation: mean change from "
    "one scored round to the next in the second half."
)


def sections_of(results: Results) -> Iterator[Section]:
    for block in results.blocks:
        if results.recipe.published:
            for column in results.columns(block):
                yield _beside_the_paper(results, (block, column))
        else:
            yield _grid_section(results, block)
    if claim_checks(results.contests):
        yield Section("The order of the methods", tables=[order_table(results.contests)])


def split_name(split: str) -> str:
    return "IID" if split == "iid" else f"Dirichlet {split}"


def order_table(contests: Sequence[Contest]) -> Table:
    """Every inequality that the paper's order of the methods claims, and how often it holds."""
    rows = [
        [
            f"{check.low} < {check.high}",
            *map(str, (check.holds, check.fails, check.ties)),
            f"{check.papers} of {check.of}",
        ]
        for check in claim_checks(contests)
    ]
    note = (
        "Each data set and split counts twice: once for MAX and once for EMA. A tie: the 95 % "
        "interval of the difference, seed by seed, contains 0, or there is one seed. Terms on "
        "different heads are not compared."
    )
    return Table(["Claim", "holds", "fails", "ties", "holds in the paper"], rows, note=note)


def settings_table(scale: Scale, cells: Iterable[RecipeCell]) -> Table:
    """The searched setting of each row, and where it comes from."""
    rows: dict[tuple[str, ...], None] = {}
    for cell in cells:
        method, dataset = cell.experiment.method.name, cell.where.dataset
        found = f"{method}, {cell.column}"  # on this level of the network
        name = found if scale.searched(dataset, found).trials else method
        keys = scale.searched(dataset, name).settings or [searched_key(method)]
        tables = flat(as_tables(cell.experiment))
        settings = {key: tables[key] for key in keys}
        origin = scale.origin(dataset, name, settings)
        if origin:
            shown = ", ".join(f"{key.split('.')[1]} {value:g}" for key, value in settings.items())
            rows[cell.row, shown, origin] = None
    note = (
        "Searches were made on kept-back images with Dirichlet 0.3 at 5 %. At their edge: nothing "
        "was tried on one side of the best value."
    )
    columns = ["Method", "setting", "where it comes from"]
    return Table(columns, [*rows], "Settings", note, sentences=True)


def page_about(title: str, results: Results, sections: Sequence[Section]) -> Page:
    return Page(title, _facts(results), _headline(results), sections, _cautions(results))


def markdown_page(title: str, results: Results, sections: Sequence[Section]) -> str:
    parts = [f"# {title}", results.recipe.question, *map(printable, _cautions(results))]
    for section in sections:
        parts += [f"## {section.title}", *section.paragraphs]
        parts += [table.markdown() for table in section.tables]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> list[tuple[str, str]]:
    seeds = {cell.seed for cell, _ in results.finished}
    facts = [
        ("scale", results.scale.name),
        ("cells", f"{len(results.finished)} of {len(results.cells)} finished"),
        ("seeds", ", ".join(map(str, sorted(seeds))) or "none yet"),
    ]
    return facts + ([("changed", ", ".join(results.changes))] if results.changes else [])


def _headline(results: Results) -> str:
    """How the paper's claims fare; for a recipe without claims, its question."""
    claims = claim_checks(results.contests)
    if not claims:
        return results.recipe.question
    holds, fails = (sum(getattr(one, name) for one in claims) for name in ("holds", "fails"))
    of, papers = sum(one.of for one in claims), sum(one.papers for one in claims)
    return (
        f"Of the {of} inequalities that the paper's order of the methods claims in these cells "
        f"{holds} hold here, and {fails} are the other way round; in the paper's own figures "
        f"{papers} hold."
    )


def _cautions(results: Results) -> list[str]:
    missing = len(results.cells) - len(results.finished)
    cautions = [results.scale.caption]
    if results.changes:
        cautions.append(f"Not the settings of this scale: {', '.join(results.changes)}.")
    if missing:
        verb = "is" if missing == 1 else "are"
        cautions.append(f"{plural(missing, 'cell')} of {len(results.cells)} {verb} not finished.")
    cautions += [f"{name} failed: {reason}" for name, reason in results.failures.items()]
    return cautions


def _beside_the_paper(results: Results, place: Place) -> Section:
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
    here = [cell for cell, _ in results.finished if (cell.block, cell.column) == place]
    settings = settings_table(results.scale, here)
    tables = [_table_beside_the_paper(results, place), *([settings] if settings.rows else [])]
    return Section(title, tables=tables, pictures=[picture])


def _table_beside_the_paper(results: Results, place: Place) -> Table:
    gains = results.against_reference(place, "ema")
    rows = [
        [
            row,
            *_compared(entry, "max"),
            *_compared(entry, "ema"),
            *_gain(gains.get(row)),
            number(entry.fluctuation),
        ]
        for row, entry in results.entries[place].items()
    ]
    columns = ["Method"]
    for name in ("MAX", "EMA"):
        columns += [name, "paper's", "difference"]
    columns += ["EMA against FedAvg", "within", "wins", "p", "fluctuation"]
    return Table(columns, rows, note=ABOUT_PAIRS)


def _compared(entry: ResultRow, metric: Metric) -> list[str]:
    spread = entry.spread(metric)
    paper = entry.paper.get(metric)
    if paper is None:
        return [with_deviation(spread), "–", "–"]
    return [with_deviation(spread), number(paper), signed(spread.mean - paper)]


def _gain(pair: Pair | None) -> list[str]:
    """The difference to FedAvg, the bound, wins and p."""
    if pair is None:
        return ["–"] * 4
    bound = "–" if pair.paired.bound is None else number(pair.paired.bound)
    wins = f"{pair.paired.wins} of {pair.paired.seeds}"
    return [_with_interval(pair), bound, wins, p_cell(pair.p_value)]


def _with_interval(pair: Pair) -> str:
    mean, ends = signed(pair.paired.spread.mean), pair.paired.interval
    return mean if ends is None else f"{mean} ({interval(ends)})"


def _grid_section(results: Results, block: str) -> Section:
    columns, rows = results.columns(block), results.rows(block)
    if results.recipe.searched:
        columns.sort(key=values_of)

    def cell(row: str, column: str, metric: Metric) -> str:
        entry = results.entries.get((block, column), {}).get(row)
        return with_deviation(entry.spread(metric)) if entry else "–"

    alone = [""] if (block, "") in results.entries else []  # such as FedAvg in a search
    head = [results.recipe.columns, *("–" for _ in alone), *columns]
    here = [cell for cell, _ in results.finished if cell.block == block]
    best = _best(results, block) if results.recipe.searched else settings_table(results.scale, here)
    tables = [best] if best.rows else []
    for metric in METRICS[::-1]:
        known = [[row, *(cell(row, c, metric) for c in (*alone, *columns))] for row in rows]
        tables.append(Table(head, known, f"{metric.upper()}, %"))
    gains = {c: results.against_reference((block, c), "ema") for c in columns}
    paired = [[row, *(_gain(gains[c].get(row))[0] for c in columns)] for row in rows]
    known = [row for row in paired if any(value != "–" for value in row[1:])]
    if known:
        head = [results.recipe.columns, *columns]
        tables.append(Table(head, known, "EMA against FedAvg, points, seed by seed"))
    return Section(block, tables=tables, pictures=list(_pictures(results, block)))


def _best(results: Results, block: str) -> Table:
    """What was found in each row, and the paper's."""
    rows = []
    for row in results.rows(block):
        tried = {
            column: list(results.entries[block, column][row].values("ema").values())
            for column in results.columns(block)
            if row in results.entries[block, column]
        }
        if choice := Choice.of(tried):
            papers = METHODS[ROWS[row.partition(",")[0]]].published.get(block, {})
            mu = f"{papers['mu']:g}" if "mu" in papers else "–"
            rows.append([row, *found_cells(choice, results.recipe), mu])
    columns = [results.recipe.columns, "trials", "seeds", "best", "at the edge", "paper's mu"]
    note = "At the edge: nothing was tried on one side of the best value."
    return Table(columns, rows, "Chosen by EMA", note=note)


def found_cells(choice: Choice, recipe: Recipe) -> list[str]:
    """Trials, seeds, the best values and where they are at the edge."""
    axes = recipe.columns.split(", ")
    at_edge = ", ".join(axes[axis] for axis in choice.edges) or "–"
    values = ", ".join(f"{value:g}" for value in choice.values)
    return [str(choice.trials), str(choice.seeds), values, at_edge]


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
        pairs = results.against_reference((block, column), "ema")
        for down, row in enumerate(rows):
            if pair := pairs.get(row):
                differences = pair.paired.differences
                ends = (min(differences), max(differences))
                gains[:, down, across] = (pair.paired.spread.mean, *ends)
    return gains
