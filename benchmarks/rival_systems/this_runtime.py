"""This runtime: a script with `peer.join` around its loop, `dfedavg` on a complete graph, the rest at its defaults."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launcher import ADDRESSES, start_nodes


def launch(folder: Path) -> None:
    """Write the graph file, and run the peers."""
    import peer

    setting = json.loads((folder / "setting.json").read_text())
    run = {"algorithm": "dfedavg", "rounds": setting["rounds"], "learning_rate": setting["learning_rate"]}
    graph = peer.Graph.make("complete", peers=setting["nodes"], base_port=int(ADDRESSES[0].split(":")[1]), run=run)
    graph.save(folder / "graph.json")
    start_nodes(__file__, folder, setting["nodes"])


def be_a_peer(folder: Path, node: int) -> None:
    """Train as a script does."""
    from common import Setting, Teller, accuracy
    from torch import nn

    import peer

    setting, teller = Setting.read(folder), Teller(folder, node)
    model, (x, y) = setting.make_model(), setting.samples(folder, node)

    def evaluate(net: nn.Module) -> float:
        return accuracy(net, *teller.test)

    state = folder / f"state-{node}"
    with peer.join(
        folder / "graph.json", node, model=model, evaluate=evaluate, samples=len(x), state_dir=state, insecure=True
    ) as federation:
        index = -1
        for index, _ in enumerate(federation):
            if index:
                teller.round_ended(index - 1, model)
            teller.training(index)
            setting.train_epoch(model, x, y)
            teller.trained()
    teller.round_ended(index, model)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        be_a_peer(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        launch(Path(sys.argv[1]))
