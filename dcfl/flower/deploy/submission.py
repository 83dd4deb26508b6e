"""A run on a SuperLink as seen from outside: submitted, followed, stopped."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, RemoteRunFailed
from dcfl.experiment import Experiment
from dcfl.flower.deploy import superlink
from dcfl.flower.deploy.bundle import app_code, code_text, experiment_text, write_bundle
from dcfl.flower.deploy.server_app import ENDED
from dcfl.flower.deploy.superlink import Connection
from dcfl.flower.roster import Roster
from dcfl.methods import METHODS
from dcfl.models.warm_start import weights_path
from dcfl.runs.folder import RecordedRun, folder_for, require_unused
from dcfl.runs.rows import RoundRow

ROWS_SECONDS = 0.5  # between two looks at the rows
STATUS_SECONDS = 5.0  # between two questions to the SuperLink, each of which starts a process


def for_superlink(experiment: Experiment) -> Experiment:
    """With absolute paths: the SuperLink's processes have another working folder."""
    if METHODS.get(experiment.method.name) is not type(experiment.method):
        raise ConfigError(
            f"{experiment.method.name}: SuperNodes know the methods of dcfl, and those of a file "
            f"that is sent to them with --method-file"
        )
    folder = folder_for(experiment, experiment.data.dataset).resolve()
    require_unused(folder)
    return replace(
        experiment,
        data=_absolute(experiment.data),
        model=replace(experiment.model, weights=_absolute_weights(experiment.model.weights)),
        output=replace(experiment.output, dir=str(folder)),
    )


def _absolute(data: DataSettings) -> DataSettings:
    kind, colon, where = data.dataset.partition(":")
    dataset = f"{kind}:{Path(os.path.expanduser(where)).resolve()}" if colon else data.dataset
    return replace(data.with_own_split(), dataset=dataset, path=str(Path(data.path).resolve()))


def _absolute_weights(weights: str) -> str:
    return weights and str(weights_path(weights))


@dataclass(frozen=True)
class Submitted:
    link: Connection
    run: int  # Flower's number
    folder: Path  # on the SuperLink's machine, which may be this one

    def rows(self) -> Iterator[RoundRow]:
        """The rows of rounds.jsonl as they come, until the run has ended; RemoteRunFailed if it
        failed. A SuperLink elsewhere yields none: its rows are on its own disk."""
        seen, asked, status = len(RecordedRun(self.folder).rounds), time.monotonic(), ""
        while not status.startswith("finished"):
            time.sleep(ROWS_SECONDS)
            ended = (self.folder / "summary.json").is_file()
            if ended or time.monotonic() > asked + STATUS_SECONDS:
                status = superlink.run_status(self.link, self.run)
                asked = time.monotonic()
            rows = RecordedRun(self.folder).rounds
            yield from rows[seen:]
            seen = len(rows)
        if status != "finished:completed":
            raise self._failure(status)

    def _failure(self, status: str) -> RemoteRunFailed:
        endings = re.findall(rf"{ENDED} (\d+) (.*)", superlink.log(self.link, self.run))
        if endings:
            code, reason = endings[-1]
            return RemoteRunFailed(reason, int(code))
        how = status.removeprefix("finished:")
        hint = f"`flwr log {self.run}` shows why"
        return RemoteRunFailed(f"run {self.run} ended at the SuperLink: {how}; {hint}")

    def stop(self) -> None:
        superlink.stop(self.link, self.run)


def submit(
    link: Connection, experiment: Experiment, sites: str = "", resume: bool = False
) -> Submitted:
    """`experiment`: from `for_superlink`, or from the folder of a run to `resume`. `sites`: a
    roster's text."""
    roster = Roster.from_text(sites, experiment.data)  # better refused here than at the SuperLink
    if experiment.data.dataset == "remote":
        data = replace(experiment.data, clients=roster.count)
        experiment = replace(experiment, data=data)
    files = app_code(experiment)
    config = {
        "experiment": experiment_text(experiment),
        "resume": experiment.output.dir if resume else "",
        "sites": sites,
        "code": code_text(files),
    }
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "app", files=files)
        run = superlink.submit(link, bundle, config)
    return Submitted(link, run, Path(experiment.output.dir))
