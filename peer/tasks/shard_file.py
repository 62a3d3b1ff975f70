"""Shard files: the arrays of a `Shard` as safetensors, with its metadata. Large samples stay on disk.

A safetensors file is the length of its header (8 bytes, little endian), the header as JSON, and the tensors one after the
other, so that each can be memory-mapped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from coordinator_free_bootstrap.errors import ConfigProblem, ShardError, TaskError
from coordinator_free_bootstrap.ordinary_file import ordinary_file, unreadable, unwritable
from peer.tasks.arrays import by_name, take_all
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard

FORMAT = "coordinator-free shard 1"
REQUIRED = ("train_x", "train_y", "test_x", "test_y")
INPUTS = ("train_x", "val_x", "test_x")  # where there are several by name, each is a tensor such as train_x.mask
OPTIONAL = ("val_x", "val_y", "true_cluster", "test_cluster", "turns")
MAPPED_FROM = 256 << 20  # bytes of a tensor of samples that stays on disk
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "U8": "u1", "I8": "i1"} | {
    f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "UI" for size in (2, 4, 8)
}


def save_shard(path: Path, shard: Shard) -> None:
    """Write a shard atomically.

    Raises:
        ShardError: the file cannot be written.
    """
    tensors = {name: getattr(shard, name) for name in (*REQUIRED, *OPTIONAL)}
    arrays = {
        f"{name}.{key}" if key else name: array
        for name, t in tensors.items()
        if t is not None
        for key, array in by_name(t).items()
    }
    contiguous = {name: np.ascontiguousarray(take_all(array)) for name, array in arrays.items()}
    about = dict(shard.metadata)
    if shard.preprocessing is not None:
        about["preprocessing"] = shard.preprocessing.to_json()
    if shard.class_names is not None:
        about["class_names"] = json.dumps(shard.class_names)
    partial = path.with_name(path.name + ".part")
    try:
        save_file(contiguous, partial, metadata={**about, "format": FORMAT})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ShardError(unwritable("shard", path, error)) from error


def load_shard_file(path: Path) -> Shard:
    """Read a shard; `Shard.checked` checks its values. Inputs and targets of `MAPPED_FROM` bytes or more are memory-mapped.

    Raises:
        ShardError: the file is missing or truncated, not safetensors, or has missing or unknown tensors.
    """
    try:
        with safe_open(ordinary_file(path), framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            mapped = _mapped(path)
            tensors: dict[str, Any] = {name: mapped.get(name) for name in file.keys()}  # noqa: SIM118
            tensors |= {name: file.get_tensor(name) for name, array in tensors.items() if array is None}
    except FileNotFoundError as error:
        raise ShardError(unreadable(f"shard: {path}", error, "Make it with `peer data split`.")) from error
    except (OSError, SafetensorError, TypeError, KeyError, ValueError, MemoryError) as error:
        problem = unreadable(f"shard: {path}", error, "Copy it again.", "a whole safetensors file")
        raise ShardError(problem) from error
    for name in [name for name in tensors if name.partition(".")[0] in INPUTS and "." in name]:
        part, _, key = name.partition(".")
        tensors.setdefault(part, {})[key] = tensors.pop(name)
    missing = [name for name in REQUIRED if name not in tensors]
    unknown = sorted(set(tensors) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        wrong = f"no {', '.join(missing)}" if missing else f"unknown tensors {', '.join(unknown)}"
        needed, more = ", ".join(REQUIRED), ", ".join(OPTIONAL)
        raise ShardError(f"shard: {path}: expected {needed}, optionally {more}, got {wrong}")
    try:
        known = metadata.get("preprocessing")
        preprocessing = None if known is None else Preprocessing.from_json(known)
        names = tuple(map(str, json.loads(metadata["class_names"]))) if "class_names" in metadata else None
    except (TaskError, ValueError, TypeError) as error:
        fix = "Write the file again with `peer data split`."
        raise ShardError(
            ConfigProblem(f"shard: {path}: metadata", "what peer data split writes", str(error), fix)
        ) from error
    return Shard(**tensors, preprocessing=preprocessing, class_names=names, metadata=metadata)


def _mapped(path: Path) -> dict[str, object]:
    """Return the large tensors of samples of a valid file as arrays on disk."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    arrays: dict[str, Any] = {}
    for name, about in header.items():
        if name.partition("_")[0] not in ("train", "val", "test") or name == "test_cluster":
            continue
        start, end = about["data_offsets"]
        if end - start >= MAPPED_FROM and about["dtype"] in DTYPES:
            shape, dtype = tuple(about["shape"]), DTYPES[about["dtype"]]
            arrays[name] = np.memmap(path, dtype, "r", offset=8 + length + start, shape=shape)
    return arrays
