"""The arithmetic of secure sums: fixed-point numbers modulo 2^32, masks from a stream cipher, and shared secrets. Pure.

A model value x becomes q = round(x w (2^31 - n) / R), where R is ``run.secure_sum``, n the receiver's number of neighbors in
the graph file, and w the sender's share of all neighbors' weights. So no sum of any of the n models leaves 31 bits and a sign.
Sums are modulo 2^32: added in any order they give the same bits, and masks that are uniform cancel exactly.

Sources: Keith Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (pair masks, self
masks with shared seeds). Adi Shamir, "How to Share a Secret", 1979.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.averaging import Vector

Masked = npt.NDArray[np.uint32]
Mask = tuple[bytes, int]  # seed of a mask, and 1 to add it or -1 to subtract it

PRIME = 2**255 - 19  # of the field of shared secrets
SECRET_BYTES = 32  # of a secret below `PRIME`, and of a share
SEED_BYTES = 16  # of a mask: an AES-128 key
TAG_BYTES = 16
BLOCK = (
    1 << 15
)  # elements masked at a time: a block, its mask and its float64 values together fit the second-level cache


def derived(key: bytes, label: str, *context: bytes, size: int = 32) -> bytes:
    """Return ``size`` <= 32 pseudorandom bytes of a key, a label and a context: HMAC-SHA256, each part with its length."""
    parts = (label.encode(), *context)
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, text, hashlib.sha256)[:size]


# ---- fixed point --------------------------------------------------------------------------------------------------------


def factor(bound: float, neighbors: int) -> float:
    """Return by how much values are multiplied before they are rounded: (2^31 - n) / R."""
    return (2**31 - neighbors) / bound


def masked(model: Vector, scale: float, streams: Iterable[Mask]) -> Masked:
    """Return round(model * scale) plus the masks modulo 2^32, uint32 [d].

    Args:
        model: float32 [d], whose magnitudes times ``scale`` are below 2^31; read only.
        scale: `factor` times the sender's share of the weights.
        streams: the masks.
    """
    result = np.empty(model.size, "<u4")
    values = np.empty(min(BLOCK, model.size), np.float64)

    def rounded(place: slice) -> Masked:
        block = values[: model[place].size]
        np.multiply(model[place], scale, out=block, dtype=np.float64)  # else a Python number makes it float32
        np.rint(block, out=block)
        whole: Masked = block.astype(np.int32).view(np.uint32)
        return whole

    _add_streams(result, streams, rounded)
    return result


def add_masks(total: Masked, streams: Iterable[Mask]) -> None:
    """Add masks to a sum, uint32 [d], in place."""
    _add_streams(total, streams, lambda place: total[place])


def plain(total: Masked, scale: float) -> Vector:
    """Return a sum without masks divided by ``scale``, float32 [d]; the arithmetic is that of float64."""
    result = np.empty(total.size, np.float32)
    for start in range(0, total.size, BLOCK):
        place = slice(start, start + BLOCK)
        result[place] = total[place].view(np.int32) / scale
    return result


def _add_streams(out: Masked, streams: Iterable[Mask], block_of: Callable[[slice], Masked]) -> None:
    """Write each block of ``block_of`` with all masks to ``out``: one pass over memory for all of them."""
    ciphers = [
        (Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor(), np.add if sign > 0 else np.subtract)
        for seed, sign in streams
    ]
    zeros = bytes(4 * min(BLOCK, out.size))
    scratch = np.empty(4 * min(BLOCK, out.size) + 15, np.uint8)
    for start in range(0, out.size, BLOCK):
        place = slice(start, start + BLOCK)
        block = block_of(place)
        size = 4 * block.size
        for cipher, apply in ciphers:
            cipher.update_into(memoryview(zeros)[:size], scratch)  # type: ignore[arg-type]
            apply(block, scratch[:size].view("<u4"), out=block)
        out[place] = block


# ---- shared secrets -----------------------------------------------------------------------------------------------------


def shares_of(secret: bytes, places: Iterable[int], threshold: int, random: Callable[[int], bytes]) -> dict[int, bytes]:
    """Return a share of a secret for each place; any ``threshold`` of them give it, fewer say nothing about it.

    Args:
        secret: `SECRET_BYTES` bytes, a number below `PRIME`.
        places: > 0 and different.
        threshold: >= 1.
        random: returns random bytes, as many as it is asked for.
    """
    higher = [int.from_bytes(random(2 * SECRET_BYTES)) % PRIME for _ in range(threshold - 1)]
    coefficients = [*higher, int.from_bytes(secret)]  # the secret is the value at 0

    def at(place: int) -> bytes:
        value = 0
        for coefficient in coefficients:
            value = (value * place + coefficient) % PRIME
        return value.to_bytes(SECRET_BYTES)

    return {place: at(place) for place in places}


def secret_of(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of enough shares, by place; of too few or wrong ones some other value.

    Raises:
        LocalProtocolError: a place is not between 1 and `PRIME` - 1.
    """
    if not all(0 < place < PRIME for place in shares):
        raise LocalProtocolError(f"places of shares: expected 1 or more, got {sorted(shares)}")
    total = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    return (total % PRIME).to_bytes(SECRET_BYTES)


def new_secret(random: Callable[[int], bytes]) -> bytes:
    """Return a uniform number below `PRIME`, up to a bias of 2^-256."""
    return (int.from_bytes(random(2 * SECRET_BYTES)) % PRIME).to_bytes(SECRET_BYTES)
