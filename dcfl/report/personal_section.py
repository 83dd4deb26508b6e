"""How clients fare with the global model and with their own, as a section of a run page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dcfl.report import text
from dcfl.report.document import Section, Table
from dcfl.runs.folder import PERSONAL_ROWS, RecordedRun
from dcfl.runs.rows import PersonalRow
from dcfl.system.printable import printable

SHOWN = 10  # clients that are named
COLUMNS = ("Client", "Global model, %", "Own model, %", "Difference")
EXPLANATION = (
    "A part of the model is each client’s own. In the global model that part is as it was in the "
    "beginning. Both are scored after the last round, on the client’s own mix of classes or its "
    "own test images."
)


def personal_section(
    runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]
) -> Section | None:
    """None if no run has personal models."""
    found = [run for run in runs if any(row.personal_accuracy is not None for row in run.personal)]
    if not found:
        return None
    tables = [_table(run.personal, names[run] if len(runs) > 1 else "") for run in found]
    return Section("The clients’ own models", [EXPLANATION], tables)


def _table(rows: Sequence[PersonalRow], run: str) -> Table:
    scored = [
        (own, common, _name(row))
        for row in rows
        if (own := row.personal_accuracy) is not None
        and (common := row.global_accuracy) is not None
    ]
    cells = [_cells(name, common, own) for own, common, name in sorted(scored)[:SHOWN]]
    if scored:
        own, common = fmean(one[0] for one in scored), fmean(one[1] for one in scored)
        cells.append(_cells(f"mean of {text.plural(len(scored), 'client')}", common, own))
    untrained = sum(row.personal_accuracy is None for row in rows)
    notes = [
        f"The {SHOWN} whose own models are worst; all are in {PERSONAL_ROWS}."
        if len(scored) > SHOWN
        else "",
        f"{text.plural(untrained, 'client')} never trained." if untrained else "",
    ]
    return Table(COLUMNS, cells, run, " ".join(filter(None, notes)))


def _cells(name: str, common: float, own: float) -> list[str]:
    return [name, text.number(common), text.number(own), text.signed(own - common)]


def _name(row: PersonalRow) -> str:
    return printable(row.site) if row.site else f"client {row.client}"
