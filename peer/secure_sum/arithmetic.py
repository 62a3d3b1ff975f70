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
from collections.abc import Callable, Iterable, Iterator, Mapping

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
BLOCK = 1 << 15  # elements masked at a time: a block, its mask and its products together fit the second-level cache


def derived(key: bytes, label: str, *context: bytes, size: int = 32) -> bytes:
    """Return ``size`` <= 32 pseudorandom bytes of a key, a label and a context: HMAC-SHA256, each part with its length."""
    parts = (label.encode(), *context)
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, text, hashlib.sha256)[:size]


# ---- fixed point --------------------------------------------------------------------------------------------------------


def factor(bound: float, neighbors: int) -> float:
    """Return by how much values are multiplied before they are rounded: (2^31 - n) / R."""
    return (2**31 - neighbors) / bound


class MaskedModel:
    """A model as a sum gets it, round(model * scale) plus masks modulo 2^32: its bytes are made where they are read.

    Args:
        model: float32 [d], whose magnitudes times ``scale`` are below 2^31; must not change while it is read.
        scale: `factor` times the sender's share of the weights.
        masks: of this model alone.
    """

    def __init__(self, model: Vector, scale: float, masks: Iterable[Mask]) -> None:
        self.nbytes = 4 * model.size
        self._model, self._scale, self._masks = model, scale, tuple(masks)

    def __getitem__(self, place: slice) -> memoryview:
        """Return some of the bytes, the same ones each time: a model that is sent again is masked in the same way."""
        start, stop, _ = place.indices(self.nbytes)
        at = start // 4
        values = self._model[at : -(-stop // 4)]
        result = np.empty(values.size, "<u4")
        streams, products = _KeyStreams(self._masks, values.size, at), np.empty(min(BLOCK, values.size))
        for block in _blocks(values.size):
            product = products[: values[block].size]
            # In float64: a Python number would make it float32.
            np.multiply(values[block], self._scale, out=product, dtype=np.float64)
            np.rint(product, out=product)
            result[block] = product.astype(np.int32).view(np.uint32)
            streams.add_to(result[block])
        return result.view(np.uint8)[start - 4 * at :][: stop - start].data


def plain(total: Masked, scale: float, masks: Iterable[Mask] = ()) -> Vector:
    """Add masks to a sum, uint32 [d], and divide it by ``scale`` in float64: the mean, float32 [d], takes its memory."""
    streams, result = _KeyStreams(masks, total.size), total.view(np.float32)
    for block in _blocks(total.size):
        streams.add_to(total[block])
        result[block] = total[block].view(np.int32) / scale
    return result


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


class _KeyStreams:
    """The key streams of masks for ``size`` elements from ``at`` on, one block after the other."""

    def __init__(self, masks: Iterable[Mask], size: int, at: int = 0) -> None:
        counter, offset = divmod(4 * at, 16)
        mode, largest = modes.CTR(counter.to_bytes(16)), 4 * min(BLOCK, size)
        self._ciphers = [
            (Cipher(algorithms.AES(seed), mode).encryptor(), np.add if sign > 0 else np.subtract)
            for seed, sign in masks
        ]
        for cipher, _ in self._ciphers:
            cipher.update(bytes(offset))
        self._zeros, self._stream = memoryview(bytes(largest)), np.empty(largest + 15, np.uint8)

    def add_to(self, block: Masked) -> None:
        """Add the next part of each stream: one pass over memory for all of them."""
        zeros, stream = self._zeros[: block.nbytes], self._stream[: block.nbytes].view("<u4")
        for cipher, apply in self._ciphers:
            cipher.update_into(zeros, self._stream)  # type: ignore[arg-type]
            apply(block, stream, out=block)


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
