from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from dcfl.errors import ConfigError
from dcfl.flower.deploy.keys import make_keys

PRIVATE = ["ca.key", "server.key", "north", "south"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", ["north", "south"])
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def shake_hands(folder: Path, authority: Path, host: str) -> None:
    """A TLS handshake in memory, with all the checks that a client makes."""
    client_context = ssl.create_default_context(cafile=authority)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "server.pem", folder / "server.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(back, there, server_hostname=host)
    server = server_context.wrap_bio(there, back, server_side=True)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass


def test_private_files_are_for_the_owner_alone(folder: Path) -> None:
    assert mode(folder) == 0o700
    assert {name: mode(folder / name) for name in PRIVATE} == dict.fromkeys(PRIVATE, 0o600)


def test_private_files_never_exist_with_a_wider_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    real_open = os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        made[Path(path).name] = (os.fstat(descriptor).st_mode & 0o777, flags)
        return descriptor

    monkeypatch.setattr("dcfl.flower.deploy.keys.os.open", watched)
    umask = os.umask(0)
    try:
        make_keys(tmp_path / "keys", ["north", "south"])
    finally:
        os.umask(umask)
    assert {made[name][0] for name in PRIVATE} == {0o600}
    assert all(flags & os.O_EXCL for _, flags in made.values())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_accepts_the_server(folder: Path, host: str) -> None:
    shake_hands(folder, folder / "ca.crt", host)


def test_another_host_is_refused(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(folder, folder / "ca.crt", "elsewhere.example")


def test_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["north"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, tmp_path / "other" / "ca.crt", "localhost")


def test_hosts_are_names_and_addresses(tmp_path: Path) -> None:
    make_keys(tmp_path, ["north"], hosts=["fl.example.org", "10.0.0.7", "::1"], days=3)
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3


def test_node_keys_are_pairs_on_the_curve_that_flower_takes(folder: Path) -> None:
    private = load_ssh_private_key((folder / "north").read_bytes(), None)
    public = load_ssh_public_key((folder / "north.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key().public_numbers() == public.public_numbers()


def test_nothing_is_written_over(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(ConfigError, match="never written over"):
        make_keys(folder, ["north", "south"])
    assert contents(folder) == before


def test_a_site_is_added_later(folder: Path) -> None:
    before = contents(folder)
    make_keys(folder, ["north", "east"])
    after = contents(folder)
    assert after.keys() - before.keys() == {"east", "east.pub"}
    assert {name: after[name] for name in before} == before
    make_keys(folder, ["north", "south", "east"], none_missing=True)
    assert contents(folder) == after


def test_other_hosts_need_another_server_certificate(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"not for fl\.example\.org"):
        make_keys(folder, ["east"], hosts=["localhost", "fl.example.org"])
    (folder / "server.pem").unlink()
    (folder / "server.key").unlink()
    make_keys(folder, [], hosts=["fl.example.org"])
    shake_hands(folder, folder / "ca.crt", "fl.example.org")


@pytest.mark.parametrize("half", ["ca.key", "server.pem", "north"])
def test_half_a_pair_is_left_alone(folder: Path, half: str) -> None:
    (folder / half).unlink()
    before = contents(folder)
    with pytest.raises(ConfigError, match="without"):
        make_keys(folder, ["north", "east"])
    assert contents(folder) == before


@pytest.mark.parametrize(
    "site", ["", "a b", "../x", "a/b", ".hidden", "-x", "ca", "Server", "ca.crt", "x.pub", "é"]
)
def test_names_that_could_harm_are_refused(tmp_path: Path, site: str) -> None:
    with pytest.raises(ConfigError, match="site"):
        make_keys(tmp_path / "keys", [site])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("hosts", [[], ["a b"], ["https://x"], [""], ["x:443"]])
def test_hosts_that_are_none_are_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match="host"):
        make_keys(tmp_path / "keys", ["north"], hosts=hosts)


def test_two_sites_of_one_name_and_no_days_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same name"):
        make_keys(tmp_path / "keys", ["north", "North"])
    with pytest.raises(ConfigError, match="days"):
        make_keys(tmp_path / "keys", ["north"], days=0)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="folder of their own"):
        make_keys(tmp_path, ["north"])
    assert os.listdir(tmp_path) == ["thesis.tex"]
