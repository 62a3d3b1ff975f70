"""Accuracy of peers that cannot be dialed and of their neighbors: alone, without tunnels, with tunnels, and without a firewall.

Each run is of real processes, a ring in which a third of the peers sit behind a firewall that lets nothing in. *Without tunnels*
those peers do not open any, as before tunnels existed: their neighbors cannot call them. Every other part is the same.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from common import show
from testbeds import Outcome, loopback_graph, run

from coordinator_free_bootstrap import Graph
from peer.lab.comparison import half_width
from peer.runtime.edges import Edges

CLOSED = "127.0.0.1:9"  # nothing listens there
PEERS, BEHIND = 6, (1, 4)
SETTINGS = [
    "run.split=iid",
    "run.batch_size=10",
    "run.model_options.hidden=16",
    "run.start.deadline_s=5",
    "run.timeouts.heartbeat_s=0.5",
    "run.timeouts.suspicion_s=10",
    "run.timeouts.round_deadline_s=20",
]
CASES = {  # name -> algorithm, firewall, tunnels
    "local": ("local", False, False),
    "dfedavg, without tunnels": ("dfedavg", True, False),
    "dfedavg, with tunnels": ("dfedavg", True, True),
    "dfedavg, no firewall": ("dfedavg", False, False),
}


def dials_only(graph: Graph) -> Graph:
    """Return the graph in which the peers behind the firewall only dial."""
    nodes = (replace(node, address="", dials_only=True) if node.id in BEHIND else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@contextmanager
def no_tunnels() -> Iterator[None]:
    """Let nobody call the peers behind the firewall, and let those open no tunnel."""
    open_links = Edges.open

    def opened(edges: Edges, *, offers: bool = True) -> None:
        open_links(edges, offers=offers)
        for neighbor in edges.links.keys() & set(BEHIND):
            edges.links[neighbor].redirect(CLOSED)

    with patch.object(Edges, "open", opened), patch.object(Edges, "offer_to", lambda _edges, _neighbor: None):
        yield


def outcome_of(case: str, rounds: int, samples: int, seed: int) -> Outcome:
    """Run one case with one seed."""
    algorithm, firewall, tunnels = CASES[case]
    settings = [*SETTINGS, f"run.algorithm={algorithm}", f"run.rounds={rounds}", f"run.seed={seed}"]
    settings += [f"run.split_options.samples_per_peer={samples}", "run.split_options.test_per_peer=100"]
    graph = loopback_graph("ring", PEERS, settings)
    if firewall and tunnels:
        return run(dials_only(graph))
    if firewall:
        with no_tunnels():
            return run(graph)
    return run(graph)


def accuracies(outcome: Outcome) -> tuple[float, float, float]:
    """Return the mean accuracy behind the firewall and of the others, in percent, and the models folded per peer and round."""
    last, folded = {}, []
    for peer_id, history in outcome.histories.items():
        rounds = [line for line in history if line["kind"] == "round"]
        last[peer_id] = 100 * rounds[-1]["accuracy"]
        folded += [len(line["folded"]) for line in rounds]
    behind = statistics.mean(last[peer_id] for peer_id in BEHIND)
    return behind, statistics.mean(last[p] for p in last if p not in BEHIND), statistics.mean(folded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--samples", type=int, default=60, help="of a peer")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        outcomes = [outcome_of(case, arguments.rounds, arguments.samples, seed) for seed in arguments.seeds]
        behind, beside, folded = (list(values) for values in zip(*map(accuracies, outcomes), strict=True))
        seconds = statistics.mean(outcome.seconds for outcome in outcomes)
        rows.append([case, shown(behind), shown(beside), f"{statistics.mean(folded):.2f}", f"{seconds:.0f}"])
    header = (
        "run",
        "accuracy behind the firewall, %",
        "accuracy of their neighbors, %",
        "models folded per peer and round",
        "seconds",
    )
    show(
        f"ring of {PEERS}, peers {BEHIND} behind a firewall, {len(arguments.seeds)} seeds",
        header,
        rows,
        arguments.markdown,
    )


def shown(values: list[float]) -> str:
    """Return the mean and half of its 95 % interval over the seeds."""
    half = half_width(values)
    return f"{statistics.mean(values):.1f}" + ("" if half is None else f" ± {half:.1f}")


if __name__ == "__main__":
    main()
