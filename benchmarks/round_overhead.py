"""Benchmark 2, round overhead: seconds of a round that are neither training nor evaluation, by number of peers.

A testbed of real peers on a complete graph (the densest, and what others measure), an MLP of 85,002 parameters, one epoch a
round. A peer's overhead is the wall time of its round minus its own training and evaluation: sending, waiting for neighbors (also
for their training, since all peers share this machine's cores), folding, checkpointing.

    python benchmarks/round_overhead.py [--peers 2 4 8 16] [--rounds 20] [--set run.algorithm=dfca] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from common import show
from testbeds import QUICK, loopback_graph, run

MODEL = ["run.model=mlp", "run.model_options.hidden=[256,256]", "run.local_epochs=1", "run.batch_size=100"]
# Earlier measurements of others on such a machine, same model and data: seconds per round, of which 0.25 are training.
P2PFL_S = {2: 2.47, 4: 3.49, 8: 7.2}


def measure(peers: int, rounds: int, settings: list[str]) -> tuple[float, float, float, float]:
    """Return the medians of overhead, round, training seconds, and the 95th percentile of overhead."""
    graph = loopback_graph("complete", peers, [*QUICK, *MODEL, f"run.rounds={rounds}", *settings])
    lines = [line for line in run(graph).lines("round") if line["round_index"] > 0]
    totals = [sum(line["seconds"].values()) for line in lines]
    own = [line["seconds"].get("train", 0) + line["seconds"].get("evaluate", 0) for line in lines]
    overhead = sorted(total - mine for total, mine in zip(totals, own, strict=True))
    return (
        statistics.median(overhead),
        statistics.median(totals),
        statistics.median(own),
        overhead[int(0.95 * len(overhead))],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = []
    for peers in options.peers:
        overhead, total, own, high = measure(peers, options.rounds, options.settings)
        theirs = P2PFL_S.get(peers)
        ratio = f"{(theirs - 0.25) / overhead:.0f}x" if theirs else ""
        rows.append([peers, f"{overhead:.3f}", f"{high:.3f}", f"{own:.3f}", f"{total:.3f}", theirs or "", ratio])
    header = ["peers", "overhead s", "95 %", "train + evaluate s", "round s", "p2pfl round s", "overhead ratio"]
    show("Round overhead", header, rows, options.markdown)


if __name__ == "__main__":
    main()
