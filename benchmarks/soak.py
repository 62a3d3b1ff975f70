"""A soak: eight processes on a ring, a tiny model, many rounds, faults all the time; does anything grow?

Peers 0 to 3 are never ended: their memory, file descriptors, threads, disk and round time are sampled. Peers 4 to 7 are killed
and restarted; their processor time is sampled too, as that of young processes on the same machine at the same time. Any peer is
paused, and any edge is blocked (both ways or one), slowed, or cut with others into a partition, through proxies.
For each quantity the table has the line through the samples after the first tenth of the rounds (warm-up); what grows is named.

    python benchmarks/soak.py [--rounds 100000] [--hours 8] [--out DIR] [--save]
    python benchmarks/soak.py --summarize DIR [--save]     the table of a run, also of one that continues
"""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growing import bytes_in, memory_mb, open_files, processor_s, slope, threads
from record import new_parser, record
from testbeds import last_round, loopback_graph, rounds_of

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.faults import FaultEvent
from peer.bed.chaos.network import FaultyNetwork
from peer.bed.chaos.runner import FaultRunner
from peer.bed.chaos.script import Script, random_script
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up
from peer.store.history import parse_lines
from peer.store.lines import parts_of
from peer.store.state_dir import StateDir
from peer.view.state.tail import TIMELINE

PEERS, STEADY = 8, (0, 1, 2, 3)
SAMPLES = "samples.jsonl"
LASTS_S = 6.0  # the longest fault
TINY = [
    "run.task=linear",
    "run.split=linear_synth",
    "run.local_epochs=1",
    "run.batch_size=all",
    "run.evaluate_every=1000",
    "run.checkpoint_rounds=100",
    "run.timeouts.suspicion_s=3",
    "run.timeouts.round_deadline_s=60",
]
# quantity -> (key of a sample, unit, share of its mean by which it may grow over the whole run, absolute slack)
LEVEL = {
    "private memory": ("private_mb", "MB", 0.05, 2.0),  # pages of the parent that the peer touches become its own
    "anonymous memory, with pages of the parent": ("anonymous_mb", "MB", 0.005, 0.0),
    "file descriptors": ("files", "", 0.05, 4.0),
    "threads": ("threads", "", 0.0, 4.0),  # gRPC's pool has more for a while
    "disk without history, audit log and log": ("other_bytes", "bytes", 0.05, 4096.0),
    "processor time of a round, times that of restarted peers": ("round_cpu_ratio", "", 0.1, 0.05),
    "seconds of a round, median": ("round_s", "s", 0.1, 0.01),
}
GROWING = {"history": ("history_bytes", "bytes"), "audit log": ("audit_bytes", "bytes"), "log": ("log_bytes", "bytes")}
OF_THE_MACHINE = {"processor time of a round": ("round_cpu_ms", "ms")}


def faults(graph: Graph, seconds: float, every_s: float, seed: int) -> Script:
    """Return kills of the peers that may end, and faults of edges and pauses of all, none longer than `LASTS_S`."""
    mortal = [peer for peer in graph.ids if peer not in STEADY]
    kills = random_script(["kill"], mortal, graph.edges, seed, seconds, every_s=2 * every_s, down_max=1)
    others = ("pause", "cut", "one_way", "slow", "partition")
    rest = random_script(others, graph.ids, graph.edges, seed + 1, seconds, every_s=2 * every_s)
    return Script(event=tuple(_short(event, every_s) for event in (*kills.event, *rest.event)))


def _short(event: FaultEvent, every_s: float) -> FaultEvent:
    return event.model_copy(update={"for_s": round((event.for_s or 0.0) / (4 * every_s) * LASTS_S, 2)})


def sample(bed: Supervisor, peer: int) -> dict[str, Any]:
    """Return what a peer holds now."""
    pid, place = bed.pid(peer), StateDir.of_peer(bed.directory, peer)
    rounds, seconds = last_round(place.history)
    history, audit = (sum(map(bytes_in, parts_of(path))) for path in (place.history, place.audit))
    log = bytes_in(place.log)
    private, anonymous = memory_mb(pid)
    return {
        "peer": peer,
        "pid": pid,
        "time": time.time(),
        "rounds": rounds,
        "round_s": seconds,
        "private_mb": private,
        "anonymous_mb": anonymous,
        "files": open_files(pid),
        "threads": threads(pid),
        "processor_s": processor_s(pid),
        "history_bytes": history,
        "audit_bytes": audit,
        "log_bytes": log,
        "other_bytes": bytes_in(place.root) - history - audit - log,
    }


