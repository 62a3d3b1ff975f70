"""Flower: its FedAvg with a server, which tests each average; every setting at its default, except that all nodes must train.

python flower_app.py FOLDER deployment     # SuperLink and a SuperNode for each node, on the loopback, without TLS
python flower_app.py FOLDER simulation     # its simulation, in Ray
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

START_S = 120.0  # at most, until the SuperLink listens
BIN = Path(sys.executable).parent
APP = dedent(
    """
    [project]
    name = "rival"
    version = "1.0.0"
    description = ""
    license = "Apache-2.0"
    dependencies = []
    [tool.flwr.app]
    publisher = "rival"
    [tool.flwr.app.components]
    serverapp = "rival_app:server"
    clientapp = "rival_app:client"
    """
)
CONNECTIONS = dedent(
    """
    [superlink]
    default = "deployment"
    [superlink.deployment]
    address = "127.0.0.1:8000"
    insecure = true
    [superlink.simulation]
    address = ":local:"
    options.num-supernodes = {nodes}
    """
)
RIVAL_APP = """
import os
from pathlib import Path

from common import Setting, Teller
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

FOLDER = Path(os.environ["RIVAL_FOLDER"])
SETTING = Setting.read(FOLDER)
client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    node = int(context.node_config["partition-id"])
    teller, model, samples = Teller(FOLDER, node), SETTING.make_model(), SETTING.samples(FOLDER, node)
    teller.training(int(message.content["config"]["server-round"]) - 1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = SETTING.train_epoch(model, *samples)
    teller.trained()
    numbers = MetricRecord({"loss": loss, "num-examples": len(samples[0])})
    return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": numbers}), reply_to=message)


@server.main()
def main(grid, context):
    model = SETTING.make_model()
    tellers = [Teller(FOLDER, node) for node in range(SETTING.nodes)]

    def tested(round_number, arrays):
        if round_number:
            model.load_state_dict(arrays.to_torch_state_dict())
            for teller in tellers:
                teller.round_ended(round_number - 1, model)

    rule = FedAvg(fraction_evaluate=0.0, min_train_nodes=SETTING.nodes, min_available_nodes=SETTING.nodes)
    arrays = ArrayRecord(model.state_dict())
    rule.start(grid=grid, initial_arrays=arrays, num_rounds=SETTING.rounds, evaluate_fn=tested)
"""


def launch(folder: Path, way: str) -> None:
    """Start the servers of a deployment, run the app to its end, and stop them."""
    import json

    nodes = json.loads((folder / "setting.json").read_text())["nodes"]
    app, home = folder / "app", folder / "flower"
    app.mkdir()
    home.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "rival_app.py").write_text(RIVAL_APP)
    (home / "config.toml").write_text(CONNECTIONS.format(nodes=nodes))
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "RIVAL_FOLDER": str(folder),
        "PYTHONPATH": str(Path(__file__).parent),
    }

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a program; the process of a node is its SuperNode, not the one that trains for it."""
        file = (folder / f"{name}.txt").open("w")
        alive = (
            'export RIVAL_PID=$$ && exec "$@"'  # a SIGKILL goes to the SuperNode, not to the process that trains for it
        )
        return subprocess.Popen(["sh", "-c", alive, "sh", *words], env=environment, stdout=file, stderr=file)

    servers = []
    if way == "deployment":
        servers.append(start("superlink", str(BIN / "flower-superlink"), "--insecure"))
        _until_listening(8000)
        for node in range(nodes):
            about = f"partition-id={node} num-partitions={nodes}"
            words = ["--insecure", "--port", str(9100 + node), "--node-config", about]
            servers.append(start(f"supernode-{node}", str(BIN / "flower-supernode"), *words))
    start("run", str(BIN / "flwr"), "run", str(app), way, "--stream").wait()
    for server in servers:
        server.terminate()


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"error: nothing listens at port {port} after {START_S:.0f} s")


if __name__ == "__main__":
    launch(Path(sys.argv[1]), sys.argv[2])
