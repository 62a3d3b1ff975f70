"""Read the inputs of a prediction: an array, a table or an image, scaled as the samples of the task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.datasets import DATASETS
from peer.tasks.pool import Pool


def read_inputs(path: Path, sample_shape: tuple[int, ...], manifest: Manifest) -> NDArray[np.float32]:
    """Return float32 [n, *sample_shape].

    Args:
        path: ``.npy``: one sample or several, not scaled. ``.csv``: numbers, one sample per row; a header row is
            skipped. Other files: one image, scaled to the size of the model, in [0, 1], standardized as in training.
        sample_shape: of one input of the model.
        manifest: its task and task_options give the standardization of images.

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
        raise TaskError(
            f"input: {path}: found shape {list(values.shape)}; allowed: samples of shape {list(sample_shape)}"
        )
    converted: NDArray[np.float32] = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(converted).all():
        raise TaskError(f"input: {path}: found NaN or Inf; allowed: finite numbers")
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
        raise TaskError(f"input: {path}: found an image; allowed: samples {list(sample_shape)} as .npy or .csv")
    channels, height, width = sample_shape
    with Image.open(path) as opened:
        scaled = opened.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled)
    pixels = pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    pool = Pool(x=pixels[None], y=np.zeros(1, np.int64), train_count=1, classes=None)
    dataset = DATASETS.get(manifest.task)
    if dataset is not None and manifest.task_options.get("normalize", channels == 3):
        pool = replace(pool, mean=dataset.mean, std=dataset.std)
    return pool.gather(np.zeros(1, np.int64), np.zeros(1, np.int64))
