"""The [clock] table of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from dcfl.clock.devices import (
    AVAILABILITIES,
    MIXES,
    Availability,
    ClockFile,
    Device,
    Devices,
    devices_in,
    read_clock_file,
    windows_in,
)
from dcfl.errors import ConfigError
from dcfl.settings import Settings, key
from dcfl.system.wording import nearest


@dataclass(frozen=True)
class ClockSettings(Settings):
    """The [clock] table: virtual time. Off unless `devices` is set."""

    table_name: ClassVar = "clock"

    # How quick the clients' devices are: "uniform", "phones" or "hospitals", or "file:PATH", a .csv
    # file; "none": there is no clock.
    devices: str = "none"
    # When clients can be asked: "always", "day-night" (at night, in 24 time zones), or "file:PATH",
    # a .csv file.
    availability: str = "always"
    drop_out: float = key(0.0, ge=0, lt=1)  # share of visits that break off before their reply
    # "rounds": the server waits for a round's clients. "fedbuff", "fedasync": for the next replies,
    # whenever they began, with federation.participation of the clients at work at any time.
    mode: Literal["rounds", "fedbuff", "fedasync"] = "rounds"
    # Of a round, in virtual seconds; 0: no limit.
    deadline: float = key(0.0, ge=0, zero="none")
    # What becomes of replies after it: "keep" lets them count in the round they arrive in.
    late: Literal["drop", "keep"] = "drop"
    # Ask so many times the clients of a round, and take the first to reply.
    over_selection: float = key(1.0, ge=1, le=10)
    buffer: int = key(10, ge=1)  # replies that "fedbuff" waits for
    mixing: float = key(0.6, gt=0, le=1)  # alpha of "fedasync": the weight of a new reply
    # Exponent a: a reply that is tau steps old counts (1 + tau)^-a of a new one; 0: as much.
    staleness: float = key(0.5, ge=0, le=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        known: dict[str, Mapping[str, Any]] = {
            "devices": {"none": None, **MIXES},
            "availability": AVAILABILITIES,
        }
        for name, values in known.items():
            value = getattr(self, name)
            if value not in values and not value.startswith("file:"):
                raise ConfigError(
                    f"clock.{name}: no {name} {value!r}{nearest(value, [*values, 'file:PATH'])}"
                )
        changed = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        if changed and not self.active:
            raise ConfigError(
                f"clock.{changed[0]} needs to know how quick clients are: set clock.devices, "
                f'such as "phones"'
            )
        if self.asynchronous and (self.deadline or self.over_selection > 1):
            raise ConfigError(
                f"clock.deadline and clock.over_selection are of rounds, and clock.mode = "
                f'"{self.mode}" has none'
            )
        if self.late == "keep" and not (self.deadline or self.over_selection > 1):
            raise ConfigError(
                'clock.late = "keep": nobody is late without clock.deadline or clock.over_selection'
            )

    @property
    def active(self) -> bool:
        return self.devices != "none"

    @property
    def asynchronous(self) -> bool:
        return self.mode != "rounds"

    @property
    def takes_stale(self) -> bool:
        """Whether replies count that began from an older model."""
        return self.asynchronous or self.late == "keep"

    @property
    def asks_others(self) -> bool:
        """Whether other clients are asked than without a clock."""
        others = self.over_selection > 1 or self.availability != "always"
        return self.takes_stale or others

    def replies(self, cohort: int) -> int:
        return {"rounds": cohort, "fedbuff": self.buffer, "fedasync": 1}[self.mode]

    @property
    def words(self) -> str:
        how = {"fedbuff": f", FedBuff of {self.buffer}", "fedasync": ", FedAsync"}
        return (
            f"{self.devices}, {self.availability}{how.get(self.mode, '')}"
            + (f", {100 * self.drop_out:g} % drop out" if self.drop_out else "")
            + (f", deadline {self.deadline:g} s, late: {self.late}" if self.deadline else "")
            + (f", {self.over_selection:g} times asked" if self.over_selection > 1 else "")
        )

    @cached_property
    def files(self) -> Mapping[str, ClockFile]:
        """The user's own, by key. Read once, because they may be edited meanwhile."""
        columns = {"devices": Device._fields, "availability": ("client", "start", "end")}
        return {
            name: read_clock_file(f"clock.{name}", getattr(self, name)[5:], columns[name])
            for name in columns
            if getattr(self, name).startswith("file:")
        }

    def with_whole_paths(self) -> ClockSettings:
        paths: dict[str, Any] = {name: f"file:{one.path}" for name, one in self.files.items()}
        whole = replace(self, **paths)
        vars(whole)["files"] = self.files
        if self.active:  # refuses what the files must not say, before anything is written
            whole.device_mix()
            whole.availabilities()
        return whole

    def device_mix(self) -> Devices:
        file = self.files.get("devices")
        return devices_in(file) if file else MIXES[self.devices]

    def availabilities(self) -> Availability:
        file = self.files.get("availability")
        return windows_in(file) if file else AVAILABILITIES[self.availability]
