"""Which device each client has, and when it can be asked. All of it follows from the seed and the
client's number, and nothing is kept: memory does not grow with the population."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dcfl.errors import ConfigError
from dcfl.seeding import derived_seed
from dcfl.system.storage import MOST_BYTES, open_data
from dcfl.system.wording import one_line, printable

HOUR, DAY = 3600.0, 86400.0
NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)
MOST, LEAST_BANDWIDTH = 1e30, 1e-9  # beyond these, virtual times could be infinite


class Device(NamedTuple):
    seconds_per_sample: float  # of a step as FedAvg's: forward and backward
    up: float  # megabits a second
    down: float
    latency: float  # seconds that each message takes, however short
    memory: float  # megabytes

    def sending(self, bytes: int) -> float:
        return self.latency + bytes * 8e-6 / self.up

    def receiving(self, bytes: int) -> float:
        return self.latency + bytes * 8e-6 / self.down


class Devices(NamedTuple):
    """A mix: kinds with their shares, and how far devices of a kind lie apart; or, without shares,
    a list from which client k has number k, again from the first after the last."""

    kinds: Sequence[Device]
    shares: Sequence[float] = ()
    spread: float = 0.0  # deviation of the logarithm of speed and bandwidths

    def of(self, client: int, seed: int) -> Device:
        if not self.shares:
            return self.kinds[client % len(self.kinds)]
        rng = np.random.default_rng(derived_seed(seed, 0, client, "device"))
        drawn, (pace, up, down) = rng.random(), np.exp(self.spread * rng.standard_normal(3))
        sums = [*accumulate(self.shares)]
        kind = self.kinds[sum(drawn >= one for one in sums[:-1])]
        seconds = kind.seconds_per_sample * float(pace)
        bandwidths = {"up": kind.up * float(up), "down": kind.down * float(down)}
        return kind._replace(seconds_per_sample=seconds, **bandwidths)


# Orders of magnitude, for models as small as the built-in ones; docs/clock.md has them as a table.
MIXES: Mapping[str, Devices] = {
    "uniform": Devices([Device(0.002, 10, 50, 0.05, 4000)], [1.0]),
    "phones": Devices(
        [
            Device(0.002, 20, 80, 0.05, 6000),
            Device(0.008, 8, 30, 0.08, 3000),
            Device(0.03, 2, 8, 0.2, 1500),
        ],
        [0.2, 0.5, 0.3],
        0.4,
    ),
    "hospitals": Devices(
        [Device(0.0002, 200, 500, 0.02, 24000), Device(0.004, 50, 100, 0.03, 16000)],
        [0.4, 0.6],
        0.2,
    ),
}


@dataclass(frozen=True)
class Availability:
    """When clients can be asked. Client k follows list number k of windows, again from the first
    after the last; without lists, everybody always can."""

    windows: Sequence[Sequence[tuple[float, float]]] = ()  # beginning and end, in seconds
    period: float = inf  # after which the windows come again
    by_zone: bool = False  # a client draws its list by the seed, instead

    def until(self, client: int, now: float, seed: int) -> float | None:
        """The end of the window that the client is in; None if it cannot be asked now."""
        if not self.windows:
            return inf
        at = derived_seed(seed, 0, client, "time zone") if self.by_zone else client
        phase = now % self.period
        for begin, end in self.windows[at % len(self.windows)]:
            for moment in (phase, phase + self.period):  # a window may go on into the next period
                if begin <= moment < end:
                    return now + end - moment
        return None


AVAILABILITIES: Mapping[str, Availability] = {
    "always": Availability(),
    # From eight in the evening to eight in the morning, in 24 time zones.
    "day-night": Availability(
        [[(zone * HOUR, (zone + 12) * HOUR)] for zone in range(24)], DAY, by_zone=True
    ),
}


class ClockFile(NamedTuple):
    path: Path
    sha256: str
    rows: Sequence[Mapping[str, float]]


def read_clock_file(key: str, file: str, columns: Sequence[str]) -> ClockFile:
    """Numbers, none below 0, by the names of the columns; refuses anything else in one line."""
    path = Path(os.path.abspath(os.path.expanduser(file)))
    try:
        with open_data(path, MOST_BYTES) as stream:
            content = stream.read()
        lines = csv.DictReader(content.decode("utf-8-sig").splitlines(), strict=True)
        named = list(lines.fieldnames or ())
        if twice := {name for name in named if named.count(name) > 1}:
            raise ValueError(f"its first line names {', '.join(sorted(twice))} twice")
        if lacking := [name for name in columns if name not in named]:
            raise ValueError(
                f"its first line must name the columns {', '.join(columns)}; it "
                f"lacks {', '.join(lacking)}"
            )
        rows = [_numbers(line, number, columns) for number, line in enumerate(lines, start=2)]
        if not rows:
            raise ValueError("it has no line below the names of the columns")
    except OSError as error:
        raise ConfigError(f"{key}: {path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{key}: {printable(f'{path}: {one_line(error)}', 400)}") from error
    return ClockFile(path, hashlib.sha256(content).hexdigest(), rows)


def _numbers(line: Mapping[str, str], number: int, columns: Sequence[str]) -> dict[str, float]:
    if None in line:  # a decimal comma, say, moves every number after it
        raise ValueError(f"line {number}: it has more cells than the first line has names")
    found = {}
    for name in columns:
        text = (line[name] or "").strip()
        if not NUMBER.fullmatch(text) or float(text) > MOST:
            raise ValueError(
                f"line {number}: {name} must be a number from 0 to {MOST:g}, not {text!r}"
            )
        found[name] = float(text)
    return found


def devices_in(file: ClockFile) -> Devices:
    kinds = [Device(**row) for row in file.rows]
    for number, kind in enumerate(kinds, start=2):
        if min(kind.up, kind.down) < LEAST_BANDWIDTH:
            raise ConfigError(
                f"clock.devices: {file.path}: line {number}: up and down must be above 0, and at "
                f"least {LEAST_BANDWIDTH:g}"
            )
    return Devices(kinds)


def windows_in(file: ClockFile) -> Availability:
    """Windows by client; the trace begins again after its last end."""
    by_client: dict[float, list[tuple[float, float]]] = {}
    for number, row in enumerate(file.rows, start=2):
        if row["end"] <= row["start"]:
            raise ConfigError(
                f"clock.availability: {file.path}: line {number}: end must be after start"
            )
        by_client.setdefault(row["client"], []).append((row["start"], row["end"]))
    windows = [sorted(by_client[client]) for client in sorted(by_client)]
    return Availability(windows, max(row["end"] for row in file.rows))
