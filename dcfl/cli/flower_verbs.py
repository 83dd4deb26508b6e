"""`dcfl flower ...`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.kit_verbs import audit_command, daemon, kit_command
from dcfl.cli.options import (
    AsJSON,
    Folder,
    MethodFile,
    ModelFile,
    Out,
    Settings,
    Trust,
    experiment_of,
    print_json,
    run_own_files,
)
from dcfl.errors import DCFLError, Interrupted, require
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from dcfl.experiment import Experiment
    from dcfl.flower.deploy.checks import Finding
    from dcfl.flower.deploy.statistics import Answers
    from dcfl.flower.deploy.submission import SiteLogs, Submitted
    from dcfl.flower.deploy.superlink import Connection
    from dcfl.flower.roster import Roster
    from dcfl.system.own_files import OwnFile

flower = typer.Typer(
    help="Run the same experiment on Flower, across real sites or here.",
    no_args_is_help=True,
)
flower.command("kit")(kit_command)
flower.add_typer(daemon, name="daemon")

Home = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the local SuperLink keeps everything.")
]
HERE = Path(".dcfl-flower")
flower.command("audit")(audit_command)
ServerFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The server's folder of `dcfl flower kit`.")
]


@flower.command("up")
def up_command(
    sites: Annotated[int, typer.Option(min=1, max=1024, help="How many SuperNodes.")] = 2,
    tls: Annotated[bool, typer.Option(help="With certificates and node keys.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="folder:PATH|npz:FILE",
            help="A site's own pictures or feature vectors; once for each site.",
        ),
    ] = None,
    home: Home = HERE,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, to try it out."""
    from dcfl.flower.deploy.deployment import require_idle, up

    own = [_own_data(text) for text in data or ()]
    names = [path.stem if kind == "npz" else path.name for kind, path in own]
    configs = [
        f'data="{kind}:{path}" site="{name}"' for (kind, path), name in zip(own, names, strict=True)
    ]
    count = len(configs) or sites
    nodes = f"{count} SuperNode{'' if count == 1 else 's'}"
    require_idle(home)
    print(f"starting a SuperLink and {nodes}: up to two minutes", file=sys.stderr)
    link = up(home, count, tls, configs, names)
    how = "TLS and node keys" if tls else "without TLS: any process of this machine can be a site"
    print(
        f"SuperLink  {link.address}, {how}\n"
        f"sites      {count} online\n"
        f"next       dcfl flower run CONFIG.toml; dcfl flower down"
    )


def _own_data(text: str) -> tuple[str, Path]:
    """The kind of a site's data, and where they are."""
    kind, _, location = text.partition(":")
    known = kind in ("folder", "npz")
    like = f"give folder:PATH or npz:FILE, such as folder:{location or kind}"
    require(known, f"--data {text}: {like}")
    path = Path(os.path.expanduser(location)).resolve()
    what = "a folder" if kind == "folder" else "a file"
    there = path.is_dir() if kind == "folder" else path.is_file()
    require(there, f"--data {text}: {path} is not there, or is not {what}")
    return kind, path


