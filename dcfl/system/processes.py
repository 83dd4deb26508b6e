"""Our processes: how they start, what they do with signals, and which one a lack of memory ends.

One process of a run decides how the run ends: the one that writes its checkpoints. `timeout`,
systemd and Slurm signal all processes of a run; workers ignore the signal and leave it to that one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from dcfl.errors import Interrupted

# The signals that ask a run to end; Windows has no SIGHUP.
ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
# Within so many seconds a second SIGTERM is the same request: `timeout` signals its child, and then
# the child's whole group.
ECHO = 0.5


def python(*arguments: str) -> list[str]:
    """The command that starts our Python. `-P`: a queue.py in the working folder must not shadow
    the standard library's."""
    return [sys.executable, "-P", *arguments]


def answer_of_a_fork(work: Callable[[], Any]) -> Any:
    """What `work` returns in a copy of this process, as JSON; None if the copy dies of it or cannot
    be made. This process stays as it was, whatever `work` does."""
    answers: list[Any] = []
    if hasattr(os, "fork"):
        forking(lambda: answers.append(_answer_of_a_child(work)))
    return answers[0] if answers else None


def forking(fork: Callable[[], object]) -> None:
    """Call what forks in a thread of its own. The child would inherit OpenMP's record of the
    threads that the forking thread leads, and wait for ever for threads that do not exist in it; a
    new thread leads none."""

    def quietly() -> None:
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads; the child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            fork()

    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()


def _answer_of_a_child(work: Callable[[], Any]) -> Any:
    answer, childs_end = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # if it dies, that is the answer and no news
        try:
            os.write(childs_end, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(childs_end)
    with os.fdopen(answer, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


# Signals ------------------------------------------------------------------------------------------


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP calls `stop`, which ends the run after its round; a
    second one ends it at once, except SIGHUP, which systemd sends together with SIGTERM."""
    asked: list[int] = []
    first = 0.0

    def heard(number: int, frame: object) -> None:
        nonlocal first
        if not asked:
            asked.append(number)
            first = time.monotonic()
            print("dcfl: stopping after this round; once more to stop at once", file=sys.stderr)
            stop()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number == signal.SIGTERM and time.monotonic() - first > ECHO:
            _terminated()

    with handlers_put_back():
        for number in ENDING:
            ignored = signal.getsignal(number) == signal.SIG_IGN
            if number != getattr(signal, "SIGHUP", None) or not ignored:  # nohup's wish
                signal.signal(number, heard)
        try:
            yield
        except Interrupted as interrupted:
            raise Interrupted(str(interrupted), 128 + asked[0] if asked else 130) from None


def stop_when_signalled(stop: Callable[[], None]) -> None:
    """In a process that ends after its round and reports that to its parent."""
    for number in ENDING:
        signal.signal(number, lambda *_: stop())


def end_when_terminated() -> None:
    signal.signal(signal.SIGTERM, lambda *_: _terminated())


def leave_signals_to_the_parent() -> None:
    """Ignore the signals, in a process that ends when its parent ends it or has gone."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Block these signals in this thread, and in whatever it starts meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handlers_put_back() -> Iterator[None]:
    """Restore the signal handlers, whatever libraries install meanwhile."""
    if threading.current_thread() is not threading.main_thread():  # only that one installs any
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python, which cannot restore it
                signal.signal(number, handler)


class Terminated(SystemExit):
    """An exit by signal. Unlike an exit in a user's method, it must not count as that client's
    failure."""


def _terminated() -> NoReturn:
    print("dcfl: terminated", file=sys.stderr)
    raise Terminated(143)


# Memory -------------------------------------------------------------------------------------------


def first_to_be_killed() -> None:
    """Ask Linux to end this process first when memory runs out: its work can be repeated."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
