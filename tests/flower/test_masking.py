"""Keys, shares and masks against transcriptions of their definitions."""

from __future__ import annotations

import hashlib
import hmac
import struct
from functools import reduce

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.errors import ProtocolError
from dcfl.flower.secure.masking import (
    PRIME,
    Ring,
    agreed,
    joined,
    public,
    seal,
    split_secret,
    unseal,
)

SECRETS = st.binary(min_size=32, max_size=32)


def solved(shares: dict[int, bytes]) -> int:
    """The constant term of the polynomial through all shares, by elimination modulo the prime."""
    rows = [
        [pow(1 + holder, power, PRIME) for power in range(len(shares))] + [int.from_bytes(share)]
        for holder, share in shares.items()
    ]
    for place in range(len(rows)):
        at = next(r for r in range(place, len(rows)) if rows[r][place])
        rows[place], rows[at] = rows[at], rows[place]
        scale = pow(rows[place][place], -1, PRIME)
        rows[place] = [value * scale % PRIME for value in rows[place]]
        for other in range(len(rows)):
            if other != place:
                factor = rows[other][place]
                pairs = zip(rows[other], rows[place], strict=True)
                rows[other] = [(a - factor * b) % PRIME for a, b in pairs]
    return rows[0][-1]


@settings(max_examples=30)
@given(SECRETS, st.sets(st.integers(0, 10**6), min_size=2, max_size=7), st.data())
def test_shares_are_a_polynomial_s_values(
    secret: bytes, holders: set[int], data: st.DataObject
) -> None:
    needed = data.draw(st.integers(2, len(holders)))
    shares = split_secret(secret, holders, needed)
    some = data.draw(st.lists(st.sampled_from(sorted(holders)), min_size=needed, unique=True))
    chosen = {holder: shares[holder] for holder in some}
    assert joined(chosen) == secret
    assert solved(chosen) == int.from_bytes(secret)


@settings(max_examples=30)
@given(SECRETS, SECRETS, st.integers(2, 5))
def test_fewer_shares_fit_any_secret(secret: bytes, other: bytes, needed: int) -> None:
    """Whoever lacks one share finds for each secret a share that makes it the right one."""
    known = dict(list(split_secret(secret, range(needed), needed).items())[1:])
    # The polynomial through `other` at 0 and the known shares, at the missing holder's point.
    moved = {-1: other.rjust(66, b"\0"), **known}  # holder -1 is at 0
    total = 0
    for one, share in moved.items():
        rest = [o for o in moved if o != one]
        above = reduce(lambda product, o: product * (0 - o) % PRIME, rest, 1)
        below = reduce(lambda product, o: product * (one - o) % PRIME, rest, 1)
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    missing = {0: (total % PRIME).to_bytes(66)}
    assert joined({**missing, **known}) == other


def test_shares_of_different_secrets_are_noticed() -> None:
    one, two = (split_secret(bytes([n]) * 32, range(3), 2) for n in (1, 2))
    with pytest.raises(ProtocolError, match="do not belong together"):
        joined({0: one[0], 1: two[1]})


def quarter(state: list[int], *at: int) -> None:
    a, b, c, d = at
    for left, right, target, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[left] = (state[left] + state[right]) & 0xFFFFFFFF
        mixed = state[target] ^ state[left]
        state[target] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF


def keystream(key: bytes, blocks: int) -> bytes:
    """ChaCha20, RFC 8439, section 2.3, with counters from 0 and a nonce of zeros."""
    found = b""
    for counter in range(blocks):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
        start += [counter, 0, 0, 0]
        state = [*start]
        for _ in range(10):
            for column in range(4):
                quarter(state, *range(column, 16, 4))
            for shift in range(4):
                quarter(state, *(4 * row + (shift + row) % 4 for row in range(4)))
        words = ((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True))
        found += struct.pack("<16I", *words)
    return found


