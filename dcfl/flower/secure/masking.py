"""Keys, shares and masks, as functions of bytes and whole numbers."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dcfl.errors import ProtocolError
from dcfl.messages import Tensors

SECRET_BYTES = 32  # of a seed, or of a key
PRIME = 2**521 - 1  # shares are numbers below it
SHARE_BYTES = 66


def split_secret(secret: bytes, holders: Collection[int], needed: int) -> dict[int, bytes]:
    """Shamir's shares, by holder: the values at 1 + holder of a random polynomial whose value at 0
    is the secret. `needed` of them tell it, fewer tell nothing."""
    terms = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for term in reversed(terms):
            value = (value * (1 + holder) + term) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES)
    return shares


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as it needs."""
    total = 0
    for one, share in shares.items():
        above = below = 1
        for other in shares:
            if other != one:
                above = above * (1 + other) % PRIME
                below = below * (other - one) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    try:
        return (total % PRIME).to_bytes(SECRET_BYTES)
    except OverflowError as error:
        raise ProtocolError("shares that do not belong together") from error


def new_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes_raw()


def public(key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def agreed(own: bytes, other: bytes, purpose: str) -> bytes:
    """What the holders of two private keys have in common, from one of them and the public key of
    the other: another 32 bytes for each purpose."""
    try:
        common = X25519PrivateKey.from_private_bytes(own).exchange(
            X25519PublicKey.from_public_bytes(other)
        )
    except ValueError as error:
        raise ProtocolError("a public key that is none") from error
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=f"dcfl {purpose}".encode()).derive(common)


_ONCE = bytes(12)  # the nonce: a sealing key is for one text


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_ONCE, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, sealed, about)
    except InvalidTag as error:
        raise ProtocolError("shares that were changed on their way") from error


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


class Ring:
    """A reply's numbers, modulo 2^32 and 2^64. Nothing overflows: unsigned numbers wrap."""

    def __init__(self, like: Tensors) -> None:
        """Zeros in the form of `like`."""
        widths = {torch.int32: np.uint32, torch.int64: np.uint64}
        self._numbers = {n: np.zeros(t.numel(), dtype=widths[t.dtype]) for n, t in like.items()}

    def add(self, reply: Tensors) -> None:
        for name, numbers in self._numbers.items():
            numbers += reply[name].numpy().view(numbers.dtype)

    def mask(self, seed: bytes, sign: int) -> None:
        """Add, or with -1 take off, the numbers that follow from a seed."""
        stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
        for _, numbers in sorted(self._numbers.items()):
            drawn = np.frombuffer(
                stream.update(bytes(numbers.nbytes)), numbers.dtype.newbyteorder("<")
            )
            if sign > 0:
                numbers += drawn
            else:
                numbers -= drawn

    def tensors(self) -> dict[str, torch.Tensor]:
        signed = {np.dtype(np.uint32): np.int32, np.dtype(np.uint64): np.int64}
        return {
            name: torch.from_numpy(numbers.view(signed[numbers.dtype]))
            for name, numbers in self._numbers.items()
        }
