"""The page of a run in Chromium: what a large run costs, and the pictures of the documentation.

    python benchmarks/page.py [--peers 1000] [--rounds 200] [--seconds 8] [--save]
    python benchmarks/page.py --pictures docs/figures [--run out/pictures]

Writes the run's files itself: a graph of degree 8, four clusters, complete histories. First load: with the start of the server,
which reads the files. Load: from the request of the page to the first drawing of all views, with that server. Replay: frames
drawn in `--seconds` at 10 rounds a second, and the milliseconds of a frame's script (median, worst tenth). Processor seconds
are those of server and browser with all their processes; they hold on a busy machine too.

Pictures: of a run of twelve peers in which one is killed and restarted; the run is made if there is none in `--run`. The ended
run in light and in dark colors, the failure in a replay, and a replay with a line per peer.
"""

from __future__ import annotations

import json
import os
import subprocess
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
from record import new_parser, record
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
            "metric_value": float(final - 0.6 * np.exp(-index / 20) + random.normal(0, 0.005)),
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
    found.append(line(1.0 + rounds, "end", peer_id, rounds_completed=rounds, metric_value=float(final)))
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
        "load, s": round(loaded, 2),
        "load, processor s": round(loading, 2),
        "frames a second": round(frames / seconds, 1),
        "frame, processor ms": round(1000 * replaying / max(1, frames)),
        "frame, script ms, median": round(float(np.median(script)), 1),
        "worst tenth": round(float(np.percentile(script, 90)), 1),
    }


def large_run(peers: int, rounds: int, seconds: float) -> dict[str, float]:
    """Write a run, open its page, and replay it."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "run"
        place.mkdir()
        write_run(place, peers, rounds)
        log = Path(name) / "log"
        began = time.monotonic()
        with running(sys.executable, "-u", "-m", "peer", "watch", place, log=log) as server:
            link = until(lambda: log.read_text().removeprefix("page: ").strip(), "a link", logs=[log])
            with browser(Path(name) / "profile", requests=False) as tab:
                tab.open(link)
                first, cost = time.monotonic() - began, spent(server.pid)
                driver = tab.driver.service.process.pid  # the browser is its child
                found = measure(tab, link.partition("?")[0], seconds, (server.pid, driver))
                return {"first load, s": round(first, 1), "of it the server, processor s": round(cost, 1), **found}


# ---- pictures --------------------------------------------------------------------------------------------------------

PEERS, ROUNDS, KILLED, AT, BACK = 8, 100, 3, 12, 50
FAULTS = f"""
[[event]]
at_round = {AT}
do = "kill"
peers = [{KILLED}]

[[event]]
at_round = {BACK}
do = "restart"
peers = [{KILLED}]
"""
SIZE = 1440, 1080


def make_run(directory: Path) -> None:
    """Run the testbed."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as script:
        script.write(FAULTS)
        script.flush()
        command = ["testbed", "--peers", PEERS, "--out", directory, "--chaos", script.name]
        settings = ["--set", f"run.rounds={ROUNDS}", "--set", "run.options.warmup_rounds=8"]
        subprocess.run([sys.executable, "-m", "peer", *map(str, command), *settings], check=True)


def take(tab: Tab, out: Path) -> None:
    """Save the pictures of an open page."""
    tab.driver.save_screenshot(str(out / "page.png"))
    tab.find("#theme").click()
    tab.script("document.querySelector('#table button[aria-label=\"Open peer 5\"]').click()")
    tab.wait(lambda: tab.find("#panel").is_displayed(), "the page of a peer")
    tab.driver.save_screenshot(str(out / "page-dark.png"))
    tab.find("#panel-close").click()
    tab.find("#theme").click()
    dead = f'#table tr[data-peer="{KILLED}"][data-status="dead"]'
    shown = next(
        r
        for r in range(AT, BACK)
        if at_round(tab, r) and tab.script("return !!document.querySelector(arguments[0])", dead)
    )
    at_round(tab, shown + 1)
    tab.driver.save_screenshot(str(out / "page-failure.png"))
    tab.find("#curves-choices .toggle").click()
    at_round(tab, 2 * ROUNDS // 3)
    tab.script("document.querySelector('[aria-labelledby=clusters-title]').scrollIntoView()")
    tab.wait(lambda: tab.script("return scrollY") > 0, "the page has scrolled")
    tab.driver.save_screenshot(str(out / "page-replay.png"))


def at_round(tab: Tab, round_index: int) -> bool:
    """Replay at a round."""
    tab.seek(round_index)
    return True


def pictures(run: Path, out: Path) -> None:
    """Take the pictures of a run, which is made if it is not there."""
    if not (run / "graph.json").exists():
        make_run(run)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with running(sys.executable, "-u", "-m", "peer", "watch", run, log=log):
            link = until(lambda: log.read_text().removeprefix("page: ").strip(), "a link", logs=[log])
            with browser(Path(name) / "profile", width=SIZE[0], height=SIZE[1]) as tab:
                tab.open(link)
                take(tab, out)


def main() -> None:
    """Measure a large run, or take the pictures."""
    parser = new_parser(__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the replay")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="only save the pictures there")
    parser.add_argument("--run", type=Path, default=Path("out/pictures"), help="of the pictures")
    given = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    if given.pictures:
        pictures(given.run, given.pictures)
        return
    found = large_run(given.peers, given.rounds, given.seconds)
    title = f"The page of {given.peers} peers and {given.rounds} rounds"
    record("page", title, list(found), [list(found.values())], save=given.save)


if __name__ == "__main__":
    main()
