"""What loading costs: a peer with 600 samples until it could train, and a testbed's data set, held once or N times.

    python benchmarks/loading.py --data-root DIR [--peers 100] [--markdown FILE]

Part 1 starts fresh processes, which import torch and then make everything that a peer with a shard file of 600 MNIST
samples needs before its first round. Part 2 forks peers as a testbed does, with MNIST dealt to them, waits until each has
loaded its samples and trained once, and adds up their memory from /proc/<pid>/smaps_rollup: ``Private_*`` is a peer's
own, ``Pss`` its fair share of what is shared. Beside it, the same where each peer decodes the data set for itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common import show

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.algorithms.learner import TrainingPlan

REPEATS = 5
SAMPLES = 600
AIM_S = 3.0
MEGABYTE = 1 << 20

START = """
import sys, time
began = time.perf_counter(), time.process_time()
import torch
imported = time.perf_counter(), time.process_time()
from pathlib import Path
from coordinator_free_bootstrap import load_graph
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.world import AsyncioWorld
parts = assemble(0, load_graph(Path(sys.argv[1])), LocalSettings(Path(sys.argv[2]), shard=Path(sys.argv[3]), insecure=True))
AsyncioWorld(parts)
ended = time.perf_counter(), time.process_time()
print(*(b - a for a, b in zip(began + imported, imported + ended)))
"""


def mnist_graph(peers: int) -> Graph:
    """Return a testbed's graph: MNIST, `SAMPLES` samples a peer, MLP 200."""
    manifest = parse_manifest(
        {
            "task": "mnist",
            "model": "mlp",
            "model_options": {"hidden": 200},
            "split_options": {"samples_per_peer": SAMPLES, "test_per_peer": 100},
        },
        "benchmark",
    )
    return make_graph("erdos-renyi", peers, degree=min(6, peers - 1), manifest=manifest)


def write_shard(graph: Graph, data_root: Path, path: Path) -> None:
    """Write peer 0's data as a shard file, as `peer data split` does."""
    from peer.tasks.loading import load_task
    from peer.tasks.shard_file import save_shard

    save_shard(path, load_task(graph.manifest, len(graph.nodes), data_root=data_root).load_shard(0))


def start_seconds(data_root: Path) -> list[float]:
    """Return medians over fresh processes: importing torch (wall, CPU), and from there until the peer could begin."""
    graph = mnist_graph(8)
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        save_graph(graph, place / "graph.json")
        write_shard(graph, data_root, place / "shard.safetensors")
        for repeat in range(REPEATS + 1):
            files = [place / "graph.json", place / f"state-{repeat}", place / "shard.safetensors"]
            done = subprocess.run([sys.executable, "-c", START, *files], capture_output=True, text=True, check=True)
            measured.append([float(seconds) for seconds in done.stdout.split()])
    return [statistics.median(column) for column in zip(*measured[1:], strict=True)]  # the first reads the disk


def memory(pid: int | str = "self") -> dict[str, int]:
    """Return a process's memory in bytes, by kind."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kinds = {name.rstrip(":"): int(size) * 1024 for name, size, *_ in map(str.split, rows)}
    return {"private": kinds["Private_Clean"] + kinds["Private_Dirty"], "pss": kinds["Pss"]}


def _hold(graph: Graph, peer_id: int, data_root: Path, ready: Connection) -> None:
    """Hold the data and the learner of one peer until asked to end."""
    from peer.learning.learner import Learner
    from peer.tasks.loading import load_task
    from peer.zoo.tasks import datasets, dealing

    if not _PRELOADED:
        datasets._load.cache_clear()
        dealing._split.cache_clear()
    task = load_task(graph.manifest, len(graph.nodes), data_root=data_root)
    learner = Learner(task, task.load_shard(peer_id))
    learner.train(learner.initial_model(0), TrainingPlan(epochs=1, seed=0, learning_rate=0.1))
    ready.send(memory())
    ready.recv()


_PRELOADED = True


def testbed_memory(peers: int, data_root: Path, *, preloaded: bool) -> list[dict[str, int]]:
    """Return each forked peer's memory once all of them hold their data."""
    global _PRELOADED  # noqa: PLW0603, read by the forked children
    from peer.bed.testbed.warm_up import warm_up

    _PRELOADED = preloaded
    graph = mnist_graph(peers)
    warm_up(graph, data_root)
    context = multiprocessing.get_context("fork")
    held: list[tuple[Any, Connection]] = []
    for peer_id in graph.ids:
        ours, theirs = context.Pipe()
        process = context.Process(target=_hold, args=(graph, peer_id, data_root, theirs))
        process.start()
        held.append((process, ours))
    for _, ours in held:
        ours.recv()
    found = [memory(process.pid) for process, _ in held]
    for process, ours in held:
        ours.send(None)
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    torch_s, torch_cpu_s, beyond_s, beyond_cpu_s = start_seconds(arguments.data_root)
    rows: list[tuple[object, ...]] = [
        ("import torch", f"{torch_s:.2f} s ({torch_cpu_s:.2f} s of CPU)", ""),
        (
            f"beyond it, until a peer with {SAMPLES} samples could begin",
            f"{beyond_s:.2f} s ({beyond_cpu_s:.2f} s of CPU)",
            f"below {AIM_S:g} s",
        ),
    ]
    data = 70_000 * 28 * 28 / MEGABYTE
    own = SAMPLES * 28 * 28 * 4 / MEGABYTE
    for preloaded, peers in ((True, arguments.peers), (False, min(arguments.peers, 16))):
        found = testbed_memory(peers, arguments.data_root, preloaded=preloaded)
        private = statistics.median(each["private"] for each in found) / MEGABYTE
        shared = sum(each["pss"] for each in found) / MEGABYTE
        how = "decoded once, before the fork" if preloaded else "decoded by every peer"
        aim = f"own samples are {own:.1f} MB, the whole set {data:.0f} MB"
        rows.append((f"{peers} peers, MNIST {how}: private memory a peer", f"{private:.1f} MB", aim))
        rows.append((f"{peers} peers, MNIST {how}: all peers together (Pss)", f"{shared:.0f} MB", ""))
    show("Loading", ("what", "measured", "aim, or for comparison"), rows, arguments.markdown)


if __name__ == "__main__":
    main()
