"""`dcfl flower audit`: what a site has answered, by its own record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import AsJSON, print_json
from dcfl.errors import RunMissing, StorageError
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from dcfl.flower.audit_log import Entry, History

SHOWN_DIGITS = 8  # of a run's id
OUTCOMES = ("answered", "refused", "failed")  # in the order in which they are counted


def audit_command(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            help="A site's audit.jsonl, its folder, or the home of `dcfl flower up`.",
        ),
    ],
    as_json: AsJSON = False,
) -> None:
    """What a site answered, line by line, and whether its record is whole."""
    from dcfl.flower.audit_log import AuditLog, logs_in

    found = {path: AuditLog(path).read() for path in logs_in(place)}
    if not found:
        raise RunMissing(f"{place}: no audit.jsonl here; a site writes it with its first answer")
    if as_json:
        print_json({str(path): _as_json(history) for path, history in found.items()})
    else:
        for path, history in found.items():
            _show(path, history)
    broken = [str(path) for path, history in found.items() if history.breaks]
    if broken:
        raise StorageError(f"{', '.join(broken)}: a line was changed or removed")


def _as_json(history: History) -> dict[str, object]:
    entries = [asdict(entry) for entry in history.entries]
    return {"torn": history.torn, "breaks": history.breaks, "entries": entries}


def _show(path: Path, history: History) -> None:
    outcomes = Counter(entry.outcome for entry in history.entries)
    total = sum(entry.bytes for entry in history.entries)
    known = [outcome for outcome in OUTCOMES if outcome in outcomes]
    order = [*known, *(outcome for outcome in outcomes if outcome not in OUTCOMES)]
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in order)
    print(printable(f"{path}: {len(history.entries)} messages ({counts}), {total:,} bytes sent"))
    for entry in history.entries:
        for line in _lines(entry):
            print(printable(line))
    if history.torn:
        print(f"{history.torn} cut short by a kill, before the answer was sent")
    if not history.breaks:
        print("each line names the hash of the one before it: nothing was changed or removed")


def _lines(entry: Entry) -> Iterator[str]:
    when = entry.when[:19].replace("T", " ")
    run = entry.run[:SHOWN_DIGITS] or "-"
    where = f"run {run}  round {entry.round or '-'}  client {entry.client}"
    yield f"{when}  {where}  {entry.asked}  {entry.outcome}  {entry.bytes:,} bytes{_spent(entry)}"
    if entry.outcome == "answered":
        yield f"    sent: {_grouped(entry.sent) or 'nothing'}"
    else:
        yield f"    {entry.reason}"


def _spent(entry: Entry) -> str:
    if not entry.vectors:
        return ""
    known = entry.epsilon is not None
    return f"  epsilon {entry.epsilon:.2f} so far" if known else "  no guarantee of privacy"


def _grouped(names: tuple[str, ...]) -> str:
    """`counts.kept`, `counts.num-steps` as `counts: kept, num-steps`."""
    groups = []
    for record, parts in groupby(names, key=lambda name: name.partition(".")[0]):
        tails = ", ".join(name.partition(".")[2] for name in parts)
        groups.append(f"{record}: {tails}" if tails else record)
    return "; ".join(groups)
