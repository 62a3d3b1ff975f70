"""A peer that ends in mid-run and is restarted: what its neighbors lose after SIGTERM, and after kill -9.

Real processes with TLS. The hub of a star ends, or a leaf behind a firewall, whose edge is a tunnel that it opens; with and
without declared limits of all links. *Rounds alone* are a neighbor's rounds in which it folded nothing; *rounds skipped* are
those that the restarted peer catches up with.
"""

from __future__ import annotations

import argparse
import signal
import time
from dataclasses import replace
from pathlib import Path

from common import show
from testbeds import directory, last_round, loopback_graph

from coordinator_free_bootstrap import Graph
from peer.bed.testbed.testbed import Testbed
from peer.bed.testbed.warm_up import warm_up
from peer.store.history import read_history
from peer.store.state_dir import StateDir

HUB, BEHIND = 0, 1
WHO = {"the hub": HUB, "a leaf behind a firewall": BEHIND}
SIGNALS = {"SIGTERM": signal.SIGTERM, "kill -9": signal.SIGKILL}
SETTINGS = ["run.model_options.hidden=32", "run.algorithm=dfedavg", "run.start.deadline_s=120"]


def star(peers: int, rounds: int, limit: int | None) -> Graph:
    """Return a star of which leaf `BEHIND` only dials; ``limit``: bytes per second of each peer's upload."""
    graph = loopback_graph("star", peers, [*SETTINGS, f"run.rounds={rounds}"])
    nodes = [replace(node, upload_limit=limit) for node in graph.nodes]
    nodes[BEHIND] = replace(nodes[BEHIND], address="", dials_only=True)
    return replace(graph, nodes=tuple(nodes))


def row(case: str, graph: Graph, ends: int, at_round: int, away_s: float, limit_s: float) -> list[object]:
    """Run one case; ``ends``: the peer that ends in round ``at_round``, and starts again ``away_s`` s later at the earliest."""
    with directory() as out:
        warm_up(graph, None)
        bed = Testbed(graph, out, insecure=False)
        bed.start()
        began = time.monotonic()
        try:
            place = StateDir.of_peer(out, ends).history
            while not place.exists() or last_round(place)[0] < at_round:
                bed.poll(0.02)
            bed.signal(ends, SIGNALS[case])
            back_at = time.monotonic() + away_s
            while ends in bed.processes:
                bed.poll(0.02)
            gone = bed.exit_codes[ends]
            while time.monotonic() < back_at:
                bed.poll(0.02)
            bed.start([ends])
            while bed.processes and time.monotonic() < began + limit_s:
                bed.poll(0.2)
            seconds = time.monotonic() - began
        finally:
            bed.stop()
        lines = {peer: read_history(StateDir.of_peer(out, peer).history) for peer in graph.ids}
        alone = [
            sum(line["kind"] == "round" and not line["folded"] for line in lines[n]) for n in graph.neighbors(ends)
        ]
        skipped = sum(line["to_round"] - line["from_round"] for line in lines[ends] if line["kind"] == "caught_up")
        codes = sorted({code for peer, code in bed.exit_codes.items()})
        return [gone, f"{min(alone)} to {max(alone)}", skipped, codes, f"{seconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--at", type=int, default=34, help="round of the end")
    parser.add_argument(
        "--away", type=float, nargs="+", default=[0.0, 15.0], help="seconds from the signal to the restart"
    )
    parser.add_argument(
        "--upload", type=int, default=200_000, help="bytes per second of each peer, in the runs with limits"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run at most")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows = []
    for who, ends in WHO.items():
        for limit in (None, arguments.upload):
            for away_s in arguments.away:
                for case in SIGNALS:
                    graph = star(arguments.peers, arguments.rounds, limit)
                    found = row(case, graph, ends, arguments.at, away_s, arguments.limit)
                    limited = f"{limit} B/s" if limit else "none"
                    rows.append([who, limited, f"{away_s:g} s", case, *found])
                    print(*rows[-1], sep=" | ", flush=True)
    header = (
        "ends", "upload limits", "away", "by", "exit code", "rounds alone of its neighbors", "rounds skipped by it",
        "exit codes at the end", "seconds",
    )  # fmt: skip
    title = f"star of {arguments.peers} peers with TLS and a tunnel, {arguments.rounds} rounds, ended in round {arguments.at}"
    show(title, header, rows, arguments.markdown)


if __name__ == "__main__":
    main()
