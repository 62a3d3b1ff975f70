"""PFLlib: its FedAvg, all clients in turn in one process. PFLLIB names its folder ``system``."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from common import Setting, Teller
from typing_extensions import override


def run(folder: Path) -> None:
    """Write the samples as PFLlib reads them, and run its server."""
    sys.path.insert(0, os.environ["PFLLIB"])
    setting = Setting.read(folder)
    for part in ("train", "test"):
        place = folder / "dataset" / "digits" / part
        place.mkdir(parents=True)
        for node in range(setting.nodes):
            x, y = setting.samples(folder, node if part == "train" else None)
            np.savez(place / f"{node}.npz", data={"x": x.numpy(), "y": y.numpy()})  # type: ignore[arg-type]
    (folder / "system").mkdir()
    os.chdir(folder / "system")
    from flcore.clients.clientavg import clientAVG
    from flcore.servers.serveravg import FedAvg

    tellers = [Teller(folder, node) for node in range(setting.nodes)]
    done = [-1]
    train = clientAVG.train

    def told(client: Any) -> None:
        teller = tellers[client.id]
        teller.training(done[0])
        train(client)
        teller.trained()

    clientAVG.train = told

    class Server(FedAvg):  # type: ignore[misc]
        @override
        def evaluate(self, acc: Any = None, loss: Any = None) -> None:
            if done[0] >= 0:  # it evaluates before it trains
                for teller in tellers:
                    teller.round_ended(done[0], self.global_model)
            self.rs_test_acc.append(0.0)
            done[0] += 1

        @override
        def save_results(self) -> None:
            pass

    known = dict.fromkeys(_ARGUMENTS, 0) | {
        "dataset": "digits",
        "algorithm": "FedAvg",
        "device": "cpu",
        "model": setting.make_model(),
        "num_classes": setting.classes,
        "global_rounds": setting.rounds,
        "local_epochs": 1,
        "batch_size": setting.batch_size,
        "local_learning_rate": setting.learning_rate,
        "learning_rate_decay_gamma": 0.99,
        "num_clients": setting.nodes,
        "join_ratio": 1.0,
        "eval_gap": 1,
        "save_folder_name": "models",
        "goal": "rivals",
        "time_threthold": 10000,
        "top_cnt": 100,
    }
    Server(Namespace(**known), 0).train()


_ARGUMENTS = [
    "random_join_ratio",
    "few_shot",
    "time_select",
    "auto_break",
    "client_drop_rate",
    "train_slow_rate",
    "send_slow_rate",
    "dlg_eval",
    "dlg_gap",
    "batch_num_per_client",
    "num_new_clients",
    "fine_tuning_epoch_new",
    "learning_rate_decay",
]

if __name__ == "__main__":
    run(Path(sys.argv[1]))
