"""A process that trains cells, one after the other, as its standard input asks.

Each line names a folder and a config; each answer is one line of JSON. When the input ends, or on
a signal, the current round is finished and a checkpoint written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dcfl.config import from_toml
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.errors import (
    NO_LONGER_FINITE,
    DCFLError,
    Interrupted,
    SettingsWarning,
    TooFewClients,
)
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from dcfl.studies.cells.cell_folders import FAILED
from dcfl.system.printable import print_warning, printable, printable_lines
from dcfl.system.processes import stop_when_signalled
from dcfl.system.storage import write_whole
from dcfl.system.streams import forgiving_streams

Jobs = SimpleQueue[str]


class Worker:
    def __init__(self) -> None:
        self.stopping = False
        self.run: Run | None = None
        self.loaded: tuple[DataSettings, Dataset] | None = None

    def stop(self) -> None:
        self.stopping = True
        if self.run is not None:
            self.run.stop()

    def train(self, folder: Path, config: str) -> dict[str, Any]:
        """Train one cell; returns the answer to send back."""
        try:
            if (folder / "config.toml").is_file() and RecordedRun.open(folder).finished:
                return {"state": "finished"}  # by another process, while it was waiting
            self.run = run = self._new_or_resumed(folder, config)
            if self.stopping:  # asked to before there was a run
                run.stop()
            for row in run.rounds():
                say({"round": row.round, "accuracy": row.accuracy})
            return {"state": "finished"}
        except Interrupted:
            return {"state": "stopped"}
        except TooFewClients as error:
            if NO_LONGER_FINITE in str(error):  # divergence is a result, the same every time
                write_whole(folder / FAILED, printable(error))
            return {"state": "failed", "why": str(error)}
        except DCFLError as error:
            return {"state": "failed", "why": str(error)}
        except Exception as error:
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
            return {"state": "failed", "why": f"{type(error).__name__}: {error}"}
        finally:
            self.run = None

    def _new_or_resumed(self, folder: Path, config: str) -> Run:
        experiment = from_toml(config).seeded
        dataset = self._dataset(experiment.data)
        begun = (folder / "config.toml").is_file()
        return Run.resume(folder, dataset) if begun else Run(experiment, dataset)

    def _dataset(self, settings: DataSettings) -> Dataset:
        """Keeps the last one: the next cell is likely to need it."""
        if self.loaded is None or self.loaded[0] != settings:
            self.loaded = (settings, load_dataset(settings))
        return self.loaded[1]


def say(answer: dict[str, Any]) -> None:
    """May go unheard if the parent is gone: the round still gets its checkpoint."""
    print(json.dumps(answer), flush=True)


def listen(worker: Worker, jobs: Jobs) -> None:
    # Not sys.stdin: processes forked by an engine close it first, and would wait for the lock that
    # this thread holds while it reads.
    with os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8") as lines:
        for line in lines:
            jobs.put(line)
    worker.stop()  # the parent is gone
    jobs.put("")


def received(jobs: Jobs) -> Iterator[dict[str, Any]]:
    while line := jobs.get():
        yield json.loads(line)


def main() -> None:
    warnings.showwarning = print_warning
    warnings.simplefilter("ignore", SettingsWarning)  # the settings are the recipe's own
    worker, jobs = Worker(), Jobs()
    stop_when_signalled(worker.stop)
    threading.Thread(target=listen, args=(worker, jobs), daemon=True).start()
    for job in received(jobs):
        say(worker.train(Path(job["folder"]), job["config"]))
        if worker.stopping:
            return


if __name__ == "__main__":
    with forgiving_streams():
        main()