@settings(max_examples=30)
@given(SECRETS, st.integers(0, 40), st.integers(0, 9), st.sampled_from([1, -1]))
def test_a_mask_is_a_stream_added_modulo_its_width(
    seed: bytes, narrow: int, wide: int, sign: int
) -> None:
    start = {
        "parameters": torch.arange(narrow, dtype=torch.int32) - 20,
        "others": torch.arange(wide, dtype=torch.int64) * -(2**58),
    }
    ring = Ring(start)
    ring.add(start)
    ring.mask(seed, sign)
    masked, stream = ring.tensors(), keystream(seed, 5)
    words = struct.unpack(f"<{wide}Q{narrow}I", stream[: 8 * wide + 4 * narrow])
    for name, width, drawn in (("others", 64, words[:wide]), ("parameters", 32, words[wide:])):
        wanted = [
            (a + sign * b) % 2**width for a, b in zip(start[name].tolist(), drawn, strict=True)
        ]
        assert [number % 2**width for number in masked[name].tolist()] == wanted
    ring.mask(seed, -sign)
    assert all(torch.equal(ring.tensors()[name], start[name]) for name in start)


def test_two_private_keys_agree_as_the_standards_say() -> None:
    """X25519 with Bob's keys of RFC 7748, section 6.1; HKDF by RFC 5869, from HMAC."""
    alice = bytes(range(32))
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    key = agreed(alice, public(bob), "a test")
    assert key == agreed(bob, public(alice), "a test") != agreed(bob, public(alice), "another")
    assert public(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    other = X25519PublicKey.from_public_bytes(public(bob))
    common = X25519PrivateKey.from_private_bytes(alice).exchange(other)
    extracted = hmac.digest(bytes(32), common, hashlib.sha256)
    assert key == hmac.digest(extracted, b"dcfl a test\x01", hashlib.sha256)
    with pytest.raises(ProtocolError, match="a public key that is none"):
        agreed(alice, bytes(32), "a test")  # everybody would know the result


def test_a_sealed_share_opens_with_its_key_and_for_its_purpose() -> None:
    key, text = bytes(range(32)), b"a share"
    sealed = seal(key, text, b"these clients")
    assert unseal(key, sealed, b"these clients") == text
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in ((bytes(32), sealed, b"these clients"), (key, flipped, b"these clients")):
        with pytest.raises(ProtocolError, match="changed on their way"):
            unseal(*wrong)
    with pytest.raises(ProtocolError, match="changed on their way"):
        unseal(key, sealed, b"other clients")


def far_from_uniform(numbers: bytes) -> float:
    """The statistic of Pearson's test of bytes: mean 255, deviation 22.6."""
    counts = np.bincount(np.frombuffer(numbers, dtype=np.uint8), minlength=256)
    even = len(numbers) / 256
    return float(((counts - even) ** 2 / even).sum())


LARGEST = 377.1  # one false alarm in a million looks


@pytest.mark.parametrize("content", ["zeros", "ones", "change"])
def test_what_the_server_sees_is_uniform(content: str) -> None:
    """Of a masked reply, whatever it is, with a fixed seed; the reply itself is found out."""
    reply = {
        "zeros": torch.zeros(2**16, dtype=torch.int32),
        "ones": torch.full((2**16,), 2**20, dtype=torch.int32),
        "change": (torch.randn(2**16, generator=torch.Generator().manual_seed(0)) * 10**6).int(),
    }[content]
    ring = Ring({"parameters": reply})
    ring.add({"parameters": reply})
    assert far_from_uniform(ring.tensors()["parameters"].numpy().tobytes()) > 10 * LARGEST
    ring.mask(hashlib.sha256(content.encode()).digest(), 1)
    seen = ring.tensors()["parameters"]
    assert far_from_uniform(seen.numpy().tobytes()) < LARGEST
    # Nor does a number tell the next one, or what is behind it: two correlations, each with a
    # deviation of 2^-8 if there is none; beyond 5.3 of them is one false alarm in ten million.
    scaled = seen.double() / 2**31
    for other in (scaled.roll(1), reply.double() - reply.double().mean()):
        if other.std() > 0:
            pair = torch.stack([scaled, other])
            assert abs(float(torch.corrcoef(pair)[0, 1])) < 5.3 / 2**8
