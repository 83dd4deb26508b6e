"""What sites elsewhere have, as far as they chose to send it, as a section of a run page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcfl.report.document import Section, Table
from dcfl.report.plots import LONGEST_CLASS
from dcfl.runs.evaluations import read_evaluations
from dcfl.runs.folder import RecordedRun
from dcfl.system.printable import printable

MOST_CLASSES = 12  # with a column each
UNTOLD = "–"
NOTE = (
    "As each site counts them; nobody else can check. Training images are those of its last reply, "
    "test images those on which it scored the last model."
)


def site_section(runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]) -> Section | None:
    """None where the runs knew their clients' samples, or the sites sent nothing."""
    remote = [run for run in runs if run.at_sites]
    tables = [_table(run, names[run] if len(runs) > 1 else "") for run in remote]
    shown = [table for table in tables if table.rows]
    return Section("What the sites have", tables=shown) if shown else None


def _table(run: RecordedRun, title: str) -> Table:
    trained = {row.client: row.num_examples for row in run.clients if row.num_examples}
    sites = {row.client: _name(row.client, row.site) for row in run.clients}
    tested = {score.client: score.images for row in run.rounds for score in row.sites}
    counts = _class_counts(run)
    classes = run.class_names if counts and len(run.class_names) <= MOST_CLASSES else []
    rows = [
        [
            name,
            _count(trained.get(client)),
            _count(tested.get(client)),
            *(_count(count) for count in counts.get(name, [None] * len(classes))[: len(classes)]),
        ]
        for client, name in sorted(sites.items())
    ]
    columns = [f"{printable(name, LONGEST_CLASS)}, test" for name in classes]
    return Table(("Site", "Training images", "Test images", *columns), rows, title, NOTE)


def _name(client: int, site: str) -> str:
    return printable(site) if site else f"site {client}"


def _class_counts(run: RecordedRun) -> dict[str, list[int | None]]:
    """Test images of each class, by the names of the sites that counted them."""
    records = [record for record in read_evaluations(run.folder) if record.own_data]
    return {
        printable(client.name): [*client.by_class]
        for record in records
        for client in record.clients
        if client.by_class
    }


def _count(number: int | None) -> str:
    return UNTOLD if number is None else f"{number:,}"
