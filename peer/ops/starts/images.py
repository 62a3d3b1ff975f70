"""The task: classify a site's own pictures, in folders by class: ``data/site-<id>/<class>/*.png``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task, read_picture

FOLDER = Path(__file__).parent / "data"
CLASSES = ("circle", "cross", "square")
SIDE = 24


class ImageFolderTask(Task):
    """Pictures of one site, float32 [n, 1, 24, 24] in [0, 1]."""

    classes = len(CLASSES)
    class_names = CLASSES
    metric_name = "balanced accuracy"
    preprocessing = Preprocessing(divisor=255.0)  # `load_shard` and `peer predict` apply it

    def make_model(self) -> nn.Module:
        """Return a small convolutional network with BatchNorm; its statistics are averaged like parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(8 * (SIDE // 4) ** 2, self.classes),
        )

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the balanced accuracy: the mean over classes of the recall of each class."""
        hits = (outputs.argmax(1) == targets).float()
        return float(np.mean([float(hits[targets == c].mean()) for c in targets.unique()]))

    def load_shard(self, peer_id: int) -> Shard:
        """Read the folder of one site; every fifth picture is for testing."""
        pictures, labels = [], []
        for label, name in enumerate(CLASSES):
            for path in sorted((FOLDER / f"site-{peer_id}" / name).glob("*.png")):
                pictures.append(read_picture(path, (1, SIDE, SIDE)))
                labels.append(label)
        x, y = self.preprocessing.apply(np.stack(pictures)), np.array(labels)
        is_test = np.arange(len(y)) % 5 == 0
        return Shard(train_x=x[~is_test], train_y=y[~is_test], test_x=x[is_test], test_y=y[is_test])


task = ImageFolderTask()
