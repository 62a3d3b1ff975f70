"""What faults cost the other peers: kill -9, SIGTERM, one end a second among a hundred peers, cut edges, stopped peers.

    python benchmarks/faults.py [kills leave churn partition one-way stopped] [--save]

kills: kill -9 of 1 of 4, 2 of 8 and 5 of 16 peers in the middle of training, sending, folding and persisting. For each: the
seconds that the survivors lost (rounds longer than usual), their final accuracy against a run without faults, and how soon the
restarted peers were alive at their neighbors again and had finished a round. Each victim dies when it gets to its failpoint:
one that dies after the wait for the first costs a wait of its own, so the table shows how far apart they died.

leave: a peer ends in mid-run, by SIGTERM or by kill -9, and is restarted. Real processes with TLS. The hub of a star ends, or a
leaf behind a firewall, whose edge is a tunnel that it opens; with and without declared limits of all links. *Rounds alone* are
a neighbor's rounds in which it folded nothing; *rounds skipped* are those that the restarted peer catches up with.

churn: a hundred peers, one killed or restarted every second for two minutes: rounds of the survivors, memory, files and
threads.

partition, one-way, stopped: a partition into halves, an edge that is cut in one direction, and peers that are stopped for some
seconds. Consensus distance is computed from the peers' newest checkpoints while they run: mean over peers of the squared distance
to the mean model, over the mean model's squared norm, averaged over the cluster models.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
from growing import memory_mb, open_files, threads
from record import new_parser, record
from safetensors import SafetensorError
from safetensors.numpy import load_file
from testbeds import FaultyRun, back_after, directory, faulty_run, last_round, loopback_graph, pauses

from coordinator_free_bootstrap import Graph
from peer.bed.chaos.faults import FaultEvent
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up
from peer.store.history import read_history
from peer.store.state_dir import StateDir

PARTS = ("kills", "leave", "churn", "partition", "one-way", "stopped")

# ---- kills -----------------------------------------------------------------------------------------------------------

SIZES = {4: ((1,), 160), 8: ((2, 5), 110), 16: ((1, 4, 7, 10, 13), 120)}
POINTS = {
    "training": "train.step=kill@{0}",
    "sending": "send.frame=kill@{1}",
    "folding": "fold.begin=kill@{1}",
    "persisting": "persist.sealed=kill@{2}",
}
STEPS_PER_ROUND = 16  # 719 samples in batches of 100, two epochs
KILL_ROUND = 12
AWAY_S = 7.0  # from death to restart: longer than the suspicion time


def graph_of(peers: int) -> tuple[str, dict[str, Any]]:
    return ("ring", {}) if peers == 4 else ("erdos-renyi", {"degree": 4.0, "seed": 1})


def accuracy(run: FaultyRun, peers: list[int]) -> float:
    return float(np.mean([run.history(p, "end")[-1]["metric_value"] for p in peers]))


def undisturbed(peers: int, rounds: int) -> tuple[dict[int, float], float]:
    kind, shape = graph_of(peers)
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], **shape) as run:
        run.drive(300)
        lost = float(np.mean([pauses(run.history(p, "round"))[0] for p in run.graph.ids]))
        return {p: run.history(p, "end")[-1]["metric_value"] for p in run.graph.ids}, lost


def killed(peers: int, victims: tuple[int, ...], rounds: int, point: str) -> list[Any]:
    kind, shape = graph_of(peers)
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], **shape) as probe:
        degrees = {p: probe.graph.degree(p) for p in victims}
    texts = {
        p: POINTS[point].format(KILL_ROUND * STEPS_PER_ROUND, KILL_ROUND * degrees[p] + 1, KILL_ROUND) for p in victims
    }
    with faulty_run(kind, peers, [f"run.rounds={rounds}"], failpoints=texts, **shape) as run:
        deaths: dict[int, float] = {}

        def all_dead() -> bool:
            for p in set(victims) & set(run.bed.exit_codes):
                deaths.setdefault(p, time.monotonic())
            return len(deaths) == len(victims)

        run.drive(120, all_dead)
        died = [run.bed.exit_codes.get(p) for p in victims]
        run.drive(AWAY_S)
        run.bed.failpoints.clear()
        for p in victims:
            run.bed.start([p])
        run.drive(300)
        survivors = [p for p in run.graph.ids if p not in victims]
        lost = [pauses(run.history(p, "round")) for p in survivors]
        back, first = [], []
        for p in victims:
            start = run.history(p, "start")[-1]
            back.append(back_after(run, p, start["at"]))
            done = [line["at"] for line in run.history(p, "round") if line["incarnation"] == start["incarnation"]]
            first.append(done[0] - start["at"] if done else float("nan"))
        known = [b for b in back if b is not None]
        return [
            f"{len(victims)} of {peers}", point, f"{died.count(-9)} of {len(died)}",
            f"{max(deaths.values()) - min(deaths.values()):.1f}",
            f"{np.mean([s for s, _ in lost]):.1f} ({max(s for s, _ in lost):.1f})", max(n for _, n in lost),
            accuracy(run, survivors), f"{max(known):.1f}" if len(known) == len(back) else "not all",
            f"{max(first):.1f}", survivors,
        ]  # fmt: skip


def kills(sizes: list[int]) -> list[list[object]]:
    """Return a row for each number of peers and failpoint."""
    rows: list[list[object]] = []
    for peers in sizes:
        victims, rounds = SIZES[peers]
        reference, noise = undisturbed(peers, rounds)
        for point in POINTS:
            *shown, survivors = killed(peers, victims, rounds, point)
            free = float(np.mean([reference[p] for p in survivors]))
            shown[6] = f"{shown[6]:.3f} ({100 * (shown[6] - free):+.1f} points)"
            rows.append([*shown, f"{noise:.1f}"])
            print(rows[-1], flush=True)
    return rows


# ---- leave -----------------------------------------------------------------------------------------------------------

HUB, BEHIND = 0, 1
LEAVE_PEERS, LEAVE_ROUNDS, END_ROUND, LEAVE_LIMIT_S = 4, 200, 34, 600.0
WHO = {"the hub": HUB, "a leaf behind a tunnel": BEHIND}
SIGNALS = {"SIGTERM": signal.SIGTERM, "kill -9": signal.SIGKILL}
STAR = ["run.model_options.hidden=32", "run.algorithm=dfedavg", "run.start.deadline_s=120"]


def star(peers: int, rounds: int, limit: int | None) -> Graph:
    """Return a star of which leaf `BEHIND` only dials; ``limit``: bytes per second of each peer's upload."""
    graph = loopback_graph("star", peers, [*STAR, f"run.rounds={rounds}"])
    nodes = [replace(node, upload_limit=limit) for node in graph.nodes]
    nodes[BEHIND] = replace(nodes[BEHIND], address="", dials_only=True)
    return replace(graph, nodes=tuple(nodes))


