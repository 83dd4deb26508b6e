"""`dcfl flower kit`: what a site or a server needs; `dcfl flower daemon ...`: its daemons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import AsJSON, comma_separated, print_json
from dcfl.errors import ConfigError, NetworkError, RunMissing, StorageError, require
from dcfl.system.wording import printable, whole_number

if TYPE_CHECKING:
    from dcfl.flower.audit_log import AuditEntry, History
    from dcfl.flower.deploy.kit_folder import KitStatus, ServerKit, SiteKit


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
    noted: Annotated[
        str,
        typer.Option(
            metavar="LINES:HASH",
            help="What somebody noted of the record, such as the server in site_records.json.",
        ),
    ] = "",
    as_json: AsJSON = False,
) -> None:
    """What a site answered, line by line, and whether its record is whole."""
    from dcfl.flower.audit_log import AuditLog, logs_in

    found = {path: AuditLog(path).read() for path in logs_in(place)}
    if not found:
        raise RunMissing(f"{place}: no audit.jsonl here; a site writes it with its first answer")
    for path, history in found.items():
        if history.torn and not (history.head.lines or history.breaks):
            raise RunMissing(f"{path}: not one whole line of a site's record")
    if as_json:
        print_json({str(path): _as_json(history) for path, history in found.items()})
    else:
        for path, history in found.items():
            _show_history(path, history)
    broken = [str(path) for path, history in found.items() if history.breaks]
    if broken:
        raise StorageError(f"{', '.join(broken)}: a line was changed or removed")
    if noted:
        count, _, last = noted.partition(":")
        lines = whole_number(count)
        if lines is None or not last:
            raise ConfigError(f"--noted {noted}: give LINES:HASH")
        known = [history.has(lines, last) for history in found.values()]
        if not any(known):
            raise StorageError(f"{place}: line {lines} is not the one with the hash {last}")
        if not as_json:
            print(f"line {lines} is the one that was noted")


def _as_json(history: History) -> dict[str, object]:
    entries = [asdict(entry) for entry in history.entries]
    found = {"lines": history.head.lines, "last": history.head.last, "torn": history.torn}
    return {**found, "breaks": history.breaks, "entries": entries}


def _show_history(path: Path, history: History) -> None:
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
        print(f"for an auditor to note: {history.head.lines} lines, the last {history.head.last}")


def _lines(entry: AuditEntry) -> Iterator[str]:
    when = entry.when[:19].replace("T", " ")
    run = entry.run[:SHOWN_DIGITS] or "-"
    where = f"run {run}  round {entry.round or '-'}  client {entry.client}"
    yield f"{when}  {where}  {entry.asked}  {entry.outcome}  {entry.bytes:,} bytes{_spent(entry)}"
    if entry.app or entry.about:
        yield f"    for: {entry.about or 'a run without a config'}; app {entry.app or 'unknown'}"
    if entry.outcome == "answered":
        yield f"    sent: {_grouped(entry.sent) or 'nothing'}"
    else:
        yield f"    {entry.reason}"


def _spent(entry: AuditEntry) -> str:
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


KitFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A folder of `dcfl flower kit`.", show_default=False)
]
daemon = typer.Typer(
    help="The daemons of a kit's folder; its scripts call this.", no_args_is_help=True
)


def kit_command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Sites, or `server`.", show_default=False),
    ],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the sites reach the server.")
    ],
    sites: Annotated[
        str,
        typer.Option(metavar="A,B", help="All sites; otherwise the NAMEs."),
    ] = "",
    add: Annotated[
        bool, typer.Option("--add", help="The NAMEs join the sites that have keys already.")
    ] = False,
    keys: Annotated[
        Path, typer.Option(metavar="DIR", help="Of keys and certificates; made if need be.")
    ] = Path("keys"),
    data: Annotated[
        str, typer.Option(metavar="folder:PATH", help="Where a site has its pictures.")
    ] = "folder:/data/scans",
    wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="dcfl's wheel, to install from the kit itself."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long new certificates are valid.")] = 365,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the folders go.")] = Path("kits"),
) -> None:
    """Write what a site, or the server, needs to take part into a folder ready to send."""
    from dcfl.flower.deploy.kit_writing import SERVER, Kits

    names = list(dict.fromkeys(names))
    given = comma_separated(sites) if sites else [name for name in names if name != SERVER]
    all_sites = tuple(given)
    kits = Kits(superlink, all_sites, keys, data=data, wheel=wheel, days=days)
    for name in names:
        known = name == SERVER or name in all_sites
        require(known, f"{name}: not among the sites {', '.join(all_sites)} of --sites")
    require(not (add and SERVER in names), "--add is for sites: the server's kit stays as it is")
    kits.check_room(names, out)
    kits.make_missing_keys(add)
    for name in names:
        print(printable(f"wrote  {kits.write(name, out)}"))
    if add:
        for name in names:
            key = out / name / "keys" / f"{name}.pub"
            print(printable(f"server ./add {key.name}, with a copy of {key}: it may go on running"))
    else:
        print(printable(f"sites  {', '.join(all_sites)}"))
    print("next   send each folder where only its reader sees it: it holds a private key;")
    print("       its README.md says what to do with it")
    if wheel is None:
        print("note   without --wheel FILE, ./install needs a package index that has dcfl")
    print(printable(f"keep   {keys / 'ca.key'} off every machine that is online"))


@daemon.command("start")
def start_command(folder: KitFolder) -> None:
    """Start in the background."""
    from dcfl.flower.deploy.kit_daemons import start_kit

    print(printable(start_kit(_kit(folder))))


@daemon.command("run")
def run_command(folder: KitFolder) -> None:
    """Run in the foreground, for systemd and containers."""
    from dcfl.flower.deploy.kit_daemons import run_kit

    run_kit(_kit(folder))


@daemon.command("stop")
def stop_command(folder: KitFolder) -> None:
    """End what `start` started, and the processes that those started."""
    from dcfl.flower.deploy.kit_daemons import stop_kit

    count = stop_kit(_kit(folder))
    print(f"ended {count} process{'' if count == 1 else 'es'}")


@daemon.command("add")
def add_command(
    folder: KitFolder,
    key: Annotated[Path, typer.Argument(metavar="NAME.pub", help="The new site's public key.")],
) -> None:
    """Add a site to a server's folder, also while the server runs."""
    from dcfl.flower.deploy.kit_daemons import add_site
    from dcfl.flower.deploy.kit_folder import open_server

    name = add_site(open_server(folder), key)
    print(printable(f"added  {name}; runs that begin from now on include it"))


