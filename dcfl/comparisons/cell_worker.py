"""A process that trains cells, one after the other, as its standard input asks.

Each line names a folder and a config, or a folder whose cell is to end early; each answer is one
line of JSON. When the input ends, or on a signal, the current round is finished and a checkpoint
written.
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

from dcfl.comparisons.cells import CellFolder, PlainCell
from dcfl.comparisons.crew import News, SentFile, Trainer, register_sent, scored_on
from dcfl.config import from_toml
from dcfl.errors import DCFLError, SettingsWarning
from dcfl.experiment import Experiment
from dcfl.system.processes import stop_when_signalled
from dcfl.system.streams import forgiving_streams
from dcfl.system.wording import print_warning, printable_lines

Job = dict[str, Any]  # empty: there are no more


def trained(trainer: Trainer, job: Job) -> Iterator[News]:
    path = Path(job["folder"])
    cell_folder = CellFolder(PlainCell(path.name, Experiment()), path)
    try:
        register_sent([SentFile(*sent) for sent in job["own"]])
        experiment = from_toml(job["config"])
        if job["warned"]:  # by another process
            trainer.warned_of.add(scored_on(experiment))
        cell_folder = CellFolder(PlainCell(path.name, experiment), path, experiment.output.report)
        yield from trainer.train(cell_folder)
    except Exception as error:
        if not isinstance(error, DCFLError):
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
        yield News.failure(cell_folder, error)


def say(news: News) -> None:
    """Nobody hears it if the parent is gone: the round still gets its checkpoint."""
    ending = {"state": news.state, "why": news.why, "kind": news.kind}
    print(json.dumps(news.row.to_json() if news.row else ending), flush=True)


def listen(trainer: Trainer, jobs: SimpleQueue[Job]) -> None:
    # Not sys.stdin: processes forked by an engine close it first, and would wait for the lock that
    # this thread holds while it reads.
    with os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8") as lines:
        for line in lines:
            jobs.put(json.loads(line))
    trainer.stop()  # the parent is gone
    jobs.put({})


def main() -> None:
    warnings.showwarning = print_warning
    warnings.simplefilter("ignore", SettingsWarning)  # whoever planned the cells has been warned
    trainer, jobs = Trainer(), SimpleQueue[Job]()
    stop_when_signalled(trainer.stop)
    threading.Thread(target=listen, args=(trainer, jobs), daemon=True).start()
    while job := jobs.get():
        for news in trained(trainer, job):
            say(news)
        if trainer.stopping:
            return


if __name__ == "__main__":
    with forgiving_streams():
        main()