def ended(case: str, graph: Graph, ends: int, at_round: int, away_s: float, limit_s: float) -> list[object]:
    """Run one case; ``ends``: the peer that ends in round ``at_round``, and starts again ``away_s`` s later at the earliest."""
    with directory() as out:
        warm_up(graph, None)
        bed = Supervisor(graph, out, insecure=False)
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
        least, most = min(alone), max(alone)
        return [gone, most if least == most else f"{least} to {most}", skipped, codes, f"{seconds:.0f}"]


def leave(peers: int, rounds: int, away: list[float], upload: int) -> list[list[object]]:
    """Return a row for each peer that ends, limit, time away and way to end."""
    rows: list[list[object]] = []
    for (who, ends), limit, away_s, case in itertools.product(WHO.items(), (None, upload), away, SIGNALS):
        measured = ended(case, star(peers, rounds, limit), ends, END_ROUND, away_s, LEAVE_LIMIT_S)
        rows.append([who, f"{limit / 1000:g} kB/s" if limit else "none", f"{away_s:g}", case, *measured])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


# ---- churn -----------------------------------------------------------------------------------------------------------

SUSPICION_S = 5.0
SAMPLE = 8  # untouched peers that are sampled meanwhile: to sample all of them would be a load of its own


def resources(run: FaultyRun, peers: list[int]) -> tuple[float, float, float]:
    """Return private memory in MB, open files and threads: means over the peers."""
    rows = []
    for p in peers:
        try:
            pid = run.bed.pid(p)
            rows.append((memory_mb(pid)[0], open_files(pid), threads(pid)))
        except (OSError, KeyError):
            continue
    return tuple(np.mean(rows, axis=0))


