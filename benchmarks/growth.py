"""What grows with the number of peers: the cost per peer and round, and the rounds until peers agree.

    python benchmarks/growth.py [--processes 10 30 100] [--simulated 30 300 3000] [--protocol 100 1000 10000]
        [--out DIR] [--save]
    python benchmarks/growth.py agreement [--peers 16 64 256 1024] [--kinds ring torus ...] [--save]

Cost, at degree 4, in processes, in one process, and without tensors:

    processes   `Supervisor`: one process per peer, forked from one parent; TLS off; real sockets
    simulated   `peer.simulate`'s network: all peers in one process, real training of a linear model
    protocol    the same engine and hosts, with models of one number and a training that does nothing

Processor time and memory are per peer: of the start until the end of round 1 (with its share of the parent's), of each later
round, and above the memory of the process that starts them. Of a death: one peer ends after round 1 without a word; seconds until
its last neighbor marks it dead, as a multiple of the suspicion time (real seconds of processes, else the virtual clock). Function
calls, of Python and of C, are counted in one more run, of at most 3,000 peers in one process: they do not depend on the machine,
and processor time does, on its caches and on what else its host has to do. Waits: how often a peer's threads gave up their core
in a round. The same work: what of a round's processor time is training and closing, on a thread of its own, without messages.
Each measurement has a process of its own. `slope` is of the line through log peers and log cost: 0 is flat.
Aim: at most 0.05. What DIR/growth.jsonl has is not measured again; DIR/growth.png is the plot.

Agreement, by kind of graph and number of peers, beside what the spectral gap predicts. Peers average with Metropolis
weights (`dfedavg`) and no longer learn. Two starts:

    halves   the half of the peers that is nearest to peer 0 has learned +1, the other half -1: the worst case that is likely
    random   each peer has learned a number of its own, drawn from a normal distribution

The consensus distance is the root mean square distance of the peers' models from their mean. The table has the rounds until a
hundredth of the first one is left, and the prediction: ln(0.01) / ln(1 - gap), the bound for every start. The rounds are computed
as running averages of all peers at once, which gives the bits of the simulated backend (a test compares them).
"""

from __future__ import annotations

import cProfile
import gc
import json
import logging
import math
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from growing import bytes_in, growth_exponent, memory_mb, open_files
from record import new_parser, record
from stub_learner import StubLearner
from testbeds import directory, loopback_graph, wall

from coordinator_free_bootstrap import Graph, apply_settings, make_graph, parse_manifest
from coordinator_free_bootstrap.mixing import LEFT, rounds_to_agree, spectral_gap
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.dfedavg import DFedAvg

DEGREE, ROUNDS, AIM = 4, 3, 0.05
WARM_UP_PEERS = 10
COUNTED_PEERS_MAX = 3000  # counting calls takes twice the time
SETTINGS = [
    "run.algorithm=dfedavg",
    "run.task=linear",
    "run.split=linear_synth",
    "run.local_epochs=1",
    # a thousand processes on two cores answer late: suspicion must be longer than the longest queue for a core
    "run.timeouts.suspicion_s=75",
    "run.timeouts.round_deadline_s=1200",
    "run.start.deadline_s=900",
]
SAMPLES_PER_PEER = 40
COSTS = {  # key of a measurement -> (name, digits)
    "start_ms": ("start, processor ms", 1),
    "round_ms": ("round, processor ms", 2),
    "memory_kb": ("memory KB", 0),
    "messages": ("messages", 2),
    "bytes": ("bytes", 0),
    "death": ("death noticed after, suspicion times", 2),
    "files": ("open files", 0),
    "calls": ("function calls", 0),
    "waits": ("waits for something", 0),
    "work_ms": ("the same work, processor ms", 2),
    "all_alive_s": ("last neighbor alive after, s", 1),
}


def settings_for(peers: int, rounds: int) -> list[str]:
    """Return the settings of a run; the data grow with the peers, so that each has as many samples."""
    samples = SAMPLES_PER_PEER * peers // 2 + 200
    sizes = [f"run.task_options.{part}_per_cluster={samples}" for part in ("samples", "test")]
    return [*SETTINGS, *sizes, f"run.rounds={rounds}"]