@flower.command("check-site")
def check_site_command(
    folder: Folder,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="The run's config: do the classes, the number of sites and the rules fit?",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Look at a site before it takes part: its data, versions, disk, key and way to the SuperLink.

    DIR is a site's folder of `dcfl flower kit`, with its site.toml. Exit code 1: there is a
    problem.
    """
    from dcfl.flower.deploy.checks import problems
    from dcfl.flower.deploy.kit_folder import open_site
    from dcfl.flower.deploy.site_check import check_site

    site = open_site(folder)
    findings = check_site(site, experiment_of([str(run)]) if run else None)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print_findings(findings)
    if problems(findings):
        raise typer.Exit(1)


def _print_findings(findings: Sequence[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        state = "problem" if not finding.ok else "warning" if finding.remedy else "ok     "
        print(printable(f"{state}  {finding.subject:<{width}}  {finding.text}"))
        if finding.remedy:
            print(printable(f"{'':7}  {'':{width}}  -> {finding.remedy}"))


@flower.command(
    "supernode",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def supernode_command(context: typer.Context) -> None:
    """Flower's SuperNode, with its options, and a warm process for its messages."""
    from dcfl.flower.deploy.supernode import run_supernode

    run_supernode(context.args)


@flower.command("down")
def down_command(home: Home = HERE) -> None:
    """End exactly what `up` started, and the processes that those started."""
    from dcfl.flower.deploy.deployment import down

    count = down(home)
    print(f"ended {count} process{'' if count == 1 else 'es'}")
    print(printable(f"{home} stays, with logs and keys: remove it when nobody needs them"))


@flower.command("status")
def status_command(home: Home = HERE, as_json: AsJSON = False) -> None:
    """The SuperLink, its sites and its runs."""
    from dcfl.flower.deploy.deployment import status
    from dcfl.flower.roster import site_title

    current = status(home)
    if as_json:
        print_json(asdict(current))
        return
    print(printable(f"SuperLink  {current.address}  {'up' if current.alive else 'dead'}"))
    for node in current.nodes:
        state = "dead" if not node.alive else "online" if node.online else "not online"
        print(printable(f"{site_title(node.name):<9}  process {node.pid}  {state}"))
    for run in current.runs:
        print(printable(f"run        {run.words}"))


@flower.command("personal")
def personal(
    folder: Folder,
    state: Annotated[
        Path,
        typer.Argument(
            metavar="STATE", show_default=False, help="The node's folder of memories, or one in it."
        ),
    ],
) -> None:
    """At a site: join the server's run folder with the part of the model that the site has kept.

    `dcfl predict`, `evaluate`, `embed` and `export` then take the site's own model with --client.
    """
    from dcfl.runs.model_file import join_personal_part

    client, path = join_personal_part(folder, state)
    print(printable(f"part   {path}: it never left the site; keep it there"))
    print(printable(f"model  dcfl predict {folder} PICTURE... --client {client}"))


@flower.command("run")
def run_command(
    settings: Settings = None,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
    out: Out = None,
    home: Home = HERE,
    kit: ServerFolder = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the run in this folder.")
    ] = None,
    trust: Trust = False,
    as_json: AsJSON = False,
) -> None:
    """Train at the SuperNodes. The run folder is written on the SuperLink's machine."""
    from dcfl.flower.deploy.submission import SiteLogs, app_code, for_superlink, submit
    from dcfl.flower.nodes import JOIN_SECONDS
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.trust import require_trust

    given = bool(settings or out)
    require(not (resume and given), "--resume goes on with a run as it is, in its own folder")
    link, roster = _federation(home, kit)
    if resume:
        run_own_files(method_file, model_file)
        experiment = RecordedRun.open(resume).experiment
        if not trust:
            require_trust(resume, experiment)
    else:
        asked = experiment_of(settings, method_file, model_file, out, engine="flower")
        experiment = for_superlink(asked)
    if not as_json:
        _tell_hashes(app_code(experiment))
    absence = _Absence(link, roster)
    absence.say(
        f"; the run waits up to {JOIN_SECONDS} s, then begins with the others, or ends if these "
        f"are too few"
    )
    logs = None if kit else SiteLogs(home)
    submitted = submit(link, experiment, roster, resume is not None)
    _follow(submitted, experiment, logs, absence)
    _print_result(submitted, as_json)


class _Absence:
    """Tells which sites a run waits for: it has nothing else to show meanwhile."""

    def __init__(self, link: Connection, roster: Roster) -> None:
        self._link, self._roster, self._told = link, roster, ""

    def say(self, more: str = "") -> None:
        from dcfl.flower.deploy.superlink import absent_sites

        sites = absent_sites(self._link, self._roster)
        if sites != self._told:
            say(printable(f"not online: {sites}{more}" if sites else "all sites are online again"))
        self._told = sites


def _tell_hashes(files: Mapping[str, OwnFile]) -> None:
    """What the sites' operators compare, or pin."""
    for kind, file in files.items():
        print(printable(f"code   {kind} {file.path}, SHA-256 {file.sha256}"))


@flower.command("stats")
def stats_command(
    settings: Settings = None,
    home: Home = HERE,
    kit: ServerFolder = None,
    as_json: AsJSON = False,
) -> None:
    """What the sites have, before a training: classes, sizes, mean and deviation.

    The config needs data.dataset = "remote", data.class_names, and data.image_size of pictures or
    data.features of vectors. A site tells what it does not withhold. The mean and deviation of all
    of them are proposed.
    """
    from dcfl.flower.deploy.statistics import pooled, statistics

    link, roster = _federation(home, kit)
    experiment = experiment_of(settings, engine="flower")
    answers = statistics(link, experiment, roster)
    mean, std = pooled(answers)
    if as_json:
        told = {
            name: one if isinstance(one, str) else one._asdict() for name, one in answers.items()
        }
        print_json({"sites": told, "mean": mean, "std": std})
        return
    _print_statistics(answers, experiment.data.class_names)
    if mean:
        print(f"\nproposed for [data], over all that was told:\nmean = {mean}\nstd = {std}")


