"""What runs beside a SuperLink: a whole run, with its clients at the SuperNodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dcfl import config
from dcfl.data import Dataset, load_dataset
from dcfl.data.settings import DataSettings, accuracy_words
from dcfl.engines.engine import Session
from dcfl.errors import DCFLError
from dcfl.flower.app_code import run_app_code
from dcfl.flower.engine import GridEngine
from dcfl.flower.roster import UNBOUND, Roster
from dcfl.runs.run import Run
from dcfl.system.wording import printable

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
        roster = Roster.from_text(str(context.run_config.get("sites", "")), experiment.data)
        if not roster.keys:
            print(UNBOUND, flush=True)
        dataset = named_sites(experiment.data, roster)
        if resume:
            run = Run.resume(Path(resume), dataset, connect=connect)
        else:
            run = Run(experiment, dataset, connect=connect)
        words = accuracy_words(run.experiment.data.holdout)
        for row in run.rounds():
            for notice in row.notices:
                print(printable(f"warning: {notice}"), flush=True)
            scored = "" if row.accuracy is None else f": {words} {row.accuracy:.2f} %"
            print(f"round {row.round}{scored}", flush=True)
        for engine in engines:
            engine.forget()  # not before the run has really ended
    except DCFLError as error:
        print(printable(f"{ENDED} {error.exit_code} {error}"), flush=True)
        raise  # for Flower the run has failed


def named_sites(data: DataSettings, roster: Roster) -> Dataset | None:
    """Pictures that are at the sites, with the names that the operator gave these."""
    if data.dataset != "remote" or not roster.names:
        return None
    return replace(load_dataset(data), site_names=roster.names)
