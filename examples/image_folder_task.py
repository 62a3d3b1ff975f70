"""Example task: classify a device's own pictures, in folders by class: ``<root>/peer-<id>/<class>/*.png``.

The example draws missing folders, so that it runs without data: circles, squares and crosses, dark on light for even peers
and light on dark for odd ones. For your own pictures, set ``root`` and delete `draw_folder`.

    peer task check examples/image_folder_task.py:ImageFolderTask --set run.task_options.root=pictures
    peer testbed --peers 6 --set run.task=examples/image_folder_task.py:ImageFolderTask --set run.task_options.root=pictures
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor, nn

from peer.tasks import Preprocessing, Shard, Task, read_picture

CLASSES = ("circle", "cross", "square")
SIDE = 24
PICTURES_PER_CLASS = 30


class ImageFolderTask(Task):
    """Task of pictures, float32 [n, 1, 24, 24] in [0, 1].

    Args:
        root: folder with one folder per peer.
    """

    classes = len(CLASSES)
    class_names = CLASSES
    preprocessing = Preprocessing(divisor=255.0)  # `load_shard` and `peer predict` apply it

    def __init__(self, root: str = "out/example-pictures") -> None:
        self.root = Path(root)

    @property
    def metric_name(self) -> str:
        """Name of `metric` in reports."""
        return "balanced accuracy"

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
        """Read the folder of one peer; every fifth picture is for testing."""
        folder = self.root / f"peer-{peer_id}"
        if not folder.is_dir():
            draw_folder(folder, peer_id)
        pictures, labels = [], []
        for label, name in enumerate(CLASSES):
            for path in sorted((folder / name).glob("*.png")):
                pictures.append(read_picture(path, (1, SIDE, SIDE)))
                labels.append(label)
        x, y = self.preprocessing.apply(np.stack(pictures)), np.array(labels)
        is_test = np.arange(len(y)) % 5 == 0
        return Shard(
            train_x=x[~is_test],
            train_y=y[~is_test],
            test_x=x[is_test],
            test_y=y[is_test],
            true_cluster=np.full(int((~is_test).sum()), peer_id % 2),
        )


def draw_folder(folder: Path, peer_id: int) -> None:
    """Draw the pictures of a peer; they depend on the peer id alone."""
    draw = np.random.default_rng(peer_id)
    paper, ink = ((255, 40), (0, 215))[peer_id % 2]
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(PICTURES_PER_CLASS):
            picture = Image.new("L", (SIDE, SIDE), paper)
            pen = ImageDraw.Draw(picture)
            (left, top), size = draw.integers(1, 8, 2), int(draw.integers(9, 15))
            box = (int(left), int(top), int(left) + size, int(top) + size)
            if name == "circle":
                pen.ellipse(box, outline=ink, width=2)
            elif name == "square":
                pen.rectangle(box, outline=ink, width=2)
            else:
                pen.line(box, fill=ink, width=2)
                pen.line((box[0], box[3], box[2], box[1]), fill=ink, width=2)
            picture.save(folder / name / f"{number:03d}.png")


task = ImageFolderTask()
