"""The page of a large run in Chromium: seconds to load it, and frames a second of its replay.

    python benchmarks/page.py --peers 1000 --rounds 200

Writes the run's files itself: a graph of degree 8, four clusters, complete histories. First load: with the start of the
server, which reads the files. Load: from the request of the page to the first drawing of all views, with that server.
Replay: frames drawn in `--seconds` at 10 rounds a second, and the milliseconds of a frame's script (median, worst tenth).
Processor seconds are those of server and browser with all their processes; they hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest, save_graph
from peer.store.state_dir import StateDir

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "browser")]

from chromium import Tab, browser, missing
from common import machine
from tools.running import running, until

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTERS = 4


def write_run(directory: Path, peers: int, rounds: int) -> Graph:
    """Write the files of a completed run."""
    manifest = parse_manifest({"rounds": rounds, "clusters": CLUSTERS}, "benchmark")
    graph = make_graph("erdos-renyi", peers, seed=1, degree=8.0, manifest=manifest)
    save_graph(graph, directory / "graph.json")
    random = np.random.default_rng(1)
    for peer_id in graph.ids:
        place = StateDir.of_peer(directory, peer_id)
        place.create()
        place.history.write_text("".join(lines(graph, peer_id, rounds, random)))
    return graph


def lines(graph: Graph, peer_id: int, rounds: int, random: np.random.Generator) -> list[str]:
    """Return a peer's history."""
    neighbors, final, fixed = graph.neighbors(peer_id), random.uniform(0.85, 0.97), int(random.integers(2, 30))
    found = [line(0.0, "start", peer_id, peer_id=peer_id, true_cluster=peer_id % CLUSTERS, resumed_from=None)]
    for index in range(rounds):
        cluster = peer_id % CLUSTERS if index >= fixed else int(random.integers(CLUSTERS))
        fields = {
            "round_index": index,
            "neighbors_alive": len(neighbors),
            "folded": [[neighbor, 1 << 32, index, 0, cluster] for neighbor in neighbors],
            "missing": [],
            "accuracy": float(final - 0.6 * np.exp(-index / 20) + random.normal(0, 0.005)),
            "loss": 1.0,
            "train_loss": 1.0,
            "cluster_index": cluster,
            "models_sent": len(neighbors),
            "models_folded": len(neighbors),
            "payload_bytes_sent": 76_840 * len(neighbors),
            "wire_bytes_sent": 77_000 * len(neighbors),
            "seconds": {"train": 0.3, "wait": 0.2, "fold": 0.05, "evaluate": 0.02, "other": 0.01},
        }
        found.append(line(1.0 + index, "round", peer_id, **fields))
    found.append(line(1.0 + rounds, "end", peer_id, rounds_completed=rounds, accuracy=float(final)))
    return found


def line(t: float, kind: str, peer_id: int, /, **fields: object) -> str:
    """Return one line of a history."""
    stamp = {"t": t, "time": (BEGAN + timedelta(seconds=t)).isoformat(), "incarnation": (1 << 32) + peer_id}
    return json.dumps({"kind": kind, **stamp, **fields}) + "\n"


def spent(process_id: int) -> float:
    """Return the processor seconds of a process and of all that it has started."""
    found, waiting = 0.0, [process_id]
    while waiting:
        each = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError):  # it has ended
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            waiting += map(int, " ".join(path.read_text() for path in each.glob("task/*/children")).split())
    return found


def measure(tab: Tab, address: str, seconds: float, processes: Sequence[int]) -> dict[str, float]:
    """Return seconds to load the page, and what a replay drew; with the processor seconds of server and browser."""

    def cost() -> float:
        return sum(map(spent, processes))

    before, began = cost(), time.monotonic()
    tab.open(address)
    loaded = time.monotonic() - began
    loading = cost() - before
    tab.script("const s = document.getElementById('speed'); s.value = '10'; s.dispatchEvent(new Event('change'))")
    tab.script("window.spent = []; document.addEventListener('drawn', (event) => window.spent.push(event.detail))")
    before = cost()
    tab.find("#play").click()
    time.sleep(seconds)
    frames, replaying = int(tab.data("frames") or 0), cost() - before
    script = np.array(tab.script("return window.spent"), dtype=float)
    return {
        "load_s": round(loaded, 2),
        "load_processor_s": round(loading, 2),
        "frames_per_s": round(frames / seconds, 1),
        "frame_processor_ms": round(1000 * replaying / max(1, frames)),
        "frame_script_ms_median": round(float(np.median(script)), 1),
        "frame_script_ms_worst_tenth": round(float(np.percentile(script, 90)), 1),
    }


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the replay")
    options = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "run"
        place.mkdir()
        write_run(place, options.peers, options.rounds)
        log = Path(name) / "log"
        began = time.monotonic()
        with running(sys.executable, "-u", "-m", "peer", "watch", place, log=log) as server:
            link = until(lambda: log.read_text().removeprefix("page: ").strip(), "a link", logs=[log])
            with browser(Path(name) / "profile", requests=False) as tab:
                tab.open(link)
                first, cost = time.monotonic() - began, spent(server.pid)
                driver = tab.driver.service.process.pid  # the browser is its child
                found = measure(tab, link.partition("?")[0], options.seconds, (server.pid, driver))
                first_load = {"first_load_s": round(first, 1), "first_server_processor_s": round(cost, 1)}
                load = round(os.getloadavg()[0], 1)
                print(json.dumps({"machine": machine(), "load_average": load, **first_load, **found}))


if __name__ == "__main__":
    main()
