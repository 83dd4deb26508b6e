"""What runs beside a SuperLink: a whole run, with its clients at the SuperNodes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dcfl import config
from dcfl.data import Dataset, load_dataset
from dcfl.data.settings import DataSettings, accuracy_words
from dcfl.engines.engine import Session
from dcfl.errors import DCFLError, ProtocolError
from dcfl.flower.app_code import run_app_code
from dcfl.flower.codec import Task, read_statistics
from dcfl.flower.engine import GridEngine
from dcfl.flower.messenger import LostReply, Messenger
from dcfl.flower.nodes import Nodes
from dcfl.flower.roster import UNBOUND, Roster
from dcfl.flower.site_rules import ASKS_STATISTICS
from dcfl.flower.withholding import STATISTICS
from dcfl.runs.run import Run
from dcfl.system.storage import write_whole
from dcfl.system.wording import printable

ANSWER_SECONDS = 600.0  # for a site to read all of its pictures
TOLD = "dcfl statistics:"  # then the answers as JSON: for `dcfl flower stats`, in the log
SITE_RECORDS = "site_records.json"  # how far each site's audit log went, for an auditor
ENDED = "dcfl ended with"  # then the exit code and the reason: for `dcfl flower run`, in the log

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The run config has the experiment as one text, because Flower wants every key declared."""
    engines: list[GridEngine] = []

    @contextmanager
    def connect(session: Session) -> Iterator[GridEngine]:
        runner = session.runner.on(session.placement.devices[0])
        engine = GridEngine(replace(session, runner=runner), grid, roster)
        engines.append(engine)
        yield engine

    resume = str(context.run_config.get("resume", ""))
    try:
        for line in run_app_code(str(context.run_config.get("code", ""))):
            print(line, flush=True)
        experiment = config.from_toml(str(context.run_config["experiment"]))
        roster = Roster.from_text(str(context.run_config["sites"]))
        if not roster.keys:
            print(UNBOUND, flush=True)
        if context.run_config.get("asks") == STATISTICS:
            answers = ask_sites(grid, roster, experiment.data)
            print(f"{TOLD} {json.dumps(answers)}", flush=True)  # whole, and ASCII
            return
        dataset = named_sites(experiment.data, roster)
        if resume:
            run = Run.resume(Path(resume), dataset, connect=connect, trust=True)  # was asked for
        else:
            run = Run(experiment, dataset, connect=connect)
        words = accuracy_words(run.experiment.data.holdout)
        for row in run.rounds():
            for notice in row.notices:
                print(printable(f"warning: {notice}"), flush=True)
            scored = "" if row.accuracy is None else f": {words} {row.accuracy:.2f} %"
            print(f"round {row.round}{scored}", flush=True)
            _keep_records(run.folder, engines)
        _keep_records(run.folder, engines)
        for engine in engines:
            engine.forget()  # not before the run has really ended
    except DCFLError as error:
        print(printable(f"{ENDED} {error.exit_code} {error}"), flush=True)
        raise  # for Flower the run has failed


def _keep_records(folder: Path, engines: Sequence[GridEngine]) -> None:
    for engine in engines:
        write_whole(folder / SITE_RECORDS, json.dumps(engine.site_records(), indent=1) + "\n")


def named_sites(data: DataSettings, roster: Roster) -> Dataset | None:
    """Pictures that are at the sites, with the names that the operator gave these."""
    if data.dataset != "remote" or not roster.names:
        return None
    return replace(load_dataset(data), site_names=roster.names)


def ask_sites(grid: Grid, roster: Roster, data: DataSettings) -> dict[str, Any]:
    """The statistics of each site, or why it has told none, by name."""
    messenger, run, classes = Messenger(grid), uuid4().hex, len(data.class_names)
    nodes = Nodes(messenger, run, roster, classes)
    found: dict[str, Any] = {
        roster.name(place): nodes.absence(place) for place in range(roster.count)
    }
    tasks = [(node, Task(run, 0, place).ticketed()) for place, node in nodes.online().items()]
    end = time.monotonic() + ANSWER_SECONDS
    for message, task, _ in messenger.send_tasks(ASKS_STATISTICS, tasks, ANSWER_SECONDS):
        answer = messenger.wait_for(message, end)
        try:
            if answer is None or isinstance(answer, LostReply):
                raise ProtocolError(answer.reason if answer else "it has not answered in time")
            told: Any = read_statistics(answer, task, classes, data.features)._asdict()
        except ProtocolError as error:
            told = str(error)
        found[roster.name(task.client)] = told
    return found
