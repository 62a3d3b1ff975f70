"""p2pfl: its gRPC, every node a neighbor of every other, its settings at their defaults, but no node starts a Ray cluster."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from unittest.mock import Mock

from launcher import ADDRESSES, start_nodes
from typing_extensions import override

CONNECT_S = 120.0  # at most, until all nodes are connected
LINGER_S = 30.0  # at most, after its last round


def be_a_node(folder: Path, node: int) -> None:
    """Connect to all others; node 0 starts the run; end with it."""
    from p2pfl.settings import Settings

    Settings.general.DISABLE_RAY = True  # the imports below read it
    import lightning

    # p2pfl imports it only to download MNIST, and its wheels do not fit a CPU build of torch.
    sys.modules["torchvision"] = sys.modules["torchvision.datasets"] = Mock()
    import torch
    from common import Setting, Teller
    from datasets import Dataset
    from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
    from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
    from p2pfl.management.logger import logger
    from p2pfl.node import Node
    from torch import Tensor, nn
    from torch.nn import functional

    setting, teller = Setting.read(folder), Teller(folder, node)
    home = folder / f"home-{node}"
    home.mkdir()
    os.chdir(home)  # p2pfl and Lightning write their logs where they stand
    rounds = [0]

    class Perceptron(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net: nn.Module = setting.make_model()

        @override
        def on_train_start(self) -> None:
            teller.training(rounds[0])

        @override
        def on_train_end(self) -> None:
            teller.trained()

        @override
        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return functional.cross_entropy(self.net(batch["image"].float()), batch["label"])

        @override
        def test_step(self, batch: dict[str, Tensor], _: int) -> None:
            self.log("test_loss", functional.cross_entropy(self.net(batch["image"].float()), batch["label"]))

        @override
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=setting.learning_rate)

    x, y = setting.samples(folder, node)
    columns = Dataset.from_dict({"image": x.numpy(), "label": y.numpy()}).with_format("torch")
    data = P2PFLDataset(columns.train_test_split(test_size=1, seed=1), batch_size=setting.batch_size)
    runs = Node(LightningModel(Perceptron()), data, addr=ADDRESSES[node])

    class Rounds(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage()
            if "Round " in line and "finished" in line:
                teller.round_ended(rounds[0], runs.get_model().get_model().net)
                rounds[0] += 1

    logger.add_handler(Rounds())
    runs.start()
    while len(neighbors := runs.get_neighbors(only_direct=True)) < setting.nodes - 1:
        for address in set(ADDRESSES[:node]) - set(neighbors):
            runs.connect(address)
        time.sleep(0.5)
    (folder / f"ready-{node}").touch()
    deadline = time.monotonic() + CONNECT_S
    while len([*folder.glob("ready-*")]) < setting.nodes and time.monotonic() < deadline:
        time.sleep(0.1)
    if node == 0:
        runs.set_start_learning(rounds=setting.rounds, epochs=1, trainset_size=setting.nodes)
    while rounds[0] < setting.rounds:
        time.sleep(0.1)
    (folder / f"done-{node}").touch()
    deadline = time.monotonic() + LINGER_S
    while len([*folder.glob("done-*")]) < setting.nodes and time.monotonic() < deadline:  # the others may still need it
        time.sleep(0.1)
    os._exit(0)  # to stop it takes minutes


if __name__ == "__main__":
    if len(sys.argv) > 2:
        be_a_node(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        start_nodes(__file__, Path(sys.argv[1]), json.loads((Path(sys.argv[1]) / "setting.json").read_text())["nodes"])
