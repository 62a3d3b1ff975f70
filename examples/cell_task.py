"""Example task: segmentation: background, cell and nucleus in pictures of a microscope, from a folder of images and masks.

Each peer is a microscope with the folders ``images`` and ``masks``. A mask has the name of its image; the value of a pixel is the
number of its class. The pictures stay bytes in memory; each batch is scaled when it is read.

    python examples/make_files.py        # writes examples/files/cells/microscope-0 and so on; use your own instead
    peer task check examples/cell_task.py:task
    peer testbed --peers 4 --set run.task=examples/cell_task.py:task --set run.optimizer=adam --set run.learning_rate=0.01
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task

FOLDER = Path(__file__).parent / "files" / "cells"
CLASSES = ("background", "cell", "nucleus")


class CellTask(Task):
    """Pictures of one microscope, bytes [n, 1, height, width], and the class of each pixel, int64 [n, height, width]."""

    classes = len(CLASSES)
    class_names = CLASSES
    preprocessing = Preprocessing(divisor=255)
    metric_name = "mean_iou"
    metric_is_share = True

    def make_model(self) -> nn.Module:
        """Return a fully convolutional network: logits [n, classes, height, width] for pictures of any size."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, self.classes, 1),
        )

    def load_shard(self, peer_id: int) -> Shard:
        """Return the pictures and masks of one microscope; the last quarter is the test set."""
        folder = FOLDER / f"microscope-{peer_id}"
        names = sorted(path.name for path in (folder / "images").glob("*.png"))
        x = np.stack([np.asarray(Image.open(folder / "images" / name).convert("L")) for name in names])[:, None]
        y = np.stack([np.asarray(Image.open(folder / "masks" / name)) for name in names]).astype(np.int64)
        cut = len(names) * 3 // 4
        return Shard(train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the intersection over union, mean over the classes."""
        found, shares = outputs.argmax(1), []
        for label in range(self.classes):
            union = ((found == label) | (targets == label)).sum()
            shares.append(float(((found == label) & (targets == label)).sum() / union) if union else 1.0)
        return sum(shares) / len(shares)


task = CellTask()
