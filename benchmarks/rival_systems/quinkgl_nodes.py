"""QuinkGL: `FedAvg`, `RandomTopology`, its settings at their defaults; the nodes are told the addresses of the others."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from launcher import ADDRESSES, start_nodes

CONNECT_S = 120.0
LINGER_S = 30.0


async def be_a_node(folder: Path, node: int) -> None:
    """Meet the others, run the rounds, and stay a while to receive."""
    os.environ["HOME"] = str(folder)  # it keeps keys there
    import torch
    from common import Setting, Teller
    from quinkgl import FedAvg, GossipNode, PyTorchModel, RandomTopology, TrainingConfig

    setting, teller = Setting.read(folder), Teller(folder, node)
    model = PyTorchModel(setting.make_model(), device="cpu")
    config = TrainingConfig(
        epochs=1, batch_size=setting.batch_size, learning_rate=setting.learning_rate, optimizer=torch.optim.SGD
    )
    runs = GossipNode(
        node_id=f"node-{node}",
        domain="digits",
        model=model,
        port=int(ADDRESSES[node].split(":")[1]),
        topology=RandomTopology(),
        aggregation=FedAvg(),
        training_config=config,
        quiet=True,
    )
    ended = asyncio.Event()
    rounds = [0]
    aggregator = runs.gl_node.aggregator
    aggregator.register_hook("before_train", lambda *_, **__: teller.training(rounds[0]))
    aggregator.register_hook("after_train", lambda *_, **__: teller.trained())

    class Rounds:
        def emit(self, kind: str, payload: dict[str, object] | None = None, **_: object) -> None:
            if kind == "round_completed":
                teller.round_ended(rounds[0], model.model)
                rounds[0] += 1
                if rounds[0] == setting.rounds:
                    ended.set()
                    aggregator.running = False

    await runs.start()
    aggregator.event_emitter = Rounds()
    deadline = asyncio.get_running_loop().time() + CONNECT_S
    while len(aggregator.known_peers) < setting.nodes - 1:
        for address in ADDRESSES[: setting.nodes]:
            if address != ADDRESSES[node]:
                there, at = address.split(":")
                runs.ipv8_manager.community.walk_to((there, int(at)))
        if asyncio.get_running_loop().time() > deadline:
            raise SystemExit(f"node {node}: found {sorted(aggregator.known_peers)}")
        await asyncio.sleep(0.5)
    (folder / f"ready-{node}").touch()
    while len([*folder.glob("ready-*")]) < setting.nodes:
        await asyncio.sleep(0.1)
    await runs.run_continuous(data=setting.samples(folder, node))
    (folder / f"done-{node}").touch()
    deadline = time.monotonic() + LINGER_S
    while len([*folder.glob("done-*")]) < setting.nodes and time.monotonic() < deadline:  # the others may still need it
        await asyncio.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(be_a_node(Path(sys.argv[1]), int(sys.argv[2])))
    else:
        start_nodes(__file__, Path(sys.argv[1]), json.loads((Path(sys.argv[1]) / "setting.json").read_text())["nodes"])
