"""The same kill -9 in p2pfl 0.4.4: what the death of 1 of 4 nodes in the middle of a round costs the three survivors.

Four processes, p2pfl's own gRPC on the loopback, every node a neighbor of every other, its example MLP on the bundled digits;
all its settings at their defaults, except that the nodes do not each start a Ray cluster. The victim dies as it begins to train,
and each survivor's log tells when its rounds end. Seconds lost: the longest round after the kill less a usual one before it.

p2pfl pins older libraries than this project, so it gets an environment of its own, with the CPU build of torch first:

    python3.11 -m venv p2pfl && p2pfl/bin/pip install torch==2.13.0
    p2pfl/bin/pip install p2pfl==0.4.4 'lightning<3' 'torchmetrics<2' opendp 'pyarrow<18' 'huggingface_hub<0.26' scikit-learn rich
    p2pfl/bin/python benchmarks/p2pfl_kill.py
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from unittest.mock import Mock

from record import new_parser, record
from typing_extensions import override

NODES = 4
VICTIM = 3  # node 0 starts the run
ROUNDS = 8
KILL_ROUND = 4
STARTUP_S = 180.0  # at most, until the nodes are connected, and again until the kill
CAP_S = 400.0  # at most, after the kill: p2pfl waits 300 s for a model that does not come


class Tell(logging.Handler):
    """Sends the log lines about rounds and training to the parent, with their times."""

    def __init__(self, parent: Connection) -> None:
        super().__init__()
        self.parent = parent

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Send the line, if it is one of them."""
        line = record.getMessage()
        if "Round " in line or "Training" in line:
            self.parent.send((record.created, line))


def run_node(index: int, addresses: list[str], folder: Path, parent: Connection) -> None:
    """Be one node: tell the parent once all neighbors are there, start the run on request, continue until killed."""
    os.chdir(folder)  # p2pfl and Lightning write their logs where they stand
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)

    from p2pfl.settings import Settings

    Settings.general.DISABLE_RAY = True  # the imports below read it
    import lightning  # noqa: F401  looks for torchvision, so it comes before the stand-in

    # p2pfl imports it only to download MNIST, and its wheels do not fit a CPU build of torch.
    sys.modules["torchvision"] = sys.modules["torchvision.datasets"] = Mock()
    from datasets import Dataset
    from p2pfl.examples.mnist.model.mlp_pytorch import model_build_fn
    from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
    from p2pfl.management.logger import logger
    from p2pfl.node import Node
    from sklearn.datasets import load_digits

    digits = load_digits()
    mine = slice(index, None, NODES)
    samples = Dataset.from_dict({"image": digits.images[mine] / 16, "label": digits.target[mine]})
    data = P2PFLDataset(samples.train_test_split(test_size=0.2, seed=1), batch_size=32)
    node = Node(model_build_fn(input_size=64, hidden_sizes=[256, 256]), data, addr=addresses[index])
    logger.add_handler(Tell(parent))
    node.start()
    while len(neighbors := node.get_neighbors(only_direct=True)) < NODES - 1:
        for address in set(addresses[:index]) - set(neighbors):
            node.connect(address)
        time.sleep(0.5)
    parent.send((time.time(), "connected"))
    if parent.recv():
        node.set_start_learning(rounds=ROUNDS, epochs=1, trainset_size=NODES)
    parent.recv()  # nothing more is sent


class Nodes:
    """The processes, and the log lines of each so far."""

    def __init__(self, folder: Path) -> None:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(NODES)]
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
        for s in sockets:
            s.close()
        context = multiprocessing.get_context("spawn")
        self.lines: list[list[tuple[float, str]]] = [[] for _ in range(NODES)]
        self.pipes: list[Connection] = []
        self.processes = []
        for index in range(NODES):
            home = folder / str(index)
            home.mkdir(parents=True)
            ours, theirs = context.Pipe()
            process = context.Process(target=run_node, args=(index, addresses, home, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def told(self, index: int, text: str) -> list[float]:
        """Return when this node logged lines with this text."""
        return [at for at, line in self.lines[index] if text in line]

    def until(self, text: str, times: int, of: Iterable[int], deadline: float) -> set[int]:
        """Read until each of these nodes has logged this text `times` times; return those that had not by the deadline."""
        missing = set(of)
        while missing and (left := deadline - time.time()) > 0:
            ready = wait([self.pipes[i] for i in missing], left)
            for index in [i for i in missing if self.pipes[i] in ready]:
                self.lines[index].append(self.pipes[index].recv())
                if len(self.told(index, text)) == times:
                    missing.discard(index)
        return missing

    def kill_in_training(self) -> float:
        """Connect the nodes, start the run, kill the victim as it begins to train; return when."""
        everyone = range(NODES)
        if late := self.until("connected", 1, everyone, time.time() + STARTUP_S):
            raise SystemExit(f"nodes {late} did not connect; --logs keeps what they print")
        for index in everyone:
            self.pipes[index].send(index == 0)
        if self.until("Training...", KILL_ROUND, [VICTIM], time.time() + STARTUP_S):
            raise SystemExit(f"round {KILL_ROUND} did not begin; --logs keeps what the nodes print")
        self.processes[VICTIM].kill()
        return time.time()


def row(index: int, ends: list[float], death: float, finished: bool) -> list[object]:
    """Return a survivor's row; a round that was going on at the cap counts as long as it had lasted."""
    known = ends if finished else [*ends, time.time()]
    rounds = [(end, end - begin) for begin, end in pairwise(known)]
    usual = median(seconds for end, seconds in rounds if end < death)
    after = [seconds for end, seconds in rounds if end > death]
    return [
        index,
        f"{usual:.1f}",
        ", ".join(f"{s:.1f}" for s in after),
        f"{max(after) - usual:.1f}",
        f"{len(ends)} of {ROUNDS}",
        "yes" if finished else "no",
    ]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--logs", type=Path, help="a new folder for what the nodes print")
    arguments = parser.parse_args()
    survivors = sorted(set(range(NODES)) - {VICTIM})
    with tempfile.TemporaryDirectory() as temporary:
        nodes = Nodes(arguments.logs or Path(temporary))
        death = nodes.kill_in_training()
        unfinished = nodes.until("Training finished", 1, survivors, death + CAP_S)
        for process in nodes.processes:
            process.kill()
            process.join()
    rows = [row(i, nodes.told(i, " finished."), death, i not in unfinished) for i in survivors]
    header = (
        "survivor",
        "seconds per round before the kill",
        "rounds from the kill on, s",
        "seconds lost",
        "rounds finished",
        "run finished",
    )
    title = f"p2pfl 0.4.4: kill -9 of 1 of {NODES} nodes in round {KILL_ROUND}"
    record("p2pfl-kill", title, header, rows, save=arguments.save)


if __name__ == "__main__":
    main()
