"""`dcfl flower ...`: the verbs. flwr and torch are imported inside them."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import AsJSON, Out, Words, experiment_of, print_json
from dcfl.errors import ConfigError
from dcfl.system.printable import printable

if TYPE_CHECKING:
    from dcfl.flower.deploy.superlink import Connection
    from dcfl.flower.roster import Roster

flower = typer.Typer(
    help="The same experiment on Flower: at SuperNodes, here or at sites elsewhere.",
    no_args_is_help=True,
)

Home = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the local SuperLink keeps everything.")
]
HERE = Path(".dcfl-flower")
Sites = Annotated[
    str,
    typer.Option(
        metavar="N|A.pub,B.pub",
        help="How many SuperNodes there are, or their public keys in the order of partition-id.",
    ),
]


@flower.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    words: Words = None,
    sites: Sites = "",
) -> None:
    """Write a Flower app that runs a config with the dcfl that is installed at each site."""
    from dcfl.flower.deploy.bundle import experiment_text, write_bundle

    experiment = experiment_text(experiment_of(words, engine="flower"))
    roster = _roster(sites)
    wrote = write_bundle(folder, experiment, roster.to_text() if roster else "")
    print(printable(f"wrote  {wrote}"))
    print(printable(f"run    flwr run {folder} SUPERLINK"))


@flower.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    sites: Annotated[str, typer.Option(metavar="A,B,C", help="The sites' names.")],
    hosts: Annotated[
        str, typer.Option(metavar="NAME,...", help="Under which sites reach the SuperLink.")
    ] = "localhost,127.0.0.1",
    days: Annotated[int, typer.Option(min=1, help="For how long certificates are valid.")] = 365,
) -> None:
    """Make what TLS and node authentication need. What is there already is kept."""
    from dcfl.flower.deploy.keys import make_keys

    names = [name.strip() for name in sites.split(",")]
    make_keys(folder, names, [host.strip() for host in hosts.split(",")], days)
    print(printable(f"server  {folder / 'server.pem'}, {folder / 'server.key'}"))
    print(printable(f"sites   {', '.join(str(folder / name) for name in names)}, each with ca.crt"))
    print(printable(f"keep    {folder / 'ca.key'} off every machine that is online"))


@flower.command("up")
def up_command(
    sites: Annotated[int, typer.Option(min=1, help="SuperNodes.")] = 2,
    tls: Annotated[bool, typer.Option(help="Certificates and node keys.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="folder:PATH", help="A site's own pictures; once for each site."),
    ] = None,
    home: Home = HERE,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, to try it out."""
    from dcfl.flower.deploy.deployment import up

    configs = [_node_data(text) for text in data or ()]
    link = up(home, len(configs) or sites, tls, configs)
    how = "TLS and node keys" if tls else "without TLS: any process of this machine can be a site"
    print(
        f"SuperLink  {link.address}, {how}\n"
        f"sites      {len(configs) or sites} online\n"
        f"next       dcfl flower run CONFIG.toml; dcfl flower down"
    )


def _roster(words: str) -> Roster | None:
    from dcfl.flower.roster import Roster

    return Roster.from_option(words) if words else None


def _node_data(text: str) -> str:
    kind, _, where = text.partition(":")
    path = Path(os.path.expanduser(where)).resolve()
    if kind != "folder" or not path.is_dir():
        raise ConfigError(f"--data {text}: give folder:PATH with a folder that exists")
    return f'data="folder:{path}" site="{path.name}"'


@flower.command("down")
def down_command(home: Home = HERE) -> None:
    """End exactly what `up` started, and whatever came of it."""
    from dcfl.flower.deploy.deployment import down

    count = down(home)
    print(f"ended {count} process{'' if count == 1 else 'es'}")


@flower.command("status")
def status_command(home: Home = HERE, as_json: AsJSON = False) -> None:
    """The SuperLink, its sites and its runs."""
    from dcfl.flower.deploy.deployment import status

    found = status(home)
    if as_json:
        print_json(asdict(found))
        return
    print(printable(f"SuperLink  {found.address}  {'up' if found.alive else 'dead'}"))
    for node in found.nodes:
        state = "dead" if not node.alive else "online" if node.online else "not online"
        print(f"site {node.partition}     process {node.pid}  {state}")
    for run in found.runs:
        print(printable(f"run        {run.run}  {run.status}"))


@flower.command("run")
def run_command(
    words: Words = None,
    out: Out = None,
    home: Home = HERE,
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="One elsewhere, not that of `up`.")
    ] = "",
    root_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of the SuperLink's authority (ca.crt).")
    ] = None,
    insecure: Annotated[bool, typer.Option(help="Without TLS.")] = False,
    sites: Sites = "",
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Train at the SuperNodes. The run folder is written on the SuperLink's machine."""
    from dcfl.cli.terminal import progress, run_result
    from dcfl.flower.deploy.deployment import roster_of
    from dcfl.flower.deploy.submission import for_superlink, submit
    from dcfl.flower.roster import UNBOUND
    from dcfl.runs.folder import RecordedRun

    link = _link(home, superlink, root_certificate, insecure)
    if resume:
        experiment = RecordedRun.open(resume).experiment
    else:
        experiment = for_superlink(experiment_of(words, out=out, engine="flower"))
    roster = _roster(sites) or (None if superlink else roster_of(home))
    if superlink and not (roster and roster.keys):
        warnings.warn(UNBOUND, stacklevel=1)
    text = roster.to_text() if roster else ""
    submitted = submit(link, experiment, text, resume is not None)
    try:
        with progress(experiment.method.name, experiment.federation.rounds) as show:
            for row in submitted.rows():
                show(row)
    except (KeyboardInterrupt, SystemExit):
        submitted.stop()
        raise
    recorded = RecordedRun(submitted.folder)
    if recorded.summary is None:
        where = printable(submitted.folder)
        print(f"run {submitted.run} has ended; its folder is at the SuperLink: {where}")
    elif as_json:
        print_json({**recorded.summary.to_json(), "folder": str(submitted.folder)})
    else:
        print(run_result(recorded.summary, recorded.rounds, "SuperNodes", submitted.folder))


def _link(home: Path, address: str, root_certificate: Path | None, insecure: bool) -> Connection:
    from dcfl.flower.deploy.deployment import connection
    from dcfl.flower.deploy.superlink import Connection

    if address:
        return Connection(address, home / "elsewhere", root_certificate, insecure)
    if root_certificate or insecure:
        raise ConfigError("--root-certificate and --insecure go with --superlink HOST:PORT")
    return connection(home)
