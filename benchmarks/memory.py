"""Benchmark 3, memory: what one peer costs beyond its models, in a testbed and alone.

Private memory (smaps_rollup: Private_Clean + Private_Dirty) in the middle of a run. A peer's models are its k slots, one second
average, the arrivals in flight, and PyTorch's copy with its gradient: counted as k + 4 models and subtracted.

    python benchmarks/memory.py [--peers 8] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from common import show
from testbeds import QUICK, directory, loopback_graph, private_mb, run

from coordinator_free_bootstrap import save_graph
from peer.bed.testbed.testbed import Testbed
from peer.store.history import read_history
from peer.store.state_dir import StateDir

MODELS_BESIDE_SLOTS = 4
ROUND = 10  # sampled after this one: buffers have reached their size by then


def in_testbed(peers: int) -> tuple[float, float]:
    """Return the median private MB of a forked peer, and its models' MB."""
    graph = loopback_graph("regular", peers, [*QUICK, "run.rounds=40"], degree=4)
    samples: dict[int, float] = {}

    def sample(bed: Testbed, out: Path) -> None:
        for peer in bed.processes:
            if peer not in samples and len(read_history(StateDir.of_peer(out, peer).history)) > ROUND + 6:
                samples[peer] = private_mb(bed.pid(peer))

    outcome = run(graph, while_running=sample)
    parameters = next(outcome.lines("start"))["parameters"]
    slots = graph.manifest.clusters
    return statistics.median(samples.values()), (slots + MODELS_BESIDE_SLOTS) * parameters * 4 / 1e6


def alone() -> tuple[float, float]:
    """Return the largest private MB of `peer run`, sampled while it lives, and its models' MB."""
    graph = loopback_graph("complete", 2, [*QUICK, "run.rounds=60"])
    with directory() as out:
        save_graph(graph, out / "graph.json")
        program = [sys.executable, "-m", "peer", "run", "--insecure", "--neighbors", str(out / "graph.json")]
        commands = [[*program, "--id", str(i), "--state-dir", str(out / f"peer-{i}")] for i in graph.ids]
        processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
        largest = 0.0
        while processes[0].poll() is None:
            try:
                largest = max(largest, private_mb(processes[0].pid))
            except (FileNotFoundError, ProcessLookupError):
                break
            try:
                processes[0].wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        codes = [process.wait(60) for process in processes]
        if any(codes):
            raise RuntimeError(f"peer run failed: exit codes {codes}")
        start = json.loads((out / "peer-0" / "history.jsonl").read_text().splitlines()[0])
    return largest, (graph.manifest.clusters + MODELS_BESIDE_SLOTS) * start["parameters"] * 4 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = []
    for name, (private, models), aim in (
        (f"testbed of {options.peers}, each peer", in_testbed(options.peers), 18),
        ("one peer run", alone(), 190),
    ):
        rows.append([name, f"{private:.1f}", f"{models:.1f}", f"{private - models:.1f}", aim])
    show("Memory", ["what", "private MB", "its models MB", "beyond models MB", "aim MB"], rows, options.markdown)


if __name__ == "__main__":
    main()