def _print_statistics(answers: Answers, class_names: Sequence[str]) -> None:
    from dcfl.cli.terminal import new_table, stdout

    table = new_table("site", "images", *map(printable, class_names), "mean", "deviation")
    for name, one in answers.items():
        if isinstance(one, str):
            table.add_row(printable(name), printable(one))
            continue
        counts = [f"{count:,}" for count in one.by_class] or ["withheld"] * len(class_names)
        pixels = [
            " ".join(f"{x:.3f}" for x in values)
            if len(values) <= 4
            else f"of {len(values)} numbers"
            for values in (one.mean, one.std)
        ]
        size = "withheld" if one.images is None else f"{one.images:,}"
        table.add_row(printable(name), size, *counts, *(text or "withheld" for text in pixels))
    stdout.print(table)
    told = [one for one in answers.values() if not isinstance(one, str)]
    if told and all(one.by_class for one in told):
        counts = [sum(column) for column in zip(*(one.by_class for one in told), strict=True)]
        nobody = [name for name, count in zip(class_names, counts, strict=True) if not count]
        if nobody:
            print(printable(f"no site has training images of {', '.join(nobody)}"))


@flower.command("stop")
def stop_command(
    run: Annotated[
        int | None,
        typer.Argument(metavar="RUN", help="Its number; without it, the run that is not finished."),
    ] = None,
    home: Home = HERE,
    kit: ServerFolder = None,
) -> None:
    """Stop a run at its SuperLink, also one whose terminal is gone."""
    from dcfl.flower.deploy.superlink import newest_runs, stop

    link, _ = _federation(home, kit)
    runs = [one for one in newest_runs(link) if not one.status.startswith("finished")]
    if run is None:
        listed = "; ".join(one.words for one in runs)
        require(
            len(runs) == 1, f"which run? {listed}" if runs else f"{link.address}: no run goes on"
        )
        run = runs[0].run
    stop(link, run)
    print(f"stopped run {run}; `dcfl flower run --resume DIR` goes on with it, from its folder")


def _federation(home: Path, kit: Path | None) -> tuple[Connection, Roster]:
    """The SuperLink of a server's kit, or that of `up`, and the sites."""
    from dcfl.flower.deploy.deployment import connection, roster_of
    from dcfl.flower.deploy.kit_folder import open_server
    from dcfl.flower.roster import Roster

    if kit:
        server = open_server(kit)
        return server.link, Roster.of_keys(server.public_keys)
    return connection(home), roster_of(home)


def _follow(
    submitted: Submitted, experiment: Experiment, logs: SiteLogs | None, absence: _Absence
) -> None:
    """Show the rounds as they end, who is away, and what the sites' logs say where they are at
    hand; whoever stops waiting stops the run."""
    from dcfl.cli import terminal
    from dcfl.runs.folder import RecordedRun
    from dcfl.runs.progress import shown

    def explain() -> None:
        for line in logs.news() if logs else ():
            warnings.warn(line, stacklevel=1)

    try:
        label = experiment.method.name
        with shown(label, experiment, submitted.folder, console=terminal.stderr) as show:
            for row in submitted.rows():
                if row is None:
                    absence.say()
                else:
                    show(row)
                explain()
    except DCFLError:
        explain()
        raise
    except (KeyboardInterrupt, SystemExit) as asked:
        say("stopping the run at the SuperLink, which takes some seconds")
        submitted.stop()
        if not RecordedRun(submitted.folder).rounds:
            raise
        code = asked.code if isinstance(asked, SystemExit) else 130
        raise Interrupted(
            f"stopped; `dcfl flower run --resume {submitted.folder}` continues it",
            code if isinstance(code, int) else 1,
        ) from None


def _print_result(submitted: Submitted, as_json: bool) -> None:
    from dcfl.cli.cards import run_card
    from dcfl.runs.folder import RecordedRun

    recorded = RecordedRun(submitted.folder)
    if recorded.summary is None:
        where = printable(submitted.folder)
        print(f"run {submitted.run} has ended; its folder is at the SuperLink: {where}")
    elif as_json:
        print_json({**recorded.summary.to_json(), "folder": str(submitted.folder)})
    else:
        print(run_card(recorded.summary, recorded.rounds, "SuperNodes", submitted.folder))