def graph_of(peers: int, rounds: int) -> Graph:
    """Return the random regular graph of a measurement in one process."""
    manifest = parse_manifest(apply_settings({}, settings_for(peers, rounds)), "benchmark")
    degree = min(DEGREE, peers - 1)
    return make_graph("regular", peers, degree=degree, address_template="peer-{id}:7400", manifest=manifest)


def traffic(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Return messages and bytes per peer and round, from the lines of rounds: models, selections, passes, payload bytes."""
    sent = [line["models_sent"] + line["selections_sent"] + line["passes_sent"] for line in rounds]
    return {"messages": fmean(sent), "bytes": fmean(line["payload_bytes_sent"] for line in rounds)}


# ---- one process --------------------------------------------------------------------------------------------------------


def virtual(graph: Graph, tensors: bool, on_record: Callable[..., None]) -> Any:
    """Return a network with all peers of a graph."""
    from peer.host import build_host
    from peer.lab.network import VirtualNetwork
    from peer.lab.simulated import SimulatedSettings, simulated_peers

    network = VirtualNetwork(on_record=on_record)
    if tensors:
        simulated_peers(graph, SimulatedSettings(), network)
    else:
        for peer_id in graph.ids:
            learner: Any = StubLearner()
            network.add(build_host(peer_id, graph, learner, 1, clock=time.perf_counter, spare_buffers=0))
    return network


def in_one_process(peers: int, *, tensors: bool) -> dict[str, float]:
    """Measure a run, and then the death of a peer in a second one."""
    import torch  # before memory is read for the first time

    torch.set_num_threads(1)
    virtual(graph_of(WARM_UP_PEERS, 1), tensors, lambda *_: None).run()  # what is loaded once belongs to no peer
    graph = graph_of(peers, ROUNDS)
    _ = graph.digest, graph.neighbors(0)
    _, empty_mb = memory_mb(os.getpid())
    began, ended = time.process_time(), dict[int, float]()
    count = [0] * ROUNDS

    def watch(_peer: Any, kind: str, fields: dict[str, Any]) -> None:
        if kind == "round":
            count[fields["round_index"]] += 1
            if count[fields["round_index"]] == peers:
                ended[fields["round_index"]] = time.process_time()

    network = virtual(graph, tensors, watch)
    built = time.process_time()
    network.run()
    lines = [f for peer in network.peers.values() for kind, f in peer.recording.lines if kind == "round"]
    found = {
        "start_ms": 1e3 * (built - began) / peers,
        "round_ms": 1e3 * (ended[ROUNDS - 1] - ended[0]) / peers / (ROUNDS - 1),
        "memory_kb": 1e3 * (memory_mb(os.getpid())[1] - empty_mb) / peers,
        **traffic(lines),
    }
    del network, lines
    gc.collect()
    found["death"] = virtual_death(graph_of(peers, 20 if peers <= 1000 else ROUNDS), tensors)
    if peers <= COUNTED_PEERS_MAX:
        found["calls"] = function_calls(graph, tensors) / peers / ROUNDS
    return found


def function_calls(graph: Graph, tensors: bool) -> int:
    """Return the function calls of a run after its build, of Python and of C."""
    network, profile = virtual(graph, tensors, lambda *_: None), cProfile.Profile()
    profile.runcall(network.run)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


class _Noticed(Exception):
    """All neighbors have marked the peer dead."""


def virtual_death(graph: Graph, tensors: bool) -> float:
    """End a peer after its first round; return the time until its last neighbor marks it dead, in suspicion times."""
    victim, died = graph.ids[len(graph.ids) // 2], list[float]()
    noticed = set[int]()

    def watch(peer: Any, kind: str, fields: dict[str, Any]) -> None:
        if kind == "round" and peer.peer_id == victim and not died:
            peer.status, peer.host.closed = "killed", True
            died.append(peer.network.now)
        if kind == "neighbor" and (fields["neighbor"], fields["state"]) == (victim, "dead"):
            noticed.add(peer.peer_id)
            if noticed == {*graph.neighbors(victim)}:
                raise _Noticed

    network = virtual(graph, tensors, watch)
    try:
        network.run()
    except _Noticed:
        return float((network.now - died[0]) / graph.manifest.timeouts.suspicion_s)
    raise RuntimeError(f"the death of peer {victim} was noticed only by {sorted(noticed)}")


# ---- processes ----------------------------------------------------------------------------------------------------------


@contextmanager
def self_measuring() -> Iterator[None]:
    """Let each peer forked meanwhile write ``costs.jsonl``: processor seconds, memory, open files and waits after each round."""
    from peer.host import PeerHost
    from peer.runtime.world import AsyncioWorld

    record, work, measuring, working = AsyncioWorld.record, PeerHost.work, 0.0, 0.0

    def measured_work(self: PeerHost, effect: Any) -> Any:
        nonlocal working
        began = time.thread_time()
        done = work(self, effect)
        working += time.thread_time() - began
        return done

    def measured(self: AsyncioWorld, kind: str, fields: dict[str, Any]) -> None:
        nonlocal measuring
        record(self, kind, fields)
        if kind == "round":
            now = time.process_time()
            line = {"round": fields["round_index"], "s": now - measuring, "mb": memory_mb(os.getpid())[0]}
            line |= {"files": open_files(os.getpid()), "waits": resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw}
            line |= {"work_s": working}
            with (self.parts.state_dir.root / "costs.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            measuring += time.process_time() - now

    AsyncioWorld.record, PeerHost.work = measured, measured_work  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncioWorld.record, PeerHost.work = record, work  # type: ignore[method-assign]


def in_processes(peers: int) -> dict[str, float]:
    """Measure a run of processes; after its last measured round one of them is killed."""
    from peer.bed.testbed.testbed import Supervisor
    from peer.bed.testbed.warm_up import warm_up
    from peer.store.history import read_history
    from peer.store.state_dir import StateDir

    graph = loopback_graph("regular", peers, settings_for(peers, 100_000), degree=min(DEGREE, peers - 1))
    warm_up(graph, None)
    with directory() as out, self_measuring():
        began, used = time.time(), time.process_time()
        bed = Supervisor(graph, out, threads=1, insecure=True)
        bed.start()
        used = time.process_time() - used
        try:
            while not all(_lines(out, p) >= ROUNDS for p in graph.ids):
                bed.poll(1.0)
                if bed.exit_codes:
                    raise RuntimeError(f"peers ended: {bed.exit_codes}")
            victim = graph.ids[-1]
            bed.processes[victim].kill()
            killed = time.time()
            while len(died := _deaths(out, graph, victim)) < graph.degree(victim):
                bed.poll(1.0)
        finally:
            bed.stop(60.0)
        costs = [read_costs(out, p)[:ROUNDS] for p in graph.ids]
        histories = [read_history(StateDir.of_peer(out, p).history) for p in graph.ids]
    rounds = [line for history in histories for line in history if line["kind"] == "round"]
    met = [wall(x) for lines in histories for x in lines if (x["kind"], x.get("state")) == ("neighbor", "alive")]
    return {
        "start_ms": 1e3 * (used / peers + fmean(lines[0]["s"] for lines in costs)),
        "round_ms": 1e3 * fmean((lines[-1]["s"] - lines[0]["s"]) / (ROUNDS - 1) for lines in costs),
        "memory_kb": 1e3 * fmean(lines[-1]["mb"] for lines in costs),
        "files": fmean(lines[-1]["files"] for lines in costs),
        "waits": fmean((lines[-1]["waits"] - lines[0]["waits"]) / (ROUNDS - 1) for lines in costs),
        "work_ms": 1e3 * fmean((lines[-1]["work_s"] - lines[0]["work_s"]) / (ROUNDS - 1) for lines in costs),
        **traffic([line for line in rounds if line["round_index"] < ROUNDS]),
        "death": (max(died) - killed) / graph.manifest.timeouts.suspicion_s,
        "all_alive_s": max(met) - began,
    }


def _lines(out: Path, peer: int) -> int:
    return len(read_costs(out, peer))


def read_costs(out: Path, peer: int) -> list[dict[str, Any]]:
    """Return the complete lines of a peer's ``costs.jsonl``."""
    path = out / f"peer-{peer}" / "costs.jsonl"
    if not path.exists() or not bytes_in(path):
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def _deaths(out: Path, graph: Graph, victim: int) -> list[float]:
    """Return when the neighbors of a peer marked it dead, wall-clock seconds."""
    from peer.store.history import read_history
    from peer.store.state_dir import StateDir

    found = []
    for neighbor in graph.neighbors(victim):
        lines = read_history(StateDir.of_peer(out, neighbor).history)
        found += [
            wall(x) for x in lines if (x["kind"], x.get("neighbor"), x.get("state")) == ("neighbor", victim, "dead")
        ][:1]
    return found


# ---- tables --------------------------------------------------------------------------------------------------------------

BACKENDS: dict[str, Callable[[int], dict[str, float]]] = {
    "processes": in_processes,
    "simulated": lambda peers: in_one_process(peers, tensors=True),
    "protocol": lambda peers: in_one_process(peers, tensors=False),
}


def measure(backend: str, peers: int, results: Path) -> None:
    """Measure in a process of its own, and append a line to the results."""
    command = [sys.executable, __file__, "--one", backend, str(peers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    with results.open("a") as file:
        file.write(done.stdout.splitlines()[-1] + "\n")


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the growth exponent of each cost over the peers of one backend's measurements, where two or more have it."""
    found = {}
    for key in COSTS:
        measured = [(row["peers"], row[key]) for row in rows if row.get(key, 0) > 0]
        if len(measured) > 1:
            found[key] = growth_exponent(*zip(*measured, strict=True))
    return found


def table(measured: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each measurement, and after each backend its slopes."""
    rows = []
    for backend in BACKENDS:
        own = sorted((row for row in measured if row["backend"] == backend), key=lambda row: row["peers"])
        for row in own:
            cells = [f"{row[key]:.{digits}f}" if key in row else "" for key, (_, digits) in COSTS.items()]
            rows.append([backend, str(row["peers"]), *cells])
        if found := slopes(own):
            rows.append([backend, "slope", *(f"{found[key]:+.3f}" if key in found else "" for key in COSTS)])
    return rows


def plot(measured: list[dict[str, Any]], picture: Path) -> None:
    """Draw each cost over the number of peers, both logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    shown = [key for key in COSTS if key not in ("files", "calls", "waits", "work_ms", "all_alive_s")]
    for axes, key in zip(figure.subplots(2, 3).flat, shown, strict=True):
        for backend in BACKENDS:
            points = sorted((r["peers"], r[key]) for r in measured if r["backend"] == backend and r.get(key, 0) > 0)
            if points:
                axes.loglog(*zip(*points, strict=True), "o-", label=backend)
        axes.set(title=COSTS[key][0], xlabel="peers")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, high / 10), max(high, low * 10))  # at least a decade, so that flat looks flat
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=110)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the measurements of a file; [] without one."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- agreement -----------------------------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {
    "ring": lambda peers: {},
    "torus": lambda peers: {},
    "small-world": lambda peers: {"degree": 4},
    "erdos-renyi": lambda peers: {"degree": 2 * math.log(peers)},  # below ln N, a random graph is never connected
    "expander": lambda peers: {"degree": 4},
}
ROUNDS_MAX = 100_000
Models = np.ndarray[Any, np.dtype[np.float32]]


