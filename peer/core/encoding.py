"""Encodings of a model: float32 without a copy, float16, bfloat16, int8 with a scale per tensor, the largest values. Pure.

The encodings of `DELTAS` encode the change since a model that the receiver has; `peer.core.deltas` keeps these models.

Payloads are little-endian on every machine. Their size depends on schema and encoding alone, so a receiver knows it before
the first byte. The lossy encodings expect finite models; values beyond the range of an encoding saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import LocalProtocolError, RefusalCode, RemoteProtocolError
from peer.core import averaging
from peer.core.schema import Schema

Payload: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]


class Sliced(Protocol):
    """A payload that is read in slices: a memoryview, or one whose bytes are made where they are read."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""

    def __getitem__(self, place: slice, /) -> memoryview:
        """Return some of the bytes."""


MEANINGS = {
    "float32": "4 bytes per value, exact",
    "float16": "2 bytes per value; half precision, largest value 65,504",
    "bfloat16": "2 bytes per value; the range of float32 with 8 bits of precision",
    "int8": "1 byte per value, and one scale per tensor",
    "delta_int8": "the change since the last model, 1 byte per value; now and then a full model",
    "delta_top10": "the largest tenth of the changes since the last model, 0.33 bytes per value; now and then a full model",
    "delta_top1": "the largest hundredth of these changes, 0.15 bytes per value; now and then a full model",
}
ENCODINGS = tuple(MEANINGS)
INT8_MAX = 127  # -128 is not used: the range is symmetric, and the codes of -x are the negated codes of x
_BFLOAT16_MAX = np.uint16(0x7F7F)  # largest finite value
_BYTES_PER_ELEMENT = {"float32": 4, "masked": 4, "float16": 2, "bfloat16": 2, "int8": 1, "delta_int8": 1}
_KEPT = {"delta_top10": 10, "delta_top1": 100}  # one value in this many is sent
DELTAS = ("delta_int8", *_KEPT)
FULL = "float32"  # of a model whose receiver has no base for a delta
MASKED = "masked"  # of a model in a secure sum (`peer.core.sums`): masked fixed point, uint32, never decoded; no run.encoding


