"""Encodings: exact bytes of examples, and refused payloads."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError, RefusalCode, RemoteProtocolError
from peer.core.encoding import checked_norm_squared, decode, encode
from peer.core.schema import Schema, TensorSpec

SCHEMA = Schema((TensorSpec("weight", (2,)), TensorSpec("bias", ())))
THETA = np.array([1.0, -2.0, 0.0], np.float32)


@pytest.mark.parametrize(
    ("encoding", "payload"),
    [
        ("float32", "0000803f 000000c0 00000000"),
        ("float16", "003c 00c0 0000"),
        ("bfloat16", "803f 00c0 0000"),
        ("int8", "0402813c 00000000 40 81 00"),  # scales 2/127 and 0, then 64, -127 and 0
    ],
)
def test_payload_is_little_endian(encoding: str, payload: str) -> None:
    assert bytes(encode(THETA, SCHEMA, encoding)) == bytes.fromhex(payload)


def test_wrong_shape_or_unknown_encoding_is_a_local_error() -> None:
    for theta in (THETA[:2], THETA.astype(np.float64), THETA.reshape(3, 1)):
        with pytest.raises(LocalProtocolError, match=r"float32\[3\]"):
            encode(theta, SCHEMA, "float32")
    with pytest.raises(LocalProtocolError, match="float8"):
        encode(THETA, SCHEMA, "float8")


def test_unknown_encoding_and_invalid_int8_scale_are_refused() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes(12), SCHEMA, "float8")
    assert caught.value.refusal.code is RefusalCode.WRONG_ENCODING
    for scale in (-1.0, np.inf, np.nan):
        payload = np.array([1.0, scale], "<f4").tobytes() + bytes(3)
        with pytest.raises(RemoteProtocolError) as caught:
            decode(payload, SCHEMA, "int8")
        assert caught.value.refusal.code is RefusalCode.MALFORMED


def test_values_beyond_the_range_of_an_encoding_saturate() -> None:
    theta = np.array([1e6, -1e6, 3.4e38], np.float32)
    assert decode(encode(theta, SCHEMA, "float16"), SCHEMA, "float16").tolist() == [65504, -65504, 65504]
    assert np.isfinite(decode(encode(theta, SCHEMA, "bfloat16"), SCHEMA, "bfloat16")).all()


def test_norm_beyond_float32_is_computed_in_float64() -> None:
    assert checked_norm_squared(np.full(3, 1e20, np.float32)) == pytest.approx(3e40)