def averaging_graph(kind: str, peers: int, rounds: int = 1) -> Graph:
    """Return a graph of a kind, with the manifest of the algorithm that averages."""
    settings = ["run.algorithm=dfedavg", f"run.rounds={rounds}", "run.task=linear", "run.split=linear_synth"]
    shape = KINDS[kind](peers)
    return make_graph(kind, peers, manifest=parse_manifest(apply_settings({}, settings), "benchmark"), **shape)  # type: ignore[arg-type]


def starts(graph: Graph) -> Models:
    """Return what the peers have learned, float32[N, 2]: halves, random."""
    order = list(graph._distances(graph.ids[0]))
    values = np.empty((len(order), 2), np.float32)
    values[:, 0] = -1
    values[order[: len(order) // 2], 0] = 1
    values[:, 1] = generator(1, "start").normal(size=len(order))
    return values


class Averages:
    """Rounds of `dfedavg` for all peers at once: each averages its arrivals by neighbor id, then merges its own model."""

    def __init__(self, graph: Graph) -> None:
        peers, most = len(graph.ids), max(graph.degrees)
        self._neighbors = np.zeros((most, peers), np.int64)
        self._steps = np.zeros(
            (most, peers, 1), np.float32
        )  # of the running average; 0 where there is no such neighbor
        self._merge = np.zeros((peers, 1), np.float32)
        for peer in graph.ids:
            algorithm, total = DFedAvg(graph.manifest, peer, graph), 0.0
            for place, neighbor in enumerate(graph.neighbors(peer)):
                weight = algorithm.mixing_weight(neighbor)
                total += weight
                self._neighbors[place, peer] = neighbor
                self._steps[place, peer] = weight / total
            self._merge[peer] = total / (algorithm.own_weight(total) + total)

    def round(self, models: Models) -> Models:
        """Return the models after a round; float32[N, d]."""
        average = models[self._neighbors[0]]
        for neighbors, step in zip(self._neighbors[1:], self._steps[1:], strict=True):
            average += step * (models[neighbors] - average)
        result: Models = models + self._merge * (average - models)
        return result


def consensus_distance(models: Models) -> Any:
    """Return the root mean square distance of the peers from their mean, for each start; float64[d]."""
    wide = models.astype(np.float64)
    return np.sqrt(((wide - wide.mean(axis=0)) ** 2).mean(axis=0))


def rounds_measured(graph: Graph, rounds_max: int = ROUNDS_MAX) -> list[int | None]:
    """Return for each start the rounds until a hundredth of its consensus distance is left; None: not within ``rounds_max``."""
    models, averages = starts(graph), Averages(graph)
    first, found = consensus_distance(models), [None, None]  # type: tuple[Any, list[int | None]]
    for completed in range(1, rounds_max + 1):
        models = averages.round(models)
        for start in np.flatnonzero(consensus_distance(models) <= LEFT * first):
            found[start] = found[start] or completed
        if None not in found:
            break
    return found


def agreement(kind: str, peers: int) -> list[object]:
    """Return the row of a graph."""
    graph = averaging_graph(kind, peers)
    gap = spectral_gap(graph)
    predicted = rounds_to_agree(gap)
    halves, random = rounds_measured(graph) if predicted and predicted <= ROUNDS_MAX else (None, None)
    degree = 2 * len(graph.edges) / peers
    counts = [f"{count:,}" if count else "" for count in (predicted, halves, random)]
    return [kind, f"{peers:,}", f"{degree:.1f}", f"{gap:.2g}", *counts]


# ---- all of them ---------------------------------------------------------------------------------------------------------


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        logging.disable(logging.WARNING)
        backend, peers = sys.argv[2], int(sys.argv[3])
        print(json.dumps({"backend": backend, "peers": peers, "load": os.getloadavg()[0], **BACKENDS[backend](peers)}))
        return
    parser = new_parser(__doc__)
    parser.add_argument("part", nargs="?", choices=["cost", "agreement"], default="cost")
    parser.add_argument("--peers", type=int, nargs="+", default=[16, 64, 256, 1024], help="of the agreement")
    parser.add_argument(
        "--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="of graphs of the agreement"
    )
    parser.add_argument("--processes", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--simulated", type=int, nargs="*", default=[30, 300, 3000])
    parser.add_argument("--protocol", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--out", type=Path, help="folder of growth.jsonl and growth.png; default: a temporary one")
    given = parser.parse_args()
    if given.part == "agreement":
        rows: list[list[object]] = [agreement(kind, peers) for kind in given.kinds for peers in given.peers]
        header = [
            "graph",
            "peers",
            "degree",
            "spectral gap",
            "rounds predicted",
            "measured, halves",
            "measured, random",
        ]
        record("agreement", "Rounds until a hundredth of the differences is left", header, rows, save=given.save)
        return
    with tempfile.TemporaryDirectory(prefix="growth-") as place:
        out = given.out or Path(place)
        out.mkdir(parents=True, exist_ok=True)
        results = out / "growth.jsonl"
        for backend in BACKENDS:
            for peers in getattr(given, backend):
                known = read_results(results)
                if not any((row["backend"], row["peers"]) == (backend, peers) for row in known):
                    measure(backend, peers, results)
        measured = read_results(results)
        plot(measured, out / "growth.png")
    for backend in BACKENDS:
        measurements = [cells[1:] for cells in table(measured) if cells[0] == backend]
        header = ["peers", *(name for name, _ in COSTS.values())]
        shown = [n for n in range(len(header)) if any(row[n] for row in measurements)]
        title = f"Cost per peer and round, degree {DEGREE}, {backend}; aim: slopes of at most {AIM}"
        if measurements:
            columns, cells = [header[n] for n in shown], [[row[n] for n in shown] for row in measurements]
            record(f"growth-{backend}", title, columns, cells, save=given.save)


if __name__ == "__main__":
    main()
