"""Processes of ours: how they are started, which signals they hear, which of them memory costs.

One process of a run decides how it ends: the one that writes its checkpoints. `timeout`, systemd
and Slurm send their signals to all of its processes; workers leave them to that one.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from dcfl.errors import Interrupted

# By which a run is asked to end; SIGHUP is not known everywhere.
ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
# Seconds in which a second SIGTERM is the first one again: `timeout` sends one to its child and
# one to the group that the child is in.
ECHO = 0.5


def python(*words: str) -> list[str]:
    """To start our Python with. `-P`: a queue.py in the working folder is not the library's."""
    return [sys.executable, "-P", *words]


# Signals ------------------------------------------------------------------------------------------


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP ask for an end after the round; the second time they end at once,
    but for SIGHUP, which systemd sends together with SIGTERM."""
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
            if number != getattr(signal, "SIGHUP", None) or not _ignored(number):  # nohup's wish
                signal.signal(number, heard)
        try:
            yield
        except Interrupted as interrupted:
            raise Interrupted(str(interrupted), 128 + asked[0] if asked else 130) from None


def stop_when_signalled(stop: Callable[[], None]) -> None:
    """In a process that ends after its round, and says so to the one that started it."""
    for number in ENDING:
        signal.signal(number, lambda *_: stop())


def end_when_terminated() -> None:
    signal.signal(signal.SIGTERM, lambda *_: _terminated())


def leave_signals_to_the_parent() -> None:
    """In a process that ends when its parent does, or says so."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """What is started meanwhile begins with these signals blocked, and this thread does not hear
    them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def handlers_put_back() -> Iterator[None]:
    """Whatever others make of signals meanwhile."""
    if threading.current_thread() is not threading.main_thread():  # then nobody makes anything
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # it was not Python's, which cannot put it back
                signal.signal(number, handler)


class Terminated(SystemExit):
    """By a signal, unlike an exit that a method of the user's makes: nobody may hold it up."""


def _terminated() -> NoReturn:
    print("dcfl: terminated", file=sys.stderr)
    raise Terminated(143)


# Memory -------------------------------------------------------------------------------------------


def first_to_be_killed() -> None:
    """When memory runs out, Linux is to end this process before any other: what it does can be done
    again."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
