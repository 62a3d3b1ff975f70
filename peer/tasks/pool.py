"""A whole data set in memory, once, from which each peer gathers its own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import TaskError


@dataclass(frozen=True, eq=False, kw_only=True)
class Pool:
    """Samples [0, train_count) are the published training set, the rest the published test set.

    Images stay bytes, one per pixel and channel, until a peer gathers its own.

    Attributes:
        x: uint8 images [n, channels, height, width], or float32 [n, ...] used as it is.
        y: int64 labels [n], or float32 targets.
        train_count: number of training samples.
        classes: number of labels; None for regression.
        source: int64 [n], which distribution a sample comes from, where the data set itself has several; else None.
        writer: int64 [n], who wrote a sample (FEMNIST); else None.
        mean: per channel, of x / 255, subtracted from images; 0 leaves them in [0, 1].
        std: per channel, by which images are divided afterwards.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    train_count: int
    classes: int | None
    source: NDArray[np.int64] | None = None
    writer: NDArray[np.int64] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.x.shape[1:]

    def gather(self, index: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the samples ``index``, each rotated counter-clockwise by its quarter turns, as new float32 [m, ...].

        Raises:
            TaskError: rotation of something that is not square images.
        """
        gathered = self.x[index]
        if gathered.dtype == np.uint8:
            shape = (1, -1) + (1,) * (gathered.ndim - 2)
            gathered = gathered.astype(np.float32)
            gathered /= 255.0
            if any(self.mean) or any(s != 1 for s in self.std):
                gathered -= np.array(self.mean, np.float32).reshape(shape)
                gathered /= np.array(self.std, np.float32).reshape(shape)
        return rotated(gathered, turns)


def rotated(images: NDArray[np.float32], turns: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rotate each image [m, ..., height, width] by its quarter turns, in place; exact, no interpolation."""
    if not turns.any():
        return images
    if images.ndim < 3 or images.shape[-1] != images.shape[-2]:
        raise TaskError(f"split: only square images can be rotated, samples have shape {list(images.shape[1:])}")
    for quarter in (1, 2, 3):
        chosen = np.flatnonzero(turns == quarter)
        if len(chosen):
            images[chosen] = np.rot90(images[chosen], quarter, axes=(-2, -1))
    return images
