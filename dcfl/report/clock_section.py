"""What a run by the clock took in virtual time, and who trained when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dcfl.comparisons.groups import setting
from dcfl.config import DEFAULT, apply
from dcfl.report import charts, text
from dcfl.report.document import Picture, Section, Table
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow

MOST_VISITS, MOST_CLIENTS = 90, 40  # of the picture

KINDS = ("used, on the newest model", "used, from an older model", "late", "lost or not used")


def clock_words(run: RecordedRun) -> str | None:
    """The clock's settings and how clients are chosen, in a line; None if both are as usual."""
    selection = setting(run, "federation.selection")
    chosen = f"clients by {selection}" if selection not in (None, "uniform") else ""
    clock = apply(DEFAULT, {"clock": run.config.get("clock", {})}).clock
    words = text.without_folders(clock.words) if clock.active else ""
    return ", ".join(filter(None, (words, chosen))) or None


def clock_section(runs: Sequence[RecordedRun], names: Mapping[RecordedRun, str]) -> Section | None:
    timed = [run for run in runs if run.rounds and run.rounds[-1].virtual_time is not None]
    if not timed:
        return None
    paragraph = (
        "Times are virtual: they follow from the devices that the clock gives the clients, from "
        "the work of the method and from the bytes that were sent, and are the same on every "
        "machine."
    )
    columns = ("Run", "Virtual seconds", "Visits", "Used", "Late", "Lost", "Steps old, mean (most)")
    table = Table(columns, [_row(run, names[run]) for run in timed])
    return Section("The clock", [paragraph], [table], [_picture(timed[0], names[timed[0]])])


def _row(run: RecordedRun, name: str) -> list[str]:
    ages = [row.staleness for row in run.clients if row.used]
    late = sum(row.outcome == "late" for row in run.clients)
    lost = sum(row.outcome in ("failed", "rejected") for row in run.clients)
    return [
        name,
        text.number(run.rounds[-1].virtual_time or 0.0, 1),
        *(f"{count:,}" for count in (len(run.clients), len(ages), late, lost)),
        f"{text.number(fmean(ages))} ({max(ages)})" if ages else "–",
    ]


def _kind(row: ClientRow) -> int:
    if row.outcome == "late":
        return 2
    return (1 if row.staleness else 0) if row.used else 3


def _picture(run: RecordedRun, name: str) -> Picture:
    first = list(dict.fromkeys(row.client for row in run.clients))[:MOST_CLIENTS]
    shown = [row for row in run.clients if row.client in first][:MOST_VISITS]
    places = {client: at for at, client in enumerate(sorted({row.client for row in shown}))}
    series = []
    for kind, label in enumerate(KINDS):
        if rows := [row for row in shown if _kind(row) == kind]:
            low, high = ([row[end] or 0.0 for row in rows] for end in ("began", "ended"))
            x, notes = [places[row.client] for row in rows], [*map(_note, rows)]
            series.append(
                charts.series(label, x, high, kind, "points", low=low, high=high, notes=notes)
            )
    rounds = text.plural(shown[-1].round if shown else 0, "round")
    return Picture(
        f"Who trained when: {name}",
        f"{text.plural(len(shown), 'visit')} of {text.plural(len(places), 'client')} over "
        f"virtual time, in the first {rounds}.",
        "A bar is a client's visit, from the server's message to its reply, which the dot marks. "
        f"The first {rounds} are shown; time runs upwards.",
        charts.plot(
            charts.places("client", [str(client) for client in places]),
            {"label": "virtual seconds", "floor": 0},
            [{"series": series}],
        ),
        wide=True,
    )


def _note(row: ClientRow) -> str:
    age = f"\n{text.plural(row.staleness, 'step')} old" if row.staleness else ""
    reason = f"\n{row.reason}" if row.reason else ""
    times = f"{text.number(row.began or 0.0)} to {text.number(row.ended or 0.0)} s"
    return f"client {row.client}, round {row.round}\n{times}{age}{reason}"
