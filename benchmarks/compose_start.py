"""Benchmark 16, start in containers: `docker-compose up` until eight peers listen, and until the first round is closed.

The repository's graph, its compose file, and an image that is there. Times are those of the peers' own histories
(`history.jsonl`: `start`, `round`); processor seconds are those of each container's control group, read when all peers have
closed the first round. Without a running Docker engine, root starts one from Debian's packages, and the image is built first.

    python benchmarks/compose_start.py [--runs 3] [--in-image] [--markdown FILE]

``--in-image`` runs `benchmarks/startup.py --installed` in the image instead: a lone `peer run`, stage by stage.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from common import show
from testbeds import wall

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "compose"), str(ROOT / "tests")]
import engine  # noqa: E402 - of the tests of containers
from project import Project  # noqa: E402

from coordinator_free_bootstrap import Graph, load_graph  # noqa: E402

LISTENING_AIM_S, ROUND_AIM_S = 15.0, 5.0


def history(container: Any) -> list[dict[str, Any]]:
    """Return the history of a peer, read from its volume; empty before its first line."""
    try:
        parts, _ = container.get_archive("/state/history.jsonl")
    except Exception as error:  # of the engine's client: the file is not there yet
        if getattr(error, "status_code", None) != 404:
            raise
        return []
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        file = archive.extractfile(archive.getmembers()[0])
        assert file is not None
        lines = file.read().decode().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first(container: Any, kind: str) -> float | None:
    """Return when a peer wrote its first line of a kind."""
    return next((wall(line) for line in history(container) if line["kind"] == kind), None)


def measured(host: str, graph: Graph) -> tuple[float, float, float]:
    """Bring the project up once: seconds to listening, from there to the end of round 1, processor seconds of a peer."""
    with tempfile.TemporaryDirectory(prefix="compose-start-") as name, Project(host, Path(name), graph) as project:
        began = time.time()
        with project.started("up", "--no-color") as up:
            try:
                peers = {i: project.until(partial(project.peer, i), f"a container of peer {i}") for i in graph.ids}
                closed = {
                    i: project.until(partial(first, peers[i], "round"), f"peer {i} closes a round") for i in graph.ids
                }
                started = [first(peer, "start") or began for peer in peers.values()]
                used = [peer.stats(stream=False)["cpu_stats"]["cpu_usage"]["total_usage"] for peer in peers.values()]
            finally:
                up.terminate()
                up.communicate(timeout=120)
    listening = max(started)
    return listening - began, max(closed.values()) - listening, statistics.mean(used) / 1e9


def in_image(host: str) -> None:
    """Run the benchmark of a lone start in the image."""
    command = ["docker", "-H", host, "run", "--rm", "-v", f"{ROOT}/benchmarks:/benchmarks:ro", "--tmpfs", "/tmp:exec"]
    startup = ["--entrypoint", "python", engine.IMAGE, "/benchmarks/startup.py", "--installed"]
    subprocess.run([*command, *startup], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--in-image", action="store_true", help="a lone peer, stage by stage")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    graph = load_graph(ROOT / "deploy" / "graph.json")
    with engine.engine() as host:
        engine.build(host)
        if options.in_image:
            in_image(host)
            return
        rows = []
        for run in range(options.runs):
            listening_s, round_s, processor_s = measured(host, graph)
            rows.append([run + 1, f"{listening_s:.1f}", f"{round_s:.1f}", f"{processor_s:.2f}"])
    header = [
        "run",
        f"all listening after s (aim {LISTENING_AIM_S:.0f})",
        f"first round closed, s later (aim {ROUND_AIM_S:.0f})",
        "processor s of a peer so far",
    ]
    show("Start in containers, 8 peers", header, rows, options.markdown)


if __name__ == "__main__":
    main()
