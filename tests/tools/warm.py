"""A process that has imported everything and forks testbeds on request, so that the testbed of a test starts fast.

The test process cannot fork peers: it uses gRPC, which does not support forks. Requests and answers are JSON lines on stdin
and stdout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from coordinator_free_bootstrap import load_graph, make_graph
from peer.chaos.network import FaultyNetwork
from peer.chaos.runner import FaultRunner
from peer.chaos.script import Script
from peer.observe.watch import TestbedWatcher
from peer.testbed.testbed import Testbed, warm_up


def run_bed(request: dict) -> None:
    """Run one testbed and write its failed peers, exit codes and counters to ``bed.json``."""
    directory = Path(request["directory"])
    graph = load_graph(directory / "graph.json")
    bed = Testbed(graph, directory, threads=1, insecure=request["insecure"])
    network = FaultyNetwork(bed.graph, seed=1) if request["proxy"] else None
    bed.graph_of = network.graph_of if network else bed.graph_of
    bed.failpoints = {int(peer_id): text for peer_id, text in request["failpoints"].items()}
    watcher = TestbedWatcher(directory, graph)
    runner = FaultRunner(bed, Script(**request["script"]), network, watcher.rounds_completed)
    bed.start(*sorted(set(graph.ids) - runner.late - set(request["late"])))
    failed = runner.run(watcher.refresh, interval_s=0.05)
    result = {"failed": failed, "exit_codes": bed.exit_codes, "counters": runner.last_counters}
    temporary = directory / "bed.json.new"
    temporary.write_text(json.dumps(result))
    temporary.rename(directory / "bed.json")


def main() -> None:
    warm_up(make_graph("ring", 4), None)
    import peer.algorithms.registry  # noqa: F401  needed by every peer and not imported by warm_up

    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "wait":
            pid, _ = os.waitpid(request["pid"], os.WNOHANG)
            print(json.dumps({"ended": pid != 0}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.setsid()
            with open(Path(request["directory"]) / "bed.log", "ab") as log, open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            code = 1
            try:
                run_bed(request)
                code = 0
            finally:
                import traceback

                if code:
                    traceback.print_exc()
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
