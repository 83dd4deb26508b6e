"""The sites of a run as the operator names them: how many there are, and with which keys."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcfl.errors import ConfigError, require
from dcfl.system.storage import read_data
from dcfl.system.wording import whole_number

if TYPE_CHECKING:
    from dcfl.data.settings import DataSettings  # it imports torch, which ./status needs not


def fingerprint_in(path: Path) -> str:
    """The fingerprint of a site's public key (`<site>.pub`), as `ssh-keygen -lf` shows it."""
    try:
        return fingerprint_of(serialization.load_ssh_public_key(read_data(path)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm, NotImplementedError):
        raise ConfigError(f"{path}: not a public key; give a site's .pub file") from None


def registered_fingerprint(pem: bytes) -> str:
    """The fingerprint of a key as the SuperLink keeps it; empty if it is not a key: without node
    authentication nodes may send anything."""
    try:
        return fingerprint_of(serialization.load_pem_public_key(pem))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ""


def fingerprint_of(key: object) -> str:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key of a SuperNode")
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = sha256(b64decode(line.split()[1])).digest()
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


UNBOUND = (
    "the sites are not bound to keys: whoever first claims a partition-id has its clients; "
    "`dcfl flower up --tls` binds them, and so do kits"
)
MOST_SITES = 10_000
NO_KEY = "-"  # instead of a fingerprint, in a roster's text


@dataclass(frozen=True)
class Roster:
    """The sites of a run, in the order of their partition ids."""

    count: int
    keys: tuple[str, ...] = ()  # fingerprints; none: first come, first served
    names: tuple[str, ...] = ()  # as the operator calls the sites; with keys, all have one

    def __post_init__(self) -> None:
        require(self.count >= 1, f"{self.count} sites: at least one is needed")
        require(self.count <= MOST_SITES, f"{self.count} sites: at most {MOST_SITES:,}")
        require(len({*self.keys}) == len(self.keys), "two sites have the same key")
        require(len(self.names) in (0, self.count), "some sites have a name, and some have none")

    @classmethod
    def of_keys(cls, files: Sequence[Path]) -> Roster:
        keys = tuple(fingerprint_in(file) for file in files)
        return cls(len(keys), keys, tuple("-".join(file.stem.split()) for file in files))

    def to_text(self) -> str:
        """The roster for the run config, whose values are texts."""
        rows = zip(self.keys or (NO_KEY,) * self.count, self.names, strict=False)
        return "\n".join(" ".join(row) for row in rows) or str(self.count)

    def require_fitting(self, data: DataSettings) -> None:
        """If the pictures are at the sites, each client is a site; how many there are may be left
        open."""
        require(
            data.dataset != "remote" or data.clients in ("auto", self.count),
            f"data.clients = {data.clients}, and there are {self.count} sites: "
            f'with data.dataset = "remote" each site is a client',
        )

    @classmethod
    def from_text(cls, text: str) -> Roster:
        count = whole_number(text)
        if count is not None:
            return cls(count)
        rows = [line.split() for line in text.splitlines()]
        keyless = all(row[:1] == [NO_KEY] for row in rows)
        bound = all(row[0].startswith("SHA256:") for row in rows if row)
        if not (keyless or bound) or any(len(row) != 2 for row in rows):
            raise ConfigError("sites: give a number, or a line with fingerprint and name for each")
        keys = () if keyless else tuple(row[0] for row in rows)
        return cls(len(rows), keys, tuple(row[1] for row in rows))

    def place_of(self, key: str) -> int | None:
        """The partition id of the site with this key."""
        return self.keys.index(key) if key in self.keys else None

    def name(self, place: int) -> str:
        return self.names[place] if self.names else f"site {place}"

    def title(self, place: int) -> str:
        return site_title(self.name(place))


def site_title(name: str) -> str:
    return name if name.startswith("site") else f"site {name}"
