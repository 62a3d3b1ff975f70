"""Shard files: the arrays of a `Shard` as safetensors, with its metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from coordinator_free_bootstrap.errors import ShardError, TaskError
from coordinator_free_bootstrap.ordinary_file import ordinary_file
from peer.tasks.arrays import by_name, take_all
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard

FORMAT = "coordinator-free shard 1"
REQUIRED = ("train_x", "train_y", "test_x", "test_y")
INPUTS = ("train_x", "val_x", "test_x")  # where there are several by name, each is a tensor such as train_x.mask
OPTIONAL = ("val_x", "val_y", "true_cluster", "test_cluster", "turns")


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
        raise ShardError(f"shard: {path} cannot be written: {error}; give a path in a writable folder") from error


def load_shard_file(path: Path) -> Shard:
    """Read a shard; `Shard.checked` checks its values.

    Raises:
        ShardError: the file is missing or truncated, not safetensors, or has missing or unknown tensors.
    """
    try:
        with safe_open(ordinary_file(path), framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ShardError(f"shard: found no file {path}; make it with `peer data split`") from error
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise ShardError(f"shard: {path}: truncated, or not a safetensors file: {error}; copy it again") from error
    for name in [name for name in tensors if name.partition(".")[0] in INPUTS and "." in name]:
        part, _, key = name.partition(".")
        tensors.setdefault(part, {})[key] = tensors.pop(name)
    missing = [name for name in REQUIRED if name not in tensors]
    unknown = sorted(set(tensors) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        wrong = f"no {', '.join(missing)}" if missing else f"unknown tensors {', '.join(unknown)}"
        needed, more = ", ".join(REQUIRED), ", ".join(OPTIONAL)
        raise ShardError(f"shard: {path}: found {wrong}; required: {needed}; allowed too: {more}")
    try:
        known = metadata.get("preprocessing")
        preprocessing = None if known is None else Preprocessing.from_json(known)
        names = tuple(map(str, json.loads(metadata["class_names"]))) if "class_names" in metadata else None
    except (TaskError, ValueError, TypeError) as error:
        raise ShardError(f"shard: {path}: metadata: {error}; write the file again with `peer data split`") from error
    return Shard(**tensors, preprocessing=preprocessing, class_names=names, metadata=metadata)