def with_cost_of_rounds(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one peer's samples after the first, with ``round_cpu_ms``: processor time of each round since the sample before."""
    rows = []
    for before, after in itertools.pairwise(samples):
        rounds = after["rounds"] - before["rounds"]
        if rounds > 0 and after["pid"] == before["pid"]:
            rows.append(after | {"round_cpu_ms": 1e3 * (after["processor_s"] - before["processor_s"]) / rounds})
    return rows


def beside_young(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples of the steady peers, with ``round_cpu_ratio``: over the mean of the others that were sampled together.

    A virtual machine is faster at one time than at another; both see the same one.
    """
    by_peer: dict[int, list[dict[str, Any]]] = {}
    for each in samples:
        by_peer.setdefault(each["peer"], []).append(each)
    rows = [row for own in by_peer.values() for row in with_cost_of_rounds(own)]
    young: dict[int, list[float]] = {}
    for row in rows:
        if row["peer"] not in STEADY:
            young.setdefault(row["number"], []).append(row["round_cpu_ms"])
    usual = {number: statistics.fmean(costs) for number, costs in young.items()}
    steady = [row for row in rows if row["peer"] in STEADY and row["number"] in usual]
    return [row | {"round_cpu_ratio": row["round_cpu_ms"] / usual[row["number"]]} for row in steady]


def table(samples: Sequence[dict[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Return a row for each quantity, and the names of those that grow beyond their slack; means over the steady peers."""
    rounds_done = max(each["rounds"] for each in samples)
    measured = [row for row in beside_young(samples) if row["rounds"] > rounds_done / 10]
    if not measured:
        raise SystemExit("too few samples for a line; let it run longer, or use a smaller --sample-s")
    rows, growing = [], []
    for name, (key, unit, share, slack) in LEVEL.items():
        first, last, per_round = _line(measured, key)
        grown = per_round * rounds_done
        level = grown <= share * first + slack
        growing += [] if level else [name]
        rows.append([name, unit, _number(first), _number(last), _number(1e5 * per_round), "yes" if level else "NO"])
    for quantities, remark in ((OF_THE_MACHINE, "as fast as the machine"), (GROWING, "grows with the rounds")):
        for name, (key, unit) in quantities.items():
            first, last, per_round = _line(measured, key)
            rows.append([name, unit, _number(first), _number(last), _number(1e5 * per_round), remark])
    return rows, growing


def _line(rows: Sequence[dict[str, Any]], key: str) -> tuple[float, float, float]:
    """Return the means of the first and last fifth of the samples, and the mean slope of the peers, per round."""
    order = sorted(rows, key=lambda row: row["rounds"])
    fifth = max(1, len(order) // 5)
    peers = {row["peer"] for row in rows}
    slopes = [
        slope([r["rounds"] for r in rows if r["peer"] == p], [r[key] for r in rows if r["peer"] == p]) for p in peers
    ]
    first, last = (statistics.fmean(r[key] for r in part) for part in (order[:fifth], order[-fifth:]))
    return first, last, statistics.fmean(slopes)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def soak(out: Path, rounds: int, hours: float, every_s: float, sample_s: float) -> None:
    """Run peers and faults until all have ended or the time is over; append samples to ``samples.jsonl``."""
    graph = loopback_graph("ring", PEERS, [*TINY, f"run.rounds={rounds}"])
    warm_up(graph, None)
    bed = Supervisor(graph, out, threads=1, insecure=True)
    network = FaultyNetwork(bed.graph)
    bed.graph_of = network.graph_of
    runner = FaultRunner(bed, lambda: rounds_of(bed), faults(graph, 3600 * hours, every_s, seed=1), network)
    began, sampled = time.monotonic(), 0.0
    numbers = itertools.count()
    bed.start()
    try:
        while len(bed.processes) and time.monotonic() - began < 3600 * hours:
            runner.wait(1.0)
            if time.monotonic() - sampled >= sample_s and all(_history(bed, peer) for peer in STEADY):
                sampled, number = time.monotonic(), next(numbers)
                with (out / SAMPLES).open("a") as file:
                    running = [p for p in graph.ids if p in bed.processes and _history(bed, p)]
                    file.writelines(json.dumps(sample(bed, p) | {"number": number}) + "\n" for p in running)
    finally:
        bed.stop()
        runner.close()


def _history(bed: Supervisor, peer: int) -> bool:
    return StateDir.of_peer(bed.directory, peer).history.exists()


def summarize(out: Path, *, save: bool = False) -> list[str]:
    """Show the table of a run; return what grows. A run without a fault is no soak: it ends with exit code 1."""
    samples = [json.loads(line) for line in (out / SAMPLES).read_text().splitlines()]
    timeline = out / TIMELINE
    lines = parse_lines(timeline.read_bytes()) if timeline.exists() else []
    fired = Counter(line["do"] for line in lines if line["result"] == "done")
    if not fired:
        raise SystemExit(f"{out}: no fault happened; let it run longer, or use a smaller --every-s")
    rows, growing = table(samples)
    rounds, hours = max(s["rounds"] for s in samples), (samples[-1]["time"] - samples[0]["time"]) / 3600
    names = ", ".join(f"{count} {name}" for name, count in sorted(fired.items()))
    header = ("of a peer that never ends", "unit", "first fifth", "last fifth", "in 100,000 rounds", "level")
    title = f"Soak: {PEERS} peers, {rounds:,} rounds, {hours:.1f} h; faults: {names}"
    record("soak", title, header, rows, save=save)
    print("grows: " + (", ".join(growing) or "nothing but history, audit log and log"))
    return growing


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--every-s", type=float, default=30.0, help="mean seconds between two faults")
    parser.add_argument("--sample-s", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="folder of the run; default: a temporary one")
    parser.add_argument("--summarize", type=Path, metavar="DIR")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the peers too
    if given.summarize:
        raise SystemExit(bool(summarize(given.summarize, save=given.save)))
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        out = given.out or Path(place)
        try:
            soak(out, given.rounds, given.hours, given.every_s, given.sample_s)
        except KeyboardInterrupt:
            print("stopped before the end")
        raise SystemExit(bool(summarize(out, save=given.save)))


if __name__ == "__main__":
    main()
