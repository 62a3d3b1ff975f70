"""A trained model as a safetensors file with named tensors, which other programs can read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coordinator_free_bootstrap.errors import StorageError
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from peer.core.schema import Schema
from peer.store.files import write_atomic


def save_model(path: Path, vector: np.ndarray, schema: Schema, metadata: dict[str, str] | None = None) -> None:
    """Write a flat model vector as named tensors, atomically.

    Args:
        path: the file; its directory exists.
        vector: float32 [d] in the schema's order; read only.
        schema: names and shapes.
        metadata: text about the model (task, model, round, ...); the digest of the schema is added.

    Raises:
        ValueError: the vector is not float32 [d].
        StorageError: the file cannot be written.
    """
    if vector.dtype != np.float32 or vector.shape != (schema.size,):
        raise ValueError(f"model vector: expected float32 [{schema.size}], got {vector.dtype} {list(vector.shape)}")
    tensors = {spec.name: np.ascontiguousarray(vector[part]).reshape(spec.shape) for spec, part in schema.slices()}
    write_atomic(path, save(tensors, {**(metadata or {}), "schema_digest": schema.digest}))


def load_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the named float32 tensors of a model file and its metadata.

    Raises:
        StorageError: the file is missing or damaged, or not a safetensors file.
    """
    try:
        with safe_open(ordinary_file(path), framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, KeyError, MemoryError) as error:  # numpy has no bfloat16: TypeError
        raise StorageError(f"cannot read model file {path}: {error}. Give the file of a finished run.") from error
