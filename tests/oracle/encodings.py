"""The encodings of proto/WIRE.md, decoded in float64 by plain loops: the second opinion about `peer.core.encoding`."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from peer.core.schema import Schema


def decoded(payload: bytes, schema: Schema, encoding: str) -> NDArray[np.float64]:
    """Return the model, float64 [d], of a payload."""
    if encoding == "float32":
        return np.frombuffer(payload, "<f4").astype(np.float64)
    if encoding == "float16":
        return np.frombuffer(payload, "<f2").astype(np.float64)
    if encoding == "bfloat16":
        halves = np.frombuffer(payload, "<u2")
        return np.array([np.array([0, half], "<u2").view("<f4")[0] for half in halves], np.float64)
    if encoding.startswith("delta_top"):
        at, model = -(-schema.size // 8), np.zeros(schema.size)
        chosen = [i for i in range(schema.size) if payload[i // 8] >> (i % 8) & 1]
        for place, half in zip(chosen, np.frombuffer(payload[at:], "<u2"), strict=True):
            model[place] = np.array([0, half], "<u2").view("<f4")[0]
        return model
    scales = np.frombuffer(payload[: 4 * len(schema.tensors)], "<f4")
    codes = np.frombuffer(payload[4 * len(schema.tensors) :], np.int8)
    values, at = [], 0
    for scale, tensor in zip(scales, schema.tensors, strict=True):
        values += [float(scale) * float(code) for code in codes[at : at + tensor.size]]
        at += tensor.size
    return np.array(values, np.float64)


def steps(payload: bytes, schema: Schema, encoding: str, model: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each value of a payload may lie from the exact one: half a step of the encoding, float64 [d]."""
    size = np.abs(model.astype(np.float64))
    if encoding == "float32":
        return np.zeros(schema.size)
    if encoding == "float16":
        return size * 2.0**-11 + 2.0**-25
    if encoding == "bfloat16":
        return size * 2.0**-8 + 2.0**-134
    if encoding.startswith("delta_top"):  # what is not sent is left out, and is not larger than what is sent
        sent = decoded(payload, schema, encoding) != 0
        largest = size[~sent].max(initial=0.0)
        fair = size[sent].min(initial=np.inf) >= largest
        return np.where(sent, size * 2.0**-8 + 2.0**-134, size if fair else 0.0)
    scales = np.frombuffer(payload[: 4 * len(schema.tensors)], "<f4")
    sizes = [tensor.size for tensor in schema.tensors]
    return 0.5 * np.repeat(scales.astype(np.float64), sizes)


def name(model: NDArray[np.float32]) -> int:
    """Return the name of a model that deltas start from."""
    return int.from_bytes(xxhash.xxh3_64_digest(model.astype("<f4").tobytes()), "big") or 1
