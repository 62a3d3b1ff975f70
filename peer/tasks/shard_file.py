"""A shard as one safetensors file, to carry to a device: the tensors of `Shard`, and its metadata as text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from coordinator_free_bootstrap.errors import ShardError
from peer.tasks.shard import Shard

FORMAT = "coordinator-free shard 1"
REQUIRED = ("train_x", "train_y", "test_x", "test_y")
OPTIONAL = ("val_x", "val_y", "true_cluster", "turns")


def save_shard(path: Path, shard: Shard) -> None:
    """Write a shard; the file appears whole or not at all.

    Raises:
        ShardError: the folder cannot be written.
    """
    tensors = {name: getattr(shard, name) for name in (*REQUIRED, *OPTIONAL)}
    contiguous = {name: np.ascontiguousarray(t) for name, t in tensors.items() if t is not None}
    partial = path.with_name(path.name + ".part")
    try:
        save_file(contiguous, partial, metadata={**shard.metadata, "format": FORMAT})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ShardError(f"shard: {path} cannot be written: {error}") from error


def load_shard_file(path: Path) -> Shard:
    """Read a shard; values are checked by `Shard.checked`, not here.

    Raises:
        ShardError: the file is missing, truncated, not safetensors, or lacks tensors.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ShardError(f"shard: there is no file {path}") from error
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise ShardError(f"shard: {path} is truncated or not a safetensors file: {error}") from error
    missing = [name for name in REQUIRED if name not in tensors]
    unknown = sorted(set(tensors) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"holds unknown tensors {', '.join(unknown)}"
        raise ShardError(f"shard: {path} {wrong}; needed are {', '.join(REQUIRED)}, allowed {', '.join(OPTIONAL)}")
    return Shard(**tensors, metadata=metadata)