def churn(peers: int, seconds: float) -> list[list[object]]:
    """Return a row every 15 s; print what was lost."""
    draw = random.Random(1)
    settings = [
        "run.rounds=100000",
        "run.local_epochs=1",
        "run.evaluate_every=10",
        f"run.timeouts.suspicion_s={SUSPICION_S}",
        "run.timeouts.round_deadline_s=120",
        "run.start.deadline_s=600",
    ]
    with faulty_run("erdos-renyi", peers, settings, degree=4.0, seed=1) as run:
        run.drive(240, lambda: all(len(run.history(p, "round")) >= 2 for p in run.graph.ids), every_s=2.0)
        never, events = set(run.graph.ids), 0
        rows: list[list[object]] = []
        down: list[int] = []
        began, sampled = time.monotonic(), -1e9
        while (now := time.monotonic() - began) < seconds:
            if down and (len(down) >= peers // 10 or draw.random() < 0.5):
                run.runner.execute(FaultEvent(do="restart", peers=(down.pop(0),)))
            else:
                victim = draw.choice(sorted(set(run.graph.ids) - set(down)))
                run.runner.execute(FaultEvent(do="kill", peers=(victim,)))
                never.discard(victim)
                down.append(victim)
            events += 1
            if now - sampled >= 15:
                sampled = now
                done = (run.history(p, "round")[-1]["round_index"] + 1 for p in sorted(never)[:SAMPLE])
                rounds = sorted(done)
                memory, files, count = resources(run, sorted(never)[:SAMPLE])
                held = [f"{value:.1f}" for value in (memory, files, count)]
                rows.append([f"{now:.0f}", events, len(down), f"{rounds[0]} to {rounds[-1]}", *held])
                print(rows[-1], flush=True)
            run.drive(max(0.0, 1.0 - (time.monotonic() - began - now)))
        lost = skipped = wrong = 0
        for p in sorted(never):
            indices = [line["round_index"] for line in run.history(p, "round")]
            lost += indices != list(range(len(indices)))
            skipped += len(run.history(p, "caught_up"))
            wrong += sum(line["state"] == "dead" and line["neighbor"] in never for line in run.history(p, "neighbor"))
        alive = sum(p in run.bed.processes for p in never)
    print(f"{len(never)} peers were never touched, {alive} of them still run")
    print(
        f"{lost} of them have a gap in their rounds; {skipped} catch-ups; {wrong} times one marked another one of them dead"
    )
    return rows


# ---- cut edges and stopped peers --------------------------------------------------------------------------------------

FOREVER = ["run.rounds=100000"]


def consensus(run: FaultyRun) -> float:
    models = []
    for p in run.graph.ids:
        for path in sorted(StateDir.of_peer(run.bed.directory, p).checkpoints.glob("checkpoint-*"), reverse=True):
            try:
                models.append(load_file(path / "arrays.safetensors"))
                break
            except (OSError, SafetensorError):  # it was removed meanwhile
                continue
    if len(models) < len(run.graph.ids):
        return float("nan")
    distances = []
    for name in models[0]:
        if name.startswith("slot/"):
            stack = np.stack([model[name] for model in models]).astype(np.float64)  # [peers, d]
            mean = stack.mean(axis=0)
            distances.append(((stack - mean) ** 2).sum(axis=1).mean() / (mean**2).sum())
    return float(np.mean(distances))


def partition(cut_s: float) -> list[list[object]]:
    with faulty_run("erdos-renyi", 8, FOREVER, proxy=True, degree=4.0, seed=1) as run:
        curve: list[tuple[float, float]] = []
        began = time.monotonic()

        def watch(seconds: float, until: float | None = None) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                run.drive(1.0)
                curve.append((time.monotonic() - began, consensus(run)))
                if until is not None and curve[-1][1] < until:
                    return

        watch(30)
        before = float(np.nanmean([d for _, d in curve[-10:]]))
        rounds = {p: len(run.history(p, "round")) for p in run.graph.ids}
        halves = (run.graph.ids[:4], run.graph.ids[4:])
        run.runner.execute(FaultEvent(do="partition", groups=halves))
        cut_at = time.time()
        watch(cut_s)
        trained = [len(run.history(p, "round")) - rounds[p] for p in run.graph.ids]
        worst = float(np.nanmax([d for _, d in curve]))
        run.runner.execute(FaultEvent(do="heal"))
        healed = time.monotonic()
        watch(60, until=before)
        below = time.monotonic() - healed if curve[-1][1] < before else float("nan")
        lost = [
            pauses([line for line in run.history(p, "round") if line["at"] < cut_at + cut_s])[0] for p in run.graph.ids
        ]
        held = run.runner.network.total().held if run.runner.network else 0
    row = [
        f"{cut_s:g} s",
        held,
        f"{min(trained)} to {max(trained)}",
        f"{np.mean(lost):.1f}",
        f"{before:.2e}",
        f"{worst:.2e}",
        f"{below:.1f}",
    ]
    return [row]


def one_way(cut_s: float) -> list[object]:
    with faulty_run("erdos-renyi", 8, FOREVER, proxy=True, degree=4.0, seed=1) as run:
        run.drive(60, lambda: all(len(run.history(p, "round")) >= 15 for p in run.graph.ids), every_s=0.5)
        one, other = run.graph.edges[0]
        before = [len(run.history(p, "round")) for p in run.graph.ids]
        run.drive(cut_s)
        quiet = [len(run.history(p, "round")) - n for p, n in zip(run.graph.ids, before, strict=True)]
        cut_at = time.time()
        run.runner.execute(FaultEvent(do="one_way", edges=((one, other),)))
        run.drive(cut_s)
        total = [len(run.history(p, "round")) - n for p, n in zip(run.graph.ids, before, strict=True)]
        deaths = [
            sum(line["neighbor"] == b and line["state"] == "dead" for line in run.history(a, "neighbor"))
            for a, b in ((one, other), (other, one))
        ]
        lost = [pauses([line for line in run.history(p, "round") if line["at"] > cut_at - 5])[0] for p in run.graph.ids]
        run.runner.execute(FaultEvent(do="heal"))
        healed = time.time()
        run.drive(10.0)
        back = [
            line["at"] - healed
            for a, b in ((one, other), (other, one))
            for line in run.history(a, "neighbor")
            if line["at"] > healed and line["neighbor"] == b and line["state"] == "alive"
        ]
    during = [t - q for t, q in zip(total, quiet, strict=True)]
    return [
        f"{cut_s:g} s", f"{min(quiet)} to {max(quiet)}", f"{min(during)} to {max(during)}",
        f"{np.mean(lost):.1f} ({max(lost):.1f})", " and ".join(map(str, deaths)),
        f"{max(back):.1f}" if len(back) > 1 else "not both",
    ]  # fmt: skip


def stopped(seconds: float) -> list[object]:
    with faulty_run("erdos-renyi", 8, FOREVER, degree=4.0, seed=1) as run:
        run.drive(60, lambda: all(len(run.history(p, "round")) >= 15 for p in run.graph.ids), every_s=0.5)
        run.runner.execute(FaultEvent(do="pause", peers=(3,)))
        run.drive(seconds)
        run.runner.execute(FaultEvent(do="continue", peers=(3,)))
        woke = time.time()
        run.drive(15.0)
        others = [p for p in run.graph.ids if p != 3]
        lost = [
            pauses([line for line in run.history(p, "round") if line["at"] < woke + 0.5])[0]
            for p in run.graph.neighbors(3)
        ]
        marked_dead_by = [
            p
            for p in run.graph.neighbors(3)
            if any(line["neighbor"] == 3 and line["state"] == "dead" for line in run.history(p, "neighbor"))
        ]
        wrong = sum(line["state"] == "dead" for line in run.history(3, "neighbor"))
        back = back_after(run, 3, woke)
        after = [
            line["at"] - woke
            for line in run.history(3, "round")
            if line["at"] > woke + 0.2 and len(line["folded"]) == run.graph.degree(3)
        ]
        behind = [max(line["round_index"] for line in run.history(p, "round")) for p in (3, others[0])]
    return [
        f"{seconds:g} s", f"{np.mean(lost):.1f} ({max(lost):.1f})", f"{len(marked_dead_by)} of {run.graph.degree(3)}", wrong,
        "not all" if back is None else f"{back:.1f}", f"{after[0]:.1f}" if after else "never", behind[1] - behind[0],
    ]  # fmt: skip


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--peers", type=int, nargs="*", default=list(SIZES), help="of the kills")
    parser.add_argument("--away", type=float, nargs="+", default=[0.0, 15.0], help="leave: seconds until the restart")
    parser.add_argument("--upload", type=int, default=200_000, help="leave: bytes per second, in the runs with limits")
    parser.add_argument("--churning", type=int, default=100, help="peers of the churn")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the churn")
    parser.add_argument("--cut", type=float, default=60.0, help="partition, one-way: seconds")
    parser.add_argument("--stops", type=float, nargs="+", default=[1.0, 10.0, 30.0], help="stopped: seconds")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    columns: tuple[str, ...]
    if "kills" in given.parts:
        columns = (
            "killed", "in the middle of", "fired", "killed within, s", "seconds lost, mean (worst) survivor",
            "long rounds, at most", "survivors' accuracy (against fault-free)", "alive at all neighbors after, s",
            "first round after, s", "seconds lost without faults",
        )  # fmt: skip
        record("kills", "kill -9 and restart, suspicion time 5 s", columns, kills(given.peers), save=given.save)
    if "leave" in given.parts:
        columns = (
            "ends", "upload limits", "away, s", "by", "exit code", "rounds alone of its neighbors", "rounds skipped by it",
            "exit codes at the end", "seconds",
        )  # fmt: skip
        title = f"Star of {LEAVE_PEERS} peers with TLS and a tunnel, {LEAVE_ROUNDS} rounds, ended in round {END_ROUND}"
        rows = leave(LEAVE_PEERS, LEAVE_ROUNDS, given.away, given.upload)
        record("leave", title, columns, rows, save=given.save)
    if "churn" in given.parts:
        columns = (
            "second", "kills and restarts so far", "down now", "rounds done by survivors", "private MB", "open files",
            "threads",
        )  # fmt: skip
        title = f"{given.churning} peers under churn; means over eight untouched peers"
        record("churn", title, columns, churn(given.churning, given.seconds), save=given.save)
    if "partition" in given.parts:
        columns = (
            "cut", "chunks blocked", "rounds trained during the cut", "seconds lost, mean peer", "consensus distance before",
            "worst", "below its value before, s after healing",
        )  # fmt: skip
        record("partition", "8 peers, partitioned into halves", columns, partition(given.cut), save=given.save)
    if "one-way" in given.parts:
        columns = (
            "cut", "rounds in as long a time before", "rounds during the cut", "seconds lost, mean (worst) peer",
            "times that its ends marked each other dead", "alive to each other after, s",
        )  # fmt: skip
        record("one-way", "8 peers, one edge cut in one direction", columns, [one_way(given.cut)], save=given.save)
    if "stopped" in given.parts:
        columns = (
            "stopped for", "seconds lost, mean (worst) neighbor", "marked dead by", "neighbors it marked dead",
            "alive at all neighbors after, s", "full round after, s", "rounds behind at the end",
        )  # fmt: skip
        title = "8 peers, one stopped (SIGSTOP) and continued, suspicion time 5 s"
        record("stopped", title, columns, [stopped(seconds) for seconds in given.stops], save=given.save)


if __name__ == "__main__":
    main()