def payload_size(schema: Schema, encoding: str) -> int:
    """Return the exact number of payload bytes of one model."""
    if encoding in _KEPT:
        return -(-schema.size // 8) + 2 * _kept(schema, encoding)
    scales = 4 * len(schema.tensors) if encoding in ("int8", "delta_int8") else 0
    return scales + schema.size * _bytes_per_element(encoding)


@dataclass(frozen=True)
class ModelFormat:
    """How the models of a run travel.

    Attributes:
        schema: of the part of a model that travels.
        encoding: of the run, one of `ENCODINGS`, or `MASKED`.
    """

    schema: Schema
    encoding: str

    @property
    def is_masked(self) -> bool:
        """Whether a receiver reads only the sum of what comes."""
        return self.encoding == MASKED

    @property
    def uses_deltas(self) -> bool:
        """Whether a receiver that has the model before gets only the change."""
        return self.encoding in DELTAS

    @property
    def whole(self) -> str:
        """Encoding of a model without a base."""
        return FULL if self.uses_deltas or self.is_masked else self.encoding

    @cached_property
    def model_bytes(self) -> int:
        """Payload bytes of one model in the encoding of the run."""
        return payload_size(self.schema, self.encoding)

    @cached_property
    def whole_bytes(self) -> int:
        """Payload bytes of a model without a base."""
        return payload_size(self.schema, self.whole)


def encode(theta: NDArray[np.float32], schema: Schema, encoding: str) -> memoryview:
    """Return the payload of a model; for float32 a view of ``theta`` itself (copied only on a big-endian machine).

    Args:
        theta: float32 [d], contiguous; must not change while a float32 payload is in use.
        schema: of size d.
        encoding: one of `ENCODINGS`.

    Raises:
        LocalProtocolError: shape or dtype of ``theta`` is not the schema's.
    """
    if theta.shape != (schema.size,) or theta.dtype != np.float32:
        raise LocalProtocolError(
            f"model to encode: expected the schema's float32[{schema.size}], got {theta.dtype}{list(theta.shape)}"
        )
    if encoding in _KEPT:
        return _encode_largest(theta, _kept(schema, encoding))
    _bytes_per_element(encoding)
    if encoding == "float32":
        return _bytes_of(theta.astype("<f4", copy=False))
    if encoding == "float16":
        limit = np.finfo(np.float16).max
        return _bytes_of(np.clip(theta, -limit, limit).astype("<f2"))
    if encoding == "bfloat16":
        return _bytes_of(_to_bfloat16(theta))
    return _encode_int8(theta, schema)


def decode(payload: Payload, schema: Schema, encoding: str) -> NDArray[np.float32]:
    """Return the model float32 [d] of a payload; for float32 a view of its bytes (copied only on a big-endian machine).

    Raises:
        RemoteProtocolError: WRONG_ENCODING for an unknown encoding, WRONG_SIZE if the payload is not exactly the
            schema's size, MALFORMED for an int8 scale that is negative or not finite, or a wrong number of largest values.
    """
    if encoding not in ENCODINGS:
        raise RemoteProtocolError(
            RefusalCode.WRONG_ENCODING, f"encoding: expected one of {', '.join(ENCODINGS)}, got {encoding!r}"
        )
    actual, expected = view_of(payload).nbytes, payload_size(schema, encoding)
    if actual != expected:
        sentence = f"payload: expected {expected} bytes ({encoding} of this schema), got {actual}"
        raise RemoteProtocolError(RefusalCode.WRONG_SIZE, sentence)
    if encoding == "float32":
        return np.frombuffer(payload, "<f4").astype(np.float32, copy=False)
    if encoding == "float16":
        return np.frombuffer(payload, "<f2").astype(np.float32)
    if encoding == "bfloat16":
        return _from_bfloat16(np.frombuffer(payload, "<u2"))
    if encoding in _KEPT:
        return _decode_largest(payload, schema.size, _kept(schema, encoding))
    return _decode_int8(payload, schema)


def checked_norm_squared(theta: NDArray[np.float32]) -> float:
    """Return the sum of squares of a model or of a part of one, float32 [n].

    A NaN or infinity makes the float32 sum non-finite, so one pass computes the norm and checks the values. Only if the sum is
    not finite, possibly by overflow alone, each element is checked, and the sum is computed in float64.

    Raises:
        RemoteProtocolError: NON_FINITE, if any element is NaN or infinite.
    """
    total = averaging.norm_squared(theta)
    if np.isfinite(total):
        return total
    if not np.isfinite(theta).all():
        raise RemoteProtocolError(RefusalCode.NON_FINITE, "the model holds a NaN or an infinity")
    return float(np.einsum("i,i->", theta, theta, dtype=np.float64))


def view_of(payload: Payload | Sliced) -> Sliced:
    """Return the bytes of a payload without a copy."""
    if isinstance(payload, np.ndarray):
        return payload.data.cast("B")
    return memoryview(payload).cast("B") if isinstance(payload, bytes | bytearray | memoryview) else payload


class ErrorFeedback:
    """Error feedback for one slot of a sender: the error of a lossy encoding is added to the next model before it is encoded.

    The sum of the decoded models then differs from the sum of the true ones by one residual, for any number of models.
    Source, for gradients: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
    arXiv 1901.09847.

    Args:
        schema: of the models; the residual is float32 [d], zero at first.
    """

    def __init__(self, schema: Schema) -> None:
        self.residual: NDArray[np.float32] = np.zeros(schema.size, np.float32)
        self._schema = schema

    def encode(self, theta: NDArray[np.float32], encoding: str) -> memoryview:
        """Return the payload of ``theta`` plus the residual, and keep the new residual."""
        corrected = theta + self.residual
        payload = encode(corrected, self._schema, encoding)
        np.subtract(corrected, decode(payload, self._schema, encoding), out=self.residual)
        return payload


def _bytes_per_element(encoding: str) -> int:
    size = _BYTES_PER_ELEMENT.get(encoding)
    if size is None:
        raise LocalProtocolError(f"encoding: expected one of {', '.join(ENCODINGS)}, got {encoding!r}")
    return size


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    if array.size == 0:
        return memoryview(b"")
    return np.ascontiguousarray(array).view(np.uint8).data


def _to_bfloat16(theta: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even: add half a unit of the kept bits, less one where the last kept bit is even."""
    bits = theta.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    sign, magnitude = rounded & np.uint16(0x8000), rounded & np.uint16(0x7FFF)
    saturated = sign | np.minimum(magnitude, _BFLOAT16_MAX)
    return np.where(np.isnan(theta), np.uint16(0x7FC0), saturated).astype("<u2", copy=False)


def _from_bfloat16(upper: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (upper.astype(np.uint32) << 16).view(np.float32)


def _kept(schema: Schema, encoding: str) -> int:
    return -(-schema.size // _KEPT[encoding])


def _encode_largest(theta: NDArray[np.float32], kept: int) -> memoryview:
    """Return one bit per value, whether it is among the ``kept`` largest, then these values as bfloat16.

    Of equal magnitudes the first ones are kept, so that the payload is a function of the values alone.
    """
    sizes = np.abs(theta)
    chosen = np.ones(theta.size, bool)
    if kept < theta.size:
        smallest = np.partition(sizes, theta.size - kept)[theta.size - kept]
        chosen = sizes > smallest
        chosen[np.flatnonzero(sizes == smallest)[: kept - int(np.count_nonzero(chosen))]] = True
    values = _to_bfloat16(np.ascontiguousarray(theta[chosen]))
    return memoryview(np.packbits(chosen, bitorder="little").tobytes() + values.tobytes())


def _decode_largest(payload: Payload, size: int, kept: int) -> NDArray[np.float32]:
    data = np.frombuffer(payload, np.uint8)
    bits = np.unpackbits(data[: -(-size // 8)], bitorder="little").view(bool)
    if np.count_nonzero(bits) != kept or bits[size:].any():
        problem = f"bits: expected {kept} set, all among the first {size}, got {np.count_nonzero(bits)}"
        raise RemoteProtocolError(RefusalCode.MALFORMED, problem)
    theta = np.zeros(size, np.float32)
    theta[bits[:size]] = _from_bfloat16(np.frombuffer(data[-(-size // 8) :].tobytes(), "<u2"))
    return theta


def _encode_int8(theta: NDArray[np.float32], schema: Schema) -> memoryview:
    payload = np.empty(payload_size(schema, "int8"), np.uint8)
    head = 4 * len(schema.tensors)
    scales, codes = payload[:head].view("<f4"), payload[head:].view(np.int8)
    for row, (_tensor, part) in enumerate(schema.slices()):
        values = theta[part]
        # In float64: in float32 the scale of a tensor of very small values would round to zero.
        largest = float(np.abs(values).max(initial=0.0))
        scales[row] = largest / INT8_MAX
        scale = float(scales[row])
        codes[part] = np.clip(np.rint(values / scale), -INT8_MAX, INT8_MAX) if scale > 0 else 0
    return payload.data


def _decode_int8(payload: Payload, schema: Schema) -> NDArray[np.float32]:
    data = np.frombuffer(payload, np.uint8)
    head = 4 * len(schema.tensors)
    scales, codes = np.frombuffer(data[:head].tobytes(), "<f4"), data[head:].view(np.int8)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise RemoteProtocolError(
            RefusalCode.MALFORMED,
            "int8 scale: expected finite numbers, 0 or more, got a negative, infinite or NaN value",
        )
    theta = codes.astype(np.float32)
    with np.errstate(over="ignore"):  # an infinity is refused by `norm_squared`, as in the other encodings
        for scale, (_tensor, part) in zip(scales, schema.slices(), strict=True):
            theta[part] *= scale
    return theta
