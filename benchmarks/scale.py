"""Benchmark 4, scale: many peers on one machine; start-up, handshakes, three rounds, control traffic.

python benchmarks/scale.py [--peers 100] [--degree 6] [--rounds 3] [--markdown FILE]
python benchmarks/scale.py --peers 1000 --degree 4 --kind regular
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from common import show
from testbeds import loopback_graph, private_mb, run, wall

from peer.bed.testbed.testbed import Testbed

# A thousand processes on two cores answer late: suspicion must be longer than the longest queue for a core.
PATIENT = [
    "run.task=linear",
    "run.split=linear_synth",
    "run.timeouts.heartbeat_s=30",
    "run.timeouts.suspicion_s=240",
    "run.timeouts.idle_transfer_s=240",
    "run.timeouts.round_deadline_s=1200",
    "run.start.deadline_s=600",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--degree", type=float, default=6)
    parser.add_argument(
        "--kind", default="erdos-renyi", help="with 1000 peers of degree 4 a random graph is never connected"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    settings = [*PATIENT, f"run.rounds={options.rounds}", *options.settings]
    graph = loopback_graph(options.kind, options.peers, settings, degree=options.degree)
    peaks: list[float] = []

    def sample(bed: Testbed, out: Path) -> None:
        if len(bed.processes) == options.peers and len(peaks) < 5:
            peer = len(peaks) * options.peers // 5
            peaks.append(private_mb(bed.pid(peer)))

    outcome = run(graph, while_running=sample, limit_s=1800)
    live = max(wall(line) for line in outcome.lines("neighbor") if line["state"] == "alive") - outcome.started_at
    done = max(wall(line) for line in outcome.lines("round")) - outcome.started_at
    controls = [line["control_messages_sent"] for line in outcome.lines("round")]
    models = [line["models_sent"] for line in outcome.lines("round")]
    degree = 2 * len(graph.edges) / options.peers
    rows = [
        [
            options.peers,
            f"{degree:.1f}",
            f"{live:.1f}",
            f"{done:.1f}",
            f"{statistics.mean(models):.2f}",
            f"{statistics.mean(controls):.2f}",
            f"{max(peaks, default=0):.1f}",
        ]
    ]
    header = [
        "peers",
        "degree",
        "all live s",
        "rounds done s",
        "models per peer-round",
        "control messages",
        "private MB",
    ]
    show(f"Scale, {options.rounds} rounds", header, rows, options.markdown)


if __name__ == "__main__":
    main()
