"""The sites of a run as the operator names them: how many there are, and with which keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, require
from dcfl.flower.key_fingerprints import fingerprint_in

UNBOUND = (
    "the sites are not bound to keys: whoever first claims a partition-id has its clients; "
    "`dcfl flower run --sites KEY.pub,...` binds them"
)


@dataclass(frozen=True)
class Roster:
    """The sites of a run, in the order of their partition ids."""

    count: int
    keys: tuple[str, ...] = ()  # fingerprints; none: first come, first served
    names: tuple[str, ...] = ()  # as the operator calls the keys

    def __post_init__(self) -> None:
        require(self.count >= 1, f"{self.count} sites: at least one is needed")
        require(len({*self.keys}) == len(self.keys), "two sites have the same key")

    @classmethod
    def from_option(cls, sites: str) -> Roster:
        """From `--sites`: a number, or the files of the sites' public keys with commas."""
        if sites.strip().isdecimal():
            return cls(int(sites))
        return cls.of_keys([Path(os.path.expanduser(file.strip())) for file in sites.split(",")])

    @classmethod
    def of_keys(cls, files: Sequence[Path]) -> Roster:
        keys = tuple(fingerprint_in(file) for file in files)
        return cls(len(keys), keys, tuple("-".join(file.stem.split()) for file in files))

    def to_text(self) -> str:
        """For the run config, whose values are texts."""
        rows = zip(self.keys, self.names, strict=True)
        return "\n".join(" ".join(row) for row in rows) or str(self.count)

    @classmethod
    def from_text(cls, text: str, data: DataSettings) -> Roster:
        """`data`: if the pictures are at the sites, each client is a site."""
        remote = data.dataset == "remote"
        if not text and not remote:
            raise ConfigError(
                f"how many SuperNodes hold the {data.population} clients? Say it with --sites N, "
                f"or give their public keys: --sites A.pub,B.pub (in a run config: sites)"
            )
        roster = cls._parsed(text) if text else cls(data.population)
        require(
            not remote or roster.count == data.population,
            f"data.clients = {data.population}, and there are {roster.count} sites: "
            f'with data.dataset = "remote" each site is a client',
        )
        return roster

    @classmethod
    def _parsed(cls, text: str) -> Roster:
        if text.isdecimal():
            return cls(int(text))
        rows = [line.split() for line in text.splitlines()]
        if not all(len(row) == 2 and row[0].startswith("SHA256:") for row in rows):
            raise ConfigError("sites: give a number, or a line with fingerprint and name for each")
        return cls(len(rows), tuple(row[0] for row in rows), tuple(row[1] for row in rows))

    def place_of(self, key: str) -> int | None:
        """The partition id of the site with this key."""
        return self.keys.index(key) if key in self.keys else None

    def title(self, place: int) -> str:
        return f"site {place}" + (f" ({self.names[place]})" if self.names else "")
