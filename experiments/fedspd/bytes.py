"""Payload bytes of FedSPD, DFCA and FedEM on one graph, measured over real processes, beside the formulas.

    python experiments/fedspd/bytes.py --peers 10 --degree 4 --rounds 10

Formulas (specification, section 11), summed over rounds and peers, times the bytes of one model: DFCA deg(i); FedEM S deg(i);
FedSPD broadcast deg(i); FedSPD same_cluster the neighbors that selected what i selected, as the history records it. Exit code 1
if any number differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph, Manifest, make_graph
from peer.assembly import load_task
from peer.learning.learner import Learner
from peer.observe.run_files import Run
from peer.testbed import Testbed, free_ports, warm_up

PAPER = {"first_round": "paper"}
METHODS: dict[str, dict[str, Any]] = {
    "FedSPD same_cluster": {"algorithm": "fedspd", "options": PAPER},
    "FedSPD broadcast": {"algorithm": "fedspd", "options": PAPER | {"exchange": "broadcast"}},
    "DFCA": {"algorithm": "dfca"},
    "FedEM": {"algorithm": "fedem"},
}


def graph_of(arguments: argparse.Namespace, method: str) -> Graph:
    """Return the same graph for every method, on fresh ports."""
    manifest = Manifest(
        split="rotated_soft",
        rounds=arguments.rounds,
        clusters=arguments.clusters,
        model_options={"hidden": 64},
        **METHODS[method],
    )
    made = make_graph("erdos-renyi", arguments.peers, seed=arguments.seed, degree=arguments.degree)
    ports = free_ports(arguments.peers)
    nodes = tuple(replace(node, address=f"127.0.0.1:{port}") for node, port in zip(made.nodes, ports, strict=True))
    return Graph(nodes, made.edges, manifest)


def models_by_formula(run: Run) -> int:
    """Return how many models the formula gives for a run."""
    graph, m = run.graph, run.graph.manifest
    directed = 2 * len(graph.edges) * m.rounds
    if m.algorithm == "fedem":
        return m.clusters * directed
    if m.algorithm == "dfca" or m.options.get("exchange") == "broadcast":
        return directed
    chosen = {peer.peer_id: {t: line["selected_cluster"] for t, line in peer.rounds.items()} for peer in run.peers}
    return sum(chosen[i][t] == chosen[n][t] for i in graph.ids for n in graph.neighbors(i) for t in range(m.rounds))


def main() -> int:
    """Run every method and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--degree", type=float, default=4)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows, wrong = [], 0
    for method in METHODS:
        graph = graph_of(arguments, method)
        task = load_task(graph.manifest, arguments.peers)
        model_bytes = 4 * Learner(task, task.load_shard(0)).schema.size
        with tempfile.TemporaryDirectory() as directory:
            warm_up(graph, None)
            bed = Testbed(graph, Path(directory), threads=1)
            bed.start()
            failed = any(bed.run().values())
            run = Run.read(Path(directory))
            # Models that a finished neighbor was still reading are counted in the line that ends a history.
            lines = [line for peer in run.peers for line in peer.history if line["kind"] in ("round", "end")]
            measured = sum(line["payload_bytes_sent"] for line in lines)
            said = sum(line["announcements_sent"] for line in lines)
            formula = models_by_formula(run) * model_bytes
        wrong += failed or measured != formula
        rows.append((method, measured, formula, said))
    base = rows[-1][1]
    setting = f"{arguments.peers} peers, {len(graph.edges)} edges, S = {arguments.clusters}, {arguments.rounds} rounds"
    print(f"{setting}, {model_bytes} B a model\n")
    print("| method | measured bytes | formula | of FedEM | announcements |\n|---|---|---|---|---|")
    for method, measured, formula, said in rows:
        print(f"| {method} | {measured:,} | {formula:,} | {measured / base:.3f} | {said} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
