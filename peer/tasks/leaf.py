"""FEMNIST in LEAF's json form: handwritten digits and letters with the id of each writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.pool import Pool

SIDE, CLASSES = 28, 62
TEST_SHARE = 0.1  # of each writer's images where LEAF has not split them; LEAF's own default

Written = tuple[NDArray[np.float32], NDArray[np.int64]]  # images (n, 1, 28, 28), labels (n,)


def load(name: str, options: Mapping[str, object], data_root: Path | None, download: bool) -> Pool:
    """Return FEMNIST from ``data_root/femnist`` or ``data_root``: json files, or such folders ``train`` and ``test``.

    ``writers`` limits how many writers are kept, in the order of their names.

    Raises:
        TaskError: no json files, or not of LEAF's form.
    """
    limit = options.get("writers")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise TaskError(f"task_options.writers is {limit!r}; a positive integer is allowed")
    root = Path(data_root or ".")
    root = root / "femnist" if (root / "femnist").is_dir() else root
    if (root / "train").is_dir() and (root / "test").is_dir():
        halves = [_read(root / "train"), _read(root / "test")]
    else:
        halves = _held_out(_read(root))
    names = sorted(set(halves[0]) & set(halves[1]))[:limit]
    rows = [(number, *half[writer]) for half in halves for number, writer in enumerate(names)]
    if not rows:
        raise TaskError(f"task: femnist: no writer in {root} has both training and test images")
    return Pool(
        x=np.concatenate([x for _, x, _ in rows]),
        y=np.concatenate([y for _, _, y in rows]),
        train_count=sum(len(halves[0][writer][1]) for writer in names),
        classes=CLASSES,
        writer=np.concatenate([np.full(len(y), number, dtype=np.int64) for number, _, y in rows]),
    )


def _read(folder: Path) -> dict[str, Written]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise TaskError(f"task: femnist: no json files in {folder}; --data-root must hold LEAF's femnist json files")
    found: dict[str, Written] = {}
    for path in paths:
        try:
            content: Any = json.loads(path.read_text())
            for writer in content["users"]:
                mine = content["user_data"][writer]
                x = np.asarray(mine["x"], dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
                found[writer] = (x, np.asarray(mine["y"], dtype=np.int64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TaskError(f"task: femnist: {path} is not LEAF's json form (users, user_data): {error!r}") from error
    return found


def _held_out(everything: dict[str, Written]) -> list[dict[str, Written]]:
    """Hold out the last tenth of each writer's images, one or more."""
    train, test = {}, {}
    for writer, (x, y) in everything.items():
        kept = len(y) - max(1, round(TEST_SHARE * len(y)))
        if kept > 0:
            train[writer], test[writer] = (x[:kept], y[:kept]), (x[kept:], y[kept:])
    return [train, test]
