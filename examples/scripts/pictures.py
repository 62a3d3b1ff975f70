"""Pictures of cells with masks from files, an augmentation, and a small network: what the scripts beside this file train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(__file__).parents[1] / "files" / "cells"  # examples/make_files.py writes it
CLASSES, TEST = 3, 10  # background, cell, nucleus; the last pictures are those of the test


class Pictures(Dataset[Any]):
    """Pictures of one microscope, float32 [1, 32, 32], and masks, int64 [32, 32]; flipped at random for training."""

    def __init__(self, site: int, train: bool) -> None:
        paths = sorted((FOLDER / f"microscope-{site}" / "images").glob("*.png"))
        self.paths, self.train = paths[:-TEST] if train else paths[-TEST:], train

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Read a picture and its mask."""
        image = self.paths[index]
        mask = image.parents[1] / "masks" / image.name
        both = np.stack([np.array(Image.open(path)) for path in (image, mask)])
        if self.train and torch.rand(()) < 0.5:
            both = both[:, :, ::-1]
        x, y = torch.from_numpy(both.astype(np.float32))
        return x[None] / 255, y.long()


def loaders(site: int, workers: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the loaders for training and test."""
    train = DataLoader(Pictures(site, True), batch_size=8, shuffle=True, num_workers=workers)
    return train, DataLoader(Pictures(site, False), batch_size=TEST)


def network() -> nn.Module:
    """Return a network that gives each pixel a class."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, CLASSES, 1),
    )
