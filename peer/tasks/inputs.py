"""Inputs for a prediction: an array, a table or a picture, as the task's samples are scaled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.pool import Pool
from peer.tasks.vision import DATASETS


def read_inputs(path: Path, sample_shape: tuple[int, ...], manifest: Manifest) -> NDArray[np.float32]:
    """Return float32 [n, *sample_shape].

    Args:
        path: ``.npy``: one sample or several, used as they are. ``.csv``: numbers, one sample a row, a header row is
            skipped. Otherwise one picture, scaled to the model's size, in [0, 1], standardized as the manifest says.
        sample_shape: of one input of the model.
        manifest: whose task tells how pictures are standardized.

    Raises:
        TaskError: the file cannot be read, or has another shape.
    """
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".csv":
            values = _table(path)
        else:
            values = _picture(path, sample_shape, manifest)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise TaskError(f"input: {path} cannot be read: {error}") from error
    if values.shape == sample_shape:
        values = values[None]
    if values.ndim and values.size and values.size % max(1, int(np.prod(sample_shape))) == 0 and path.suffix == ".csv":
        values = values.reshape(-1, *sample_shape)
    if values.shape[1:] != sample_shape or not len(values):
        raise TaskError(f"input: {path} holds {list(values.shape)}, the model takes samples of {list(sample_shape)}")
    converted: NDArray[np.float32] = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(converted).all():
        raise TaskError(f"input: {path} holds values that are not finite")
    return converted


def _table(path: Path) -> NDArray[np.float64]:
    first = path.read_text(encoding="utf-8-sig").split("\n", 1)[0]
    try:
        [float(cell) for cell in first.split(",")]
        header = 0
    except ValueError:
        header = 1
    return np.loadtxt(path, delimiter=",", skiprows=header, ndmin=2, encoding="utf-8-sig")


def _picture(path: Path, sample_shape: tuple[int, ...], manifest: Manifest) -> NDArray[np.float32]:
    from PIL import Image

    if len(sample_shape) != 3:
        raise TaskError(f"input: {path}: the model takes samples of {list(sample_shape)}, not pictures")
    channels, height, width = sample_shape
    with Image.open(path) as opened:
        scaled = opened.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled)
    pixels = pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    mean, std = DATASETS[manifest.task][1:] if manifest.task in DATASETS else ((0.0,), (1.0,))
    if not manifest.task_options.get("normalize", channels == 3):
        mean, std = (0.0,), (1.0,)
    pool = Pool(x=pixels[None], y=np.zeros(1, np.int64), train_count=1, classes=None, mean=mean, std=std)
    return pool.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
