"""The same script as a task of four sites: ``peer testbed --peers 4 --set run.task=with_lightning.py:task``; alone as before."""

import sys

import lightning.pytorch as pl
import torch
from pictures import loaders, network
from torch.nn import functional

import peer

EPOCHS, OPTIONS = 6, {"gradient_clip_val": 1.0, "logger": False, "enable_checkpointing": False}


class Segments(pl.LightningModule):
    """Gives each pixel a class."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        """Return the logits [n, classes, 32, 32]."""
        return self.network(x)

    def training_step(self, batch, index):
        """Return the loss."""
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, index):
        """Log the share of pixels with the right class."""
        self.log("test_accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        """Return AdamW with a cosine schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


class Cells(pl.LightningDataModule):
    """The pictures of one microscope."""

    def __init__(self, site):
        super().__init__()
        self.site = site

    def setup(self, stage):
        """Find the files."""
        self.train, self.test = loaders(self.site, workers=2)

    def train_dataloader(self):
        """Return the loader for training."""
        return self.train

    def test_dataloader(self):
        """Return the loader for the test."""
        return self.test


task = peer.lightning.task(Segments, Cells, trainer=OPTIONS)

if __name__ == "__main__":
    trainer = pl.Trainer(max_epochs=EPOCHS, **OPTIONS)
    module, data = Segments(), Cells(int(sys.argv[1]))
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
