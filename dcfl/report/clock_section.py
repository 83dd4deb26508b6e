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
    return (
        ", ".join(filter(None, (text.without_folders(clock.words) if clock.active else "", chosen)))
        or None
    )


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
    visits = [*run.clients]
    ages = [row.staleness for row in visits if row.used]
    return [
        name,
        text.number(run.rounds[-1].virtual_time or 0.0, 1),
        f"{len(visits):,}",
        f"{len(ages):,}",
        f"{sum(row.outcome == 'late' for row in visits):,}",
        f"{sum(row.outcome in ('failed', 'rejected') for row in visits):,}",
        f"{text.number(fmean(ages))} ({max(ages)})" if ages else "–",
    ]


def _kind(row: ClientRow) -> int:
    if row.outcome == "late":
        return 2
    return (1 if row.staleness else 0) if row.used else 3


def _picture(run: RecordedRun, name: str) -> Picture:
    """The visits of the first rounds: a bar each, beside those of other clients."""
    clients: dict[int, int] = {}
    shown: list[ClientRow] = []
    for row in run.clients:
        if len(shown) >= MOST_VISITS:
            break
        if row.client in clients or len(clients) < MOST_CLIENTS:
            clients.setdefault(row.client, 0)
            shown.append(row)
    places = {client: at for at, client in enumerate(sorted(clients))}
    series = []
    for kind, label in enumerate(KINDS):
        rows = [row for row in shown if _kind(row) == kind]
        if rows:
            series.append(
                charts.series(
                    label,
                    [places[row.client] for row in rows],
                    [row.ended or 0.0 for row in rows],
                    kind,
                    "points",
                    low=[row.began or 0.0 for row in rows],
                    high=[row.ended or 0.0 for row in rows],
                    notes=[_note(row) for row in rows],
                )
            )
    rounds = text.plural(shown[-1].round if shown else 0, "round")
    return Picture(
        f"Who trained when: {name}",
        f"{text.plural(len(shown), 'visit')} of {text.plural(len(clients), 'client')} over "
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
