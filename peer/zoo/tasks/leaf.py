"""FEMNIST in the JSON format of LEAF: handwritten digits and letters with the id of each writer.

Source: LEAF (Caldas et al. 2018, arXiv:1812.01097).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Option, TaskError
from coordinator_free_bootstrap.ordinary_file import text_of
from peer.zoo.tasks.pool import DataSet, Pool, Settings

SIDE = 28
FILE_BYTES_MAX = 2 << 30  # LEAF writes files of about 50 MB
TEST_SHARE = 0.1  # of each writer's images, without folders train and test; the default of LEAF

Written = tuple[NDArray[np.float32], NDArray[np.int64]]  # images (n, 1, 28, 28), labels (n,)


def load(dataset: DataSet, options: Settings, data_root: Path, download: bool) -> Pool:
    """Return FEMNIST from ``data_root/femnist`` or ``data_root``: JSON files, or folders ``train`` and ``test`` of them.

    ``writers`` limits the number of writers, in the order of their names.

    Raises:
        TaskError: no JSON files, or files of another format.
    """
    limit = options["writers"]
    root = data_root / "femnist" if (data_root / "femnist").is_dir() else data_root
    if (root / "train").is_dir() and (root / "test").is_dir():
        halves = [_read(root / "train"), _read(root / "test")]
    else:
        halves = _held_out(_read(root))
    names = sorted(set(halves[0]) & set(halves[1]))[:limit]
    rows = [(number, *half[writer]) for half in halves for number, writer in enumerate(names)]
    if not rows:
        raise TaskError(f"femnist: expected a writer with training and test images in {root}, got none. Add images.")
    return Pool(
        x=np.concatenate([x for _, x, _ in rows]),
        y=np.concatenate([y for _, _, y in rows]),
        train_count=sum(len(halves[0][writer][1]) for writer in names),
        classes=dataset.facts(options).classes,
        group=np.concatenate([np.full(len(y), number, dtype=np.int64) for number, _, y in rows]),
    )


def _read(folder: Path) -> dict[str, Written]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise TaskError(
            f"femnist: expected JSON files in {folder}, got none. Give {Option('data_root')} with LEAF's femnist."
        )
    found: dict[str, Written] = {}
    for path in paths:
        try:
            content: Any = json.loads(text_of(path, FILE_BYTES_MAX))
            for writer in content["users"]:
                mine = content["user_data"][writer]
                x = np.asarray(mine["x"], dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
                found[writer] = (x, np.asarray(mine["y"], dtype=np.int64))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise TaskError(
                f"femnist: {path}: expected JSON of LEAF with users and user_data, got {error!r}"
            ) from error
    return found


def _held_out(everything: dict[str, Written]) -> list[dict[str, Written]]:
    """Return training and test images: the last tenth of each writer's images, at least one, is for testing."""
    train, test = {}, {}
    for writer, (x, y) in everything.items():
        kept = len(y) - max(1, round(TEST_SHARE * len(y)))
        if kept > 0:
            train[writer], test[writer] = (x[:kept], y[:kept]), (x[kept:], y[kept:])
    return [train, test]
