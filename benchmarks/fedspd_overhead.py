"""What a round of FedSPD costs beside its training, against DFCA: 8 real processes each, one after the other, several times.

    python benchmarks/fedspd_overhead.py

Overhead of a round = its seconds without training and evaluation: announcing, waiting, exchanging, folding, bookkeeping. The
median over all rounds and peers; first rounds, in which peers start, are left out. Exit code 1 if FedSPD's overhead is above
``--limit`` (1.2) times DFCA's. FedSPD announces before it exchanges, and sends about 1/S of the models.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.bed.testbed.ports import free_ports
from peer.bed.testbed.testbed import Testbed
from peer.bed.testbed.warm_up import warm_up
from peer.view.state.run_files import Run

SKIPPED_ROUNDS = 3


def overheads(algorithm: str, arguments: argparse.Namespace) -> list[float]:
    """Run one testbed; return seconds of overhead of each peer and round."""
    manifest = Manifest(
        algorithm=algorithm,
        split="rotated_soft",
        rounds=arguments.rounds,
        evaluate_every=arguments.rounds,
        model_options={"hidden": arguments.hidden},
    )
    made = make_graph("erdos-renyi", arguments.peers, seed=1, degree=4)
    ports = free_ports(arguments.peers)
    nodes = tuple(replace(node, address=f"127.0.0.1:{port}") for node, port in zip(made.nodes, ports, strict=True))
    with tempfile.TemporaryDirectory() as directory:
        graph = Graph(nodes, made.edges, manifest)
        warm_up(graph, None)
        bed = Testbed(graph, Path(directory), threads=1)
        bed.start()
        if any(bed.run().values()):
            sys.exit(f"{algorithm}: a peer failed")
        lines = [line for peer in Run.read(Path(directory)).peers for line in peer.round_lines]
    spent = [line["seconds"] for line in lines if line["round_index"] >= SKIPPED_ROUNDS]
    return [row["wait"] + row.get("fold", 0.0) + row["other"] for row in spent]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--limit", type=float, default=1.2)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"dfca": [], "fedspd": []}
    for repeat in range(arguments.repeats):
        for algorithm, seconds in found.items():
            seconds.extend(overheads(algorithm, arguments))
            print(f"repeat {repeat}: {algorithm} median {1e3 * statistics.median(seconds):.1f} ms", flush=True)
    dfca, fedspd = (statistics.median(found[name]) for name in ("dfca", "fedspd"))
    ratio = fedspd / dfca
    print(
        f"round overhead: dfca {1e3 * dfca:.1f} ms, fedspd {1e3 * fedspd:.1f} ms, ratio {ratio:.2f}, limit {arguments.limit}"
    )
    return 0 if ratio <= arguments.limit else 1


if __name__ == "__main__":
    sys.exit(main())
