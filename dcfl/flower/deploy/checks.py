"""Findings about a site's key and its way to the SuperLink. Read every minute in a container: it
imports little."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dcfl.errors import ConfigError
from dcfl.flower.deploy.keys import out_of_date
from dcfl.flower.roster import fingerprint_in, fingerprint_of
from dcfl.system.storage import PRIVATE_FILE, read_data
from dcfl.system.wording import printable


@dataclass(frozen=True)
class Finding:
    subject: str
    ok: bool
    text: str
    remedy: str = ""  # of a problem, or of what is fine and could be better

    @property
    def problem(self) -> str:
        return f"{self.subject}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def fine(subject: str, text: str, remedy: str = "") -> Finding:
    return Finding(subject, True, text, remedy)


def wrong(subject: str, text: str, remedy: str) -> Finding:
    return Finding(subject, False, text, remedy)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


KEY, AUTHORITY, NETWORK, TLS, REGISTERED = "key", "authority", "network", "TLS", "registered"
SECONDS = 10.0  # for one answer over the network
# A kit keeps its key in a form that Flower's own SuperNode, which checks no app, cannot read.
KEY_OF_A_KIT = b"-----BEGIN PRIVATE KEY-----"
_CURVES = ("secp256r1", "secp384r1", "secp521r1")  # that a .pub file can be of
_NOT_A_HEARTBEAT = 0.0  # refused by the SuperLink, but only after it has looked the key up
_KNOWN, _UNKNOWN = 2003, 2004  # Flower's codes: of that refusal, and of a key that is not known
# What a SuperLink logs, as an error, of a site that looked whether its key is known. A key that is
# not known has an error of its own there, beside the second of these lines.
HARMLESS = (
    rf"\[ApiError:{_KNOWN}\] .*Heartbeat interval {_NOT_A_HEARTBEAT} is out of bounds"
    r'|"POST /v1/fleet/activate-node [^"]*" 400'
)


def check_key(path: Path) -> Finding:
    """Check the site's private key."""
    shown = printable(path)
    remedy = "bring the site's key here again, or have a new one made (`dcfl flower kit --add`)"
    try:
        key = read_key(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        public = path.with_name(f"{path.name}.pub")
        same = not public.is_file() or fingerprint_in(public) == fingerprint_of(key.public_key())
    except ConfigError as error:
        return wrong(KEY, str(error), remedy)
    if os.name == "posix" and mode & 0o077:
        hint = f"chmod {PRIVATE_FILE:o} {shown}"
        return wrong(KEY, f"{shown}: others can read it (mode {mode:o})", hint)
    if not same:
        return wrong(KEY, f"{shown}: {printable(public.name)} is that of another key", remedy)
    return fine(KEY, f"{shown}, {fingerprint_of(key.public_key())}")


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Of a site: as keys.py writes it, or as a kit keeps it."""
    try:
        text = read_data(path)
        kit = text.startswith(KEY_OF_A_KIT)
        load = serialization.load_pem_private_key if kit else serialization.load_ssh_private_key
        key = load(text, None)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError):
        raise ConfigError(f"{path}: not a private key of a site") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _CURVES:
        raise ConfigError(f"{path}: not a private key of a site")
    return key


def check_authority(path: Path) -> Finding:
    """Check ca.crt, by which the site knows its SuperLink."""
    shown, remedy = printable(path), "bring ca.crt from the server's operator"
    try:
        certificate = x509.load_pem_x509_certificate(read_data(path))
    except OSError as error:
        return wrong(AUTHORITY, f"{shown}: cannot be read ({error.strerror})", remedy)
    except ValueError:
        return wrong(AUTHORITY, f"{shown}: not a certificate", remedy)
    if problem := out_of_date(certificate):
        return wrong(AUTHORITY, f"{shown}: {problem}", remedy)
    return fine(AUTHORITY, f"{shown}, valid until {certificate.not_valid_after_utc:%d %B %Y}")


def check_link(
    address: str, authority: Path | None = None, key: Path | None = None
) -> list[Finding]:
    """Check the way to the SuperLink at host:port. `authority`: None, without TLS."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), SECONDS) as connection:
            found = [fine(NETWORK, f"{address} answers")]
            found += [_check_tls(connection, host, authority)] if authority else []
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        remedy = "compare the address with the server's operator; is there a firewall between?"
        return [wrong(NETWORK, f"{address} does not answer ({printable(why)})", remedy)]
    if authority and key and found[-1].ok:
        found.append(_check_registered(address, authority, key))
    return found


def _check_tls(connection: socket.socket, host: str, authority: Path) -> Finding:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with context.wrap_socket(connection, server_hostname=host) as secured:
            certificate = secured.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        why = printable(error.verify_message)
        remedy = "is ca.crt that of this server, and its certificate made for this name (--hosts)?"
        return wrong(TLS, f"the certificate is not accepted: {why}", remedy)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        remedy = "is this the port of the SuperLink's TLS?"
        return wrong(TLS, f"no TLS there ({printable(str(error), 120)})", remedy)
    return fine(TLS, f"certificate valid until {printable(certificate.get('notAfter', '?'))}")


def _check_registered(address: str, authority: Path, key: Path) -> Finding:
    try:
        code = _activation_code(address, authority, key)
    except ConfigError as error:
        return wrong(REGISTERED, str(error), "mend the key first")
    except Exception as error:  # Flower's inner parts change from version to version
        return fine(REGISTERED, f"not looked at: {printable(type(error).__name__)}")
    if code == _KNOWN:
        return fine(REGISTERED, "the SuperLink knows this site's key")
    if code == _UNKNOWN:
        remedy = f"at the server: flwr supernode register {printable(key.name)}.pub"
        return wrong(REGISTERED, "the SuperLink does not know this site's key", remedy)
    return fine(REGISTERED, f"not looked at: Flower's answer {code}")


def _activation_code(address: str, authority: Path, key: Path) -> int:
    """Ask to be activated in a way that is always refused: for another reason if the key is known.
    Nothing changes at the SuperLink."""
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private = read_key(key)
    signer = NodeAuthHttpInterceptor(private, private.public_key())
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    request = ActivateNodeRequest(
        public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=_NOT_A_HEARTBEAT
    )
    client = FleetHttpClient.from_server_address(
        address, False, str(authority), interceptors=[version, signer]
    )
    with client:
        try:
            client.ActivateNode(request)
        except httpx.HTTPStatusError as error:
            return int(error.response.json()["code"])
    return 0
