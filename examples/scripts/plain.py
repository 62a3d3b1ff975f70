"""The same script as one of four sites: ``python plain.py SITE``."""

import sys

import torch
from pictures import loaders, network
from torch.nn import functional

import peer

EPOCHS = 6


@torch.no_grad()
def accuracy(model, loader):
    """Return the share of pixels with the right class."""
    model.eval()
    return float(torch.cat([(model(x).argmax(1) == y).flatten() for x, y in loader]).float().mean())


def main(site):
    train, test = loaders(site, workers=2)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    options = {"keep": {"optimizer": optimizer, "scheduler": scheduler}, "state_dir": f"sites/{site}", "insecure": True}
    evaluate = lambda model: accuracy(model, test)
    with peer.join("graph.json", site, model=model, evaluate=evaluate, samples=len(train.dataset), **options) as rounds:
        for epoch in rounds:
            model.train()
            for x, y in train:
                if epoch.should_stop():
                    break
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            scheduler.step()
    print(f"accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
