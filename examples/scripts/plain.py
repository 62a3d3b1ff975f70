"""The same script as one of four sites: ``python plain.py SITE``."""

import sys

import torch
from pictures import loaders, network
from torch.nn import functional

import peer

EPOCHS = 6


def main(site):
    train, test = loaders(site, workers=2)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    @torch.no_grad()
    def accuracy(model):
        model.eval()
        return float(torch.cat([(model(x).argmax(1) == y).flatten() for x, y in test]).float().mean())

    options = {"keep": {"optimizer": optimizer, "scheduler": scheduler}, "insecure": True}
    with peer.join("graph.json", site, model=model, evaluate=accuracy, samples=len(train.dataset), **options) as rounds:
        for _ in rounds:
            model.train()
            for x, y in train:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            scheduler.step()
    print(f"accuracy {accuracy(model):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
