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
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dcfl.comparisons.progress import AfterRound
from dcfl.comparisons.trainer import SentFile, Trainer, register_sent
from dcfl.config import from_toml
from dcfl.errors import DCFLError, Interrupted, SettingsWarning
from dcfl.system.processes import stop_when_signalled
from dcfl.system.streams import forgiving_streams
from dcfl.system.wording import print_warning, printable_lines

Answer = dict[str, Any]
Jobs = SimpleQueue[Answer]


def answers(
    trainer: Trainer, folder: Path, config: str, own: Sequence[SentFile] = ()
) -> Iterator[Answer]:
    """Train one cell. `own`: the user's files that it needs."""
    try:
        register_sent(own)
        for row in trainer.rounds(folder, from_toml(config)):
            yield asdict(AfterRound.of(row))
        yield {"state": "finished"}
    except Interrupted:
        yield {"state": "pruned" if trainer.pruned(folder) else "stopped"}
    except DCFLError as error:
        yield {"state": "failed", "why": str(error), "kind": type(error).__name__}
    except Exception as error:
        print(printable_lines(traceback.format_exc()), file=sys.stderr)
        yield {"state": "failed", "why": f"{type(error).__name__}: {error}"}


def say(answer: Answer) -> None:
    """May go unheard if the parent is gone: the round still gets its checkpoint."""
    print(json.dumps(answer), flush=True)


def listen(trainer: Trainer, jobs: Jobs) -> None:
    # Not sys.stdin: processes forked by an engine close it first, and would wait for the lock that
    # this thread holds while it reads.
    with os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8") as lines:
        for line in lines:
            job = json.loads(line)
            if "prune" in job:
                trainer.prune(Path(job["prune"]))
            else:
                jobs.put(job)
    trainer.stop()  # the parent is gone
    jobs.put({})


def received(jobs: Jobs) -> Iterator[Answer]:
    while job := jobs.get():
        yield job


def main() -> None:
    warnings.showwarning = print_warning
    warnings.simplefilter("ignore", SettingsWarning)  # whoever planned the cells has been warned
    trainer, jobs = Trainer(), Jobs()
    stop_when_signalled(trainer.stop)
    threading.Thread(target=listen, args=(trainer, jobs), daemon=True).start()
    for job in received(jobs):
        own = [SentFile(*sent) for sent in job["own"]]
        for answer in answers(trainer, Path(job["folder"]), job["config"], own):
            say(answer)
        if trainer.stopping:
            return


if __name__ == "__main__":
    with forgiving_streams():
        main()
