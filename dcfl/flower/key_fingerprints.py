"""Sites are known by the fingerprints of their keys."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcfl.errors import ConfigError


def fingerprint_in(path: Path) -> str:
    """Of a site's public key (`<site>.pub`), as `ssh-keygen -lf` shows it."""
    try:
        return fingerprint_of(serialization.load_ssh_public_key(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path}: not a public key; give a site's .pub file") from None


def registered_fingerprint(pem: bytes) -> str:
    """Of a key as the SuperLink keeps it; empty if it is not a key: without node authentication
    nodes may send anything."""
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
