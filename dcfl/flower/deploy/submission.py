"""A run on a SuperLink as seen from outside: submitted, followed, stopped."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from dcfl.config import as_tables, to_toml
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, RemoteRunFailed
from dcfl.experiment import Experiment
from dcfl.flower.app_code import APP_FILES, declared_text
from dcfl.flower.deploy import superlink
from dcfl.flower.deploy.daemons import read_record
from dcfl.flower.deploy.server_app import ENDED
from dcfl.flower.deploy.superlink import Connection
from dcfl.flower.roster import Roster, site_title
from dcfl.flower.site_failures import failures_in
from dcfl.methods import METHODS
from dcfl.models.warm_start import weights_path
from dcfl.runs.folder import (
    METHOD_COPY,
    MODEL_COPY,
    RecordedRun,
    folder_for,
    own_files,
    require_unused,
)
from dcfl.runs.rows import RoundRow
from dcfl.system.own_files import OwnFile
from dcfl.system.storage import write_whole

# No dependencies: dcfl and torch are installed at each site beforehand, never by a run.
_PYPROJECT = """\
[project]
name = "dcfl-app"
version = "{version}"
description = "Runs a dcfl experiment with the dcfl that is installed at each site"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "dcfl"

[tool.flwr.app.components]
serverapp = "dcfl.flower.deploy.server_app:app"
clientapp = "dcfl.flower.client_app:app"

# A whole config file as one text, because Flower accepts only keys that stand here; or the folder
# of a run to resume. And the sites: how many SuperNodes there are, or a line for each with the
# fingerprint of its key and its name. And the hashes of the user's own files in this folder, and
# what is asked of the sites, if it is not a training.
[tool.flwr.app.config]
experiment = ""
resume = ""
sites = ""
code = ""
asks = ""
"""


def experiment_text(experiment: Experiment) -> str:
    """The experiment as Flower sends it to the sites."""
    text = to_toml(as_tables(experiment))
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ConfigError("Flower carries valid Unicode only: rename the paths of the config")
    return text


def app_code(experiment: Experiment) -> dict[str, OwnFile]:
    """The user's own files that the experiment needs: its method's, its network's."""
    files, names = own_files(experiment), {"method": METHOD_COPY, "model": MODEL_COPY}
    return {kind: files[name] for kind, name in names.items() if name in files}


def code_text(files: Mapping[str, OwnFile]) -> str:
    """The hashes of the files, for the run's config."""
    return declared_text({kind: file.sha256 for kind, file in files.items()})


def write_bundle(folder: Path, files: Mapping[str, OwnFile] | None = None) -> Path:
    """Write the app into a new folder. `files`: from `app_code`."""
    folder.mkdir(parents=True)
    write_whole(folder / "pyproject.toml", _PYPROJECT.format(version=version("dcfl")))
    for kind, file in (files or {}).items():
        (folder / APP_FILES[kind]).write_bytes(file.source)
    return folder


class SiteLogs:
    """The logs of the sites that `dcfl flower up` started, from now on."""

    def __init__(self, home: Path) -> None:
        home = home.resolve()
        self._logs = {
            node.name: home / "logs" / f"{node.name}.log" for node in read_record(home).nodes
        }
        self._read = {name: len(_after(path, 0)) for name, path in self._logs.items()}
        self._told: set[tuple[str, str]] = set()

    def news(self) -> list[str]:
        """A line for each failure that is new, with the site, the cause and the log."""
        lines = []
        for name, path in self._logs.items():
            new = _after(path, self._read[name])
            whole = new[: new.rfind(b"\n") + 1]  # the last line may still grow
            self._read[name] += len(whole)
            for failure in failures_in(whole.decode("utf-8", "replace")):
                if (name, failure.reason) not in self._told:
                    self._told.add((name, failure.reason))
                    lines.append(f"{site_title(name)}: {failure.advice}; log {path}")
        return lines


def _after(path: Path, position: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as log:
        log.seek(position)
        return log.read()


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
    weights = experiment.model.weights
    return replace(
        experiment,
        data=_absolute(experiment.data),
        model=replace(experiment.model, weights=weights and str(weights_path(weights))),
        output=replace(experiment.output, dir=str(folder)),
    )


def _absolute(data: DataSettings) -> DataSettings:
    kind, colon, where = data.dataset.partition(":")
    dataset = f"{kind}:{Path(os.path.expanduser(where)).resolve()}" if colon else data.dataset
    return replace(data.with_own_split(), dataset=dataset, path=str(Path(data.path).resolve()))


@dataclass(frozen=True)
class Submitted:
    link: Connection
    run: int  # Flower's number
    folder: Path

    def rows(self) -> Iterator[RoundRow | None]:
        """The rows of rounds.jsonl as they come, until the run has ended; RemoteRunFailed if it
        failed. None now and then, when there is none."""
        seen, asked, status = len(RecordedRun(self.folder).rounds), time.monotonic(), ""
        while not status.startswith("finished"):
            time.sleep(ROWS_SECONDS)
            ended = (self.folder / "summary.json").is_file()
            if ended or time.monotonic() > asked + STATUS_SECONDS:
                status = superlink.run_status(self.link, self.run)
                asked = time.monotonic()
                yield None
            rows = RecordedRun(self.folder).rounds
            yield from rows[seen:]
            seen = len(rows)
        if status != "finished:completed":
            raise self.failure(status)

    def failure(self, status: str) -> RemoteRunFailed:
        # A line of its own: a site's reason, in a warning, may say the same.
        endings = re.findall(rf"(?m)^{ENDED} (\d+) (.*)", superlink.log(self.link, self.run))
        if endings:
            code, reason = endings[-1]
            return RemoteRunFailed(reason, int(code))
        how = status.removeprefix("finished:")
        hint = f"`flwr log {self.run}` shows why"
        return RemoteRunFailed(f"run {self.run} ended at the SuperLink: {how}; {hint}")

    def stop(self) -> None:
        superlink.stop(self.link, self.run)


def submit(
    link: Connection,
    experiment: Experiment,
    sites: Roster,
    resume: bool = False,
    asks: str = "",
) -> Submitted:
    """`experiment`: from `for_superlink`, or from the folder of a run to `resume`. `asks`:
    for something else than a training."""
    sites.require_fitting(experiment.data)
    if experiment.data.dataset == "remote":
        data = replace(experiment.data, clients=sites.count)
        experiment = replace(experiment, data=data)
    files = app_code(experiment)
    config = {
        "experiment": experiment_text(experiment),
        "resume": experiment.output.dir if resume else "",
        "sites": sites.to_text(),
        "code": code_text(files),
        "asks": asks,
    }
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "app", files)
        run = superlink.submit(link, bundle, config)
    return Submitted(link, run, Path(experiment.output.dir))
