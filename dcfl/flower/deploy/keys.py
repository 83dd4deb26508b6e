"""Certificates for a SuperLink and a key pair for each site, without an openssl binary.

Private files are 0600 from the moment they exist; nothing that exists is ever written over.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dcfl.errors import ConfigError, require
from dcfl.system.storage import PRIVATE_FILE, PUBLIC_FILE, private_folder, storage

LOCAL_HOSTS = ("localhost", "127.0.0.1")
_SITE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DNS = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_RESERVED = {"ca", "server"}
_CURVE = ec.SECP384R1
_REMAKE = "move server.pem and server.key away to have them made again"
_REMEDIES = {
    "ca.crt": "make all keys anew with `dcfl flower kit` and another folder as --keys",
    "server.pem": _REMAKE,
}


def make_keys(
    folder: Path,
    sites: Sequence[str],
    hosts: Sequence[str] = LOCAL_HOSTS,
    days: int = 365,
    none_missing: bool = False,
) -> None:
    """Make what is missing of ca.crt, server.pem for `hosts`, and `<site>`, `<site>.pub`.
    `none_missing`: that may be nothing."""
    require(1 <= days <= 36500, f"keys for {days} days: give 1 to 36500")
    check_sites(sites)
    require(bool(hosts), "a server certificate needs at least one host")
    names = [_alternative_name(host) for host in hosts]
    with storage(folder):
        if folder.exists() and any(folder.iterdir()) and not (folder / "ca.crt").exists():
            raise ConfigError(f"{folder}: not empty; give keys a folder of their own")
        private_folder(folder)
        pairs = [_pair(folder, "ca.key", "ca.crt"), _pair(folder, "server.key", "server.pem")]
        missing = [site for site in sites if not _pair(folder, site, f"{site}.pub")]
        for name, there in zip(_REMEDIES, pairs, strict=True):
            problem = out_of_date(_certificate(folder / name)) if there else ""
            require(not problem, f"{folder / name} {problem}: {_REMEDIES[name]}")
        if all(pairs) and not missing and not none_missing:
            raise ConfigError(f"{folder}: these keys exist already, and are never written over")
        if not pairs[0]:
            require(not pairs[1], f"{folder}: server.pem without its ca.crt: move it away first")
            _make_authority(folder, days)
        if not pairs[1]:
            _make_server(folder, names, days)
        else:
            _check_hosts(folder, hosts)
        for site in missing:
            _make_site(folder, site)


def valid_until(folder: Path) -> datetime:
    """When the first of the certificates expires."""
    return min(_certificate(folder / name).not_valid_after_utc for name in _REMEDIES)


def out_of_date(certificate: x509.Certificate) -> str:
    """Why it is of no use today; empty if it is."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < datetime.now(UTC):
        return f"has expired on {end:%d %B %Y}"
    early = start > datetime.now(UTC)
    return f"is not valid before {start:%d %B %Y}, by this machine's clock" if early else ""


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path}: not a certificate") from None


def check_sites(sites: Sequence[str]) -> None:
    for site in sites:
        require(
            _SITE.fullmatch(site) is not None,
            f"site {site!r}: a name has up to 100 letters, digits, dots, dashes and underscores",
        )
        reserved = site.lower().split(".")[0] in _RESERVED or site.endswith(".pub")
        require(not reserved, f"site {site}: this name is kept for other files; take another")
    # On some disks North and north are one file.
    require(len({site.lower() for site in sites}) == len(sites), "two sites have the same name")


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        require(_DNS.fullmatch(host) is not None, f"host {host!r}: give a name or an IP address")
        return x509.DNSName(host)


def _pair(folder: Path, private: str, public: str) -> bool:
    """Is the pair there? Half a pair is neither used nor written over."""
    exist = [(folder / name).exists() for name in (private, public)]
    if any(exist) and not all(exist):
        have, lack = (private, public) if exist[0] else (public, private)
        raise ConfigError(f"{folder}: {have} without {lack}: bring it back or move {have} away")
    return all(exist)


def _write(path: Path, content: bytes, mode: int) -> None:
    binary = getattr(os, "O_BINARY", 0)  # Windows would change line ends
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | binary, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_private(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    _write(path, private_text(key, form), PRIVATE_FILE)


def private_text(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC_FILE)


def _make_site(folder: Path, site: str) -> None:
    key = ec.generate_private_key(_CURVE())
    write_private(folder / site, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(folder / f"{site}.pub", public + f" {site}\n".encode(), PUBLIC_FILE)


def _make_authority(folder: Path, days: int) -> None:
    key = ec.generate_private_key(_CURVE())
    name = _name("dcfl trial CA")
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", key, serialization.PrivateFormat.PKCS8)
    _write_certificate(folder / "ca.crt", certificate)


def _make_server(folder: Path, names: Sequence[x509.GeneralName], days: int) -> None:
    authority, signer = _read_authority(folder)
    key = ec.generate_private_key(_CURVE())
    certificate = (
        _builder(_name("dcfl SuperLink"), authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA384())
    )
    write_private(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    _write_certificate(folder / "server.pem", certificate)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # the sites' clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(identifier, critical=False)
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{folder}: ca.crt or ca.key cannot be read ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{folder}: ca.key is not one that this command made")
    return certificate, key


def _check_hosts(folder: Path, hosts: Sequence[str]) -> None:
    """A server certificate that exists must be for the hosts that were asked for."""
    if tuple(hosts) == LOCAL_HOSTS:
        return  # only the default: a site is added
    certificate = _certificate(folder / "server.pem")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # it names none, or says something else there
        names = x509.SubjectAlternativeName([])
    absent = [host for host in hosts if _alternative_name(host) not in names]
    if absent:
        raise ConfigError(
            f"{folder}: server.pem exists and is not for {', '.join(absent)}: {_REMAKE}"
        )
