"""The fine print of a run page: failures, judges, and what it takes to repeat a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dcfl.report import text
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow
from dcfl.system.printable import printable

MOST_LISTED = 6  # clients, or rounds


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in one run, however often."""

    run: str
    outcome: str
    reason: str
    times: int
    clients: str
    rounds: str


@dataclass(frozen=True)
class Judge:
    """A site that scores the model on test images of its own."""

    run: str
    site: str  # its name, or its number if it has none
    accuracy: float  # after the last round in which it reported
    round: int
    images: int
    share: float  # of its weight in the run's accuracy then, percent


@dataclass(frozen=True)
class Detail:
    """What it takes to repeat a run and to check that the result is the same."""

    name: str
    status: str
    weights_sha256: str
    partition_sha256: str
    config: str
    environment: str


def failures_of(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Failure]:
    rows: dict[tuple[str, str, str], list[ClientRow]] = {}
    for run in runs:
        for row in run.clients:
            if row.outcome != "ok":
                reason = text.without_folders(row.reason)
                rows.setdefault((names[run], row.outcome, reason), []).append(row)
    return [
        Failure(*key, len(same), _clients(same), _span(same, "round")) for key, same in rows.items()
    ]


def judges_of(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[Judge]:
    judges: dict[tuple[str, int], Judge] = {}
    for run in runs:
        for row in run.rounds:
            sites = row.sites
            total = sum(site.images * site.weight for site in sites) or 1
            for site in sites:
                share = 100 * site.images * site.weight / total
                judges[names[run], site.client] = Judge(
                    names[run],
                    printable(run.site_names.get(site.client, f"{site.client}")),
                    site.accuracy,
                    row.round,
                    site.images,
                    share,
                )
    return [judges[key] for key in sorted(judges)]


def _clients(rows: Sequence[ClientRow]) -> str:
    named = {row.client: printable(row.site) for row in rows if row.site}
    if 0 < len(named) <= MOST_LISTED:
        return ", ".join(name for _, name in sorted(named.items()))
    return _span(rows, "client")


def _span(rows: Sequence[ClientRow], key: str) -> str:
    values = sorted({row[key] for row in rows})
    if len(values) > MOST_LISTED:
        return f"{len(values)} between {values[0]} and {values[-1]}"
    return ", ".join(map(str, values))


def empty_rounds(runs: Sequence[RecordedRun], names: dict[RecordedRun, str]) -> list[str]:
    empty = {run: sum(not row.used for row in run.rounds) for run in runs}
    return [
        f"{names[run]}: {text.plural(count, 'round')} with too few usable replies; "
        f"the model stayed as it was."
        for run, count in empty.items()
        if count
    ]


def detail_of(run: RecordedRun, name: str) -> Detail:
    return Detail(
        name,
        "finished" if run.finished else "unfinished",
        run.summary.weights_sha256 if run.summary else "",
        run.partition_sha256,
        text.without_folders(run.config_text.strip()),
        text.without_folders(json.dumps(run.environment, indent=2)),
    )