@daemon.command("status")
def status_command(folder: KitFolder, as_json: AsJSON = False) -> None:
    """What runs, and whether the server can be reached."""
    from dcfl.flower.deploy.kit_folder import kit_status

    status = kit_status(_kit(folder))
    if as_json:
        daemons = [{**asdict(one), "alive": one.alive} for one in status.daemons]
        told = {**asdict(status), "daemons": daemons, "log": status.log and str(status.log)}
        print_json({"well": status.well, **told})
    else:
        _show_status(status)
    if not status.daemons:
        raise NetworkError("nothing is running here; ./start starts it")
    if not status.well:
        raise NetworkError("not well: see above")


def _show_status(status: KitStatus) -> None:
    for process in status.daemons:
        state = f"process {process.pid}" if process.alive else "has ended"
        print(printable(f"{process.name:<10} {state}"))
    for way in status.ways:
        state = way.obstacle.removeprefix(way.address).lstrip() or "can be reached"
        print(printable(f"{way.address}  {state}"))
    for site, state in status.sites.items():
        print(printable(f"{site:<10} {state}"))
    for run in status.runs:
        print(printable(f"run        {run.words}"))
    for line in status.last_lines:
        print(printable(f"log        {line}"))
    if status.log:
        print(printable(f"all of it  {status.log}"))


def _kit(folder: Path) -> SiteKit | ServerKit:
    from dcfl.flower.deploy.kit_folder import open_kit

    return open_kit(folder)
