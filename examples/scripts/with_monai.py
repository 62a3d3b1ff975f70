"""The same script as one of four sites: ``python with_monai.py SITE``."""

import sys
from pathlib import Path

import torch
from monai.data import DataLoader, Dataset
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import Compose, LoadImaged, RandFlipd, RandGaussianNoised, ScaleIntensityd
from monai.utils import set_determinism

import peer

FOLDER = Path(__file__).parents[1] / "files" / "scans"  # examples/make_files.py writes it
EPOCHS, TEST, KEYS = 4, 3, ("image", "label")


def loaders(site):
    """Return the loaders for training, with augmentation, and for the test."""
    files = sorted((FOLDER / f"scanner-{site}").glob("*-image.npy"))
    rows = [{"image": path, "label": str(path).replace("image", "label")} for path in files]
    read = [LoadImaged(KEYS, ensure_channel_first=True), ScaleIntensityd("image")]
    augment = [RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)] + [
        RandGaussianNoised("image", std=0.05)
    ]
    train = Dataset(rows[:-TEST], Compose(read + augment))
    return DataLoader(train, batch_size=2, shuffle=True, num_workers=2), DataLoader(
        Dataset(rows[-TEST:], Compose(read)), TEST
    )


def main(site):
    train, test = loaders(site)
    set_determinism(0)
    model = UNet(spatial_dims=3, in_channels=1, out_channels=1, channels=(4, 8, 16), strides=(2, 2))
    optimizer, loss = torch.optim.Adam(model.parameters(), 0.02), DiceCELoss(sigmoid=True)

    @torch.no_grad()
    def dice(model):
        model.eval()
        metric = DiceMetric()
        for batch in test:
            metric((model(batch["image"]) > 0).float(), batch["label"])
        return float(metric.aggregate())

    options = {"keep": {"adam": optimizer}, "metric": peer.Metric("dice"), "insecure": True}
    with peer.join("graph.json", site, model=model, evaluate=dice, samples=len(train.dataset), **options) as rounds:
        for _ in rounds:
            model.train()
            for batch in train:
                optimizer.zero_grad()
                loss(model(batch["image"]), batch["label"]).backward()
                optimizer.step()
    print(f"dice {dice(model):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
