"""What a tunnel costs, and what it is worth.

    python benchmarks/tunnel.py [--size 0.01 1 100] [--repeats 9] [--seeds 1 2 3] [--save]

Cost: pushes to a neighbor that is dialed, over the tunnel that it opens, and over a relay; repeats interleaved.

Each way has its own new processes on loopback: sender, receiver and, on a relayed edge, the relay. Pushes run with TLS through
everything that a peer does with a model (`transport.py`); small ones in a row, since the clock of processes counts hundredths
of a second. Processor time is that of all processes of a way for one push; the ratio is that of the medians. `floor` is a dialed
push plus a bare gRPC stream of as many bytes, with TLS and frames of 1 MiB: the bytes of a tunnel cross gRPC twice.
Memory is how far the resident memory of each end rose above what it was before the first push, at its highest.

Worth: accuracy of peers that cannot be dialed, and of their neighbors, in runs of real processes: a ring in which a third of the
peers sit behind a firewall that lets nothing in. *Without tunnels* those peers open none, so their neighbors cannot call them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import grpc.aio
import numpy as np
from growing import processor_s
from record import new_parser, record
from testbeds import Outcome as Run
from testbeds import loopback_graph, run
from transport import MEGABYTE, FoldingReceiver, memory_bytes, schema_of

from coordinator_free_bootstrap import Graph, Relay, make_graph
from peer.bed.testbed.ports import free_ports
from peer.core.encoding import encode
from peer.core.messages import ModelHeader, Outcome
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.lab.comparison import half_width
from peer.runtime.edges import Edges
from peer.wire.limits import WireLimits
from peer.wire.memory import keep_frame_memory
from peer.wire.options import channel_options, server_options
from peer.wire.security import MutualTls, open_channel
from peer.wire.server import PeerServer

SENDER, RECEIVER, RELAY = 0, 1, 2
WAYS = ("dialed", "tunnel", "relay", "bare")
AIM = 1.5  # times the processor time of a dialed edge
WARM_UP = 2  # pushes before the first that counts: connections, flow control, memory
UNLIMITED = 1 << 40  # bytes per second of the relay
PAUSE_S = 0.05  # between two attempts while the tunnels come up
BURST_BYTES, BURST_MAX = 20 * MEGABYTE, 100  # pushes in a row: so many bytes, at most so many
BARE_FRAME_BYTES = 1 << 20


def graph_of(way: str) -> tuple[Graph, list[KeyPair]]:
    """Return a graph of three peers on free ports in which the sender reaches the receiver in one way, and their keys."""
    graph = make_graph("complete", 3)
    dialers = {"tunnel": (RECEIVER,), "relay": (SENDER, RECEIVER)}.get(way, ())
    nodes = (
        replace(node, address=f"127.0.0.1:{port}", dials_only=node.id in dialers, relay=Relay(UNLIMITED, 8))
        if node.id not in dialers
        else replace(node, address="", dials_only=True)
        for node, port in zip(graph.nodes, free_ports(3), strict=True)
    )
    graph = replace(graph, nodes=tuple(nodes), via=((SENDER, RECEIVER, RELAY),) if way == "relay" else ())
    made = [make_certificate("federation", peer_id) for peer_id in graph.ids]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    return pin(graph, [pair.certificate for pair in pairs]), pairs


def peer(peer_id: int, way: str, graph: Graph, private: bytes, pem: bytes, size: int, orders: Connection) -> None:
    """Run one peer until it is ended; it obeys orders."""
    tls = MutualTls(graph, peer_id, KeyPair(private, Certificate.from_pem(pem, "own"), pem))
    asyncio.run((_bare if way == "bare" else _peer)(peer_id, graph, tls, size, orders))


async def _peer(peer_id: int, graph: Graph, tls: MutualTls, size: int, orders: Connection) -> None:
    edges = Edges(peer_id, graph, tls)
    server = PeerServer(
        FoldingReceiver(size // 4 if peer_id == RECEIVER else 1),
        graph.node(peer_id).address,
        limits=WireLimits(),
        timeouts=graph.manifest.timeouts,
        credentials=tls.server_credentials(),
        identify=tls.identify,
        switchboard=edges.switchboard,
        local=edges.service,
    )
    await server.start()
    edges.open()
    theta = np.random.default_rng(1).standard_normal(size // 4 if peer_id == SENDER else 1, np.float32)
    header = ModelHeader(SENDER, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")

    async def push() -> None:
        reply = await edges.links[RECEIVER].push(header, payload)
        if reply is not Outcome.FOLDED:
            raise SystemExit(f"push: {reply}")

    await _obey(orders, push)


async def _bare(peer_id: int, graph: Graph, tls: MutualTls, size: int, orders: Connection) -> None:
    """The bytes of a push through gRPC with TLS, and nothing else."""
    keep_frame_memory()

    async def take(_requests: object, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        return b""

    timeouts, address = graph.manifest.timeouts, graph.node(RECEIVER).address
    server = grpc.aio.server(options=server_options(timeouts, WireLimits()))
    methods = {"Take": grpc.stream_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", methods),))
    server.add_secure_port(graph.node(peer_id).address, tls.server_credentials())
    await server.start()
    stream = open_channel(address, channel_options(timeouts), tls.channel(1 - peer_id)).stream_unary("/bare/Take")
    frames = [bytes(min(BARE_FRAME_BYTES, size - start)) for start in range(0, size, BARE_FRAME_BYTES)]

    async def push() -> None:
        call = stream()
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
        await call

    await _obey(orders, push)


async def _obey(orders: Connection, push: Callable[[], Awaitable[None]]) -> None:
    """Answer each order, a number of pushes, with their seconds or an error; answer 0 with the bytes that memory grew by."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory from now on
    before = memory_bytes("VmRSS")
    orders.send("up")
    while True:
        pushes = await asyncio.to_thread(orders.recv)
        began = time.perf_counter()
        try:
            for _ in range(pushes):
                await push()
            orders.send(time.perf_counter() - began if pushes else memory_bytes("VmHWM") - before)
        except Exception as error:  # the tunnel is not up yet; the caller ends the benchmark if that stays so
            orders.send(str(error))


class Way:
    """The processes of one way."""

    def __init__(self, name: str, size: int) -> None:
        graph, pairs = graph_of(name)
        context = multiprocessing.get_context("spawn")
        self.orders: dict[int, Connection] = {}
        self.pids: list[int] = []
        self.seconds: list[float] = []
        self.used: list[float] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._burst = max(1, min(BURST_MAX, BURST_BYTES // size))
        for peer_id in graph.ids if name == "relay" else (SENDER, RECEIVER):
            ours, theirs = context.Pipe()
            pair = pairs[peer_id]
            arguments = (peer_id, name, graph, pair.private_key, pair.chain, size, theirs)
            process = context.Process(target=peer, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends a wait for its answer
            self._processes.append(process)
            self.orders[peer_id] = ours
            self.pids.append(process.pid or 0)

    def wait_until_up(self) -> None:
        """Wait until all processes serve."""
        for each in self.orders.values():
            each.recv()

    def push(self, attempts: int = 1) -> None:
        """Push models in a row, and note the seconds and processor seconds of one."""
        for attempt in range(attempts):
            before = sum(map(processor_s, self.pids))
            self.orders[SENDER].send(self._burst)
            answer = self.orders[SENDER].recv()
            if isinstance(answer, float):
                self.seconds.append(answer / self._burst)
                self.used.append((sum(map(processor_s, self.pids)) - before) / self._burst)
                return
            if attempt + 1 == attempts:
                raise SystemExit(f"push: {answer}")
            time.sleep(PAUSE_S)

    def grown(self) -> list[int]:
        """Return by how many bytes the memory of each end grew: sender, receiver, relay."""
        for each in self.orders.values():
            each.send(0)
        return [each.recv() for each in self.orders.values()]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def measure(size: int, repeats: int) -> list[list[object]]:
    """Return the rows of one model size."""
    ways = {name: Way(name, size) for name in WAYS}
    try:
        for way in ways.values():
            way.wait_until_up()
        for repeat in range(WARM_UP + repeats):
            for way in ways.values():
                way.push(attempts=200 if repeat == 0 else 1)
        grown_by = {name: way.grown() for name, way in ways.items()}
    finally:
        for way in ways.values():
            way.stop()
    rows: list[list[object]] = []
    used = {name: statistics.median(way.used[WARM_UP:]) for name, way in ways.items()}
    used["floor"] = used["dialed"] + used.pop("bare")
    for name, seconds in used.items():
        ratio = f"{seconds / used['dialed']:.2f}" + (f" (aim {AIM:g})" if name == "tunnel" else "")
        measured = name in ways  # the floor is a sum
        speed = f"{size / statistics.median(ways[name].seconds[WARM_UP:]) / MEGABYTE:.3g}" if measured else ""
        memory = " / ".join(f"{grown / MEGABYTE:.0f}" for grown in grown_by[name]) if measured else ""
        rows.append([f"{size / MEGABYTE:g} MB, {name}", speed, f"{1000 * seconds:.3g}", ratio, memory])
    return rows


# ---- accuracy ----------------------------------------------------------------------------------------------------------

CLOSED = "127.0.0.1:9"  # nothing listens there
PEERS, BEHIND = 6, (1, 4)
SETTINGS = [
    "run.split=iid",
    "run.batch_size=10",
    "run.model_options.hidden=16",
    "run.start.deadline_s=5",
    "run.timeouts.suspicion_s=10",
    "run.timeouts.round_deadline_s=20",
]
CASES = {  # name -> algorithm, firewall, tunnels
    "local": ("local", False, False),
    "dfedavg, without tunnels": ("dfedavg", True, False),
    "dfedavg, with tunnels": ("dfedavg", True, True),
    "dfedavg, no firewall": ("dfedavg", False, False),
}


def dials_only(graph: Graph) -> Graph:
    """Return the graph in which the peers behind the firewall only dial."""
    nodes = (replace(node, address="", dials_only=True) if node.id in BEHIND else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@contextmanager
def no_tunnels() -> Iterator[None]:
    """Let nobody call the peers behind the firewall, and let those open no tunnel."""
    open_links = Edges.open

    def opened(edges: Edges, *, offers: bool = True) -> None:
        open_links(edges, offers=offers)
        for neighbor in edges.links.keys() & set(BEHIND):
            edges.links[neighbor].redirect(CLOSED)

    with patch.object(Edges, "open", opened), patch.object(Edges, "offer_to", lambda _edges, _neighbor: None):
        yield


def outcome_of(case: str, rounds: int, samples: int, seed: int) -> Run:
    """Run one case with one seed."""
    algorithm, firewall, tunnels = CASES[case]
    settings = [*SETTINGS, f"run.algorithm={algorithm}", f"run.rounds={rounds}", f"run.seed={seed}"]
    settings += [f"run.split_options.samples_per_peer={samples}", "run.split_options.test_per_peer=100"]
    graph = loopback_graph("ring", PEERS, settings)
    if firewall and tunnels:
        return run(dials_only(graph))
    if firewall:
        with no_tunnels():
            return run(graph, codes=(0, 51))  # 51: a peer behind the firewall may be alone in most rounds
    return run(graph)


def accuracies(outcome: Run) -> tuple[float, float, float]:
    """Return the mean accuracy behind the firewall and of the others, in percent, and the models folded per peer and round."""
    last, folded = {}, []
    for peer_id, history in outcome.histories.items():
        rounds = [line for line in history if line["kind"] == "round"]
        last[peer_id] = 100 * rounds[-1]["metric_value"]
        folded += [len(line["folded"]) for line in rounds]
    behind = statistics.mean(last[peer_id] for peer_id in BEHIND)
    return behind, statistics.mean(last[p] for p in last if p not in BEHIND), statistics.mean(folded)


def accuracy(rounds: int, samples: int, seeds: list[int]) -> list[list[object]]:
    """Return a row for each case."""
    rows: list[list[object]] = []
    for case in CASES:
        outcomes = [outcome_of(case, rounds, samples, seed) for seed in seeds]
        behind, beside, folded = (list(values) for values in zip(*map(accuracies, outcomes), strict=True))
        rows.append([case, shown(behind), shown(beside), f"{statistics.mean(folded):.2f}"])
    return rows


def shown(values: list[float]) -> str:
    """Return the mean and half of its 95 % interval over the seeds."""
    half = half_width(values)
    return f"{statistics.mean(values):.1f}" + ("" if half is None else f" ± {half:.1f}")


def main() -> None:
    """Measure both and print two tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--size", type=float, nargs="*", default=[0.01, 1, 100], help="model sizes in MB")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of the accuracy; none: not measured")
    parser.add_argument("--rounds", type=int, default=40, help="of a run of the accuracy")
    parser.add_argument("--samples", type=int, default=60, help="of a peer")
    given = parser.parse_args()
    if given.seeds:  # first: the testbed forks, which must not happen once gRPC has started here
        columns = [
            "run",
            "accuracy behind the firewall, %",
            "accuracy of their neighbors, %",
            "models folded per peer and round",
        ]
        title = f"Ring of {PEERS}, peers {BEHIND} behind a firewall, {len(given.seeds)} seeds"
        record("tunnel-accuracy", title, columns, accuracy(given.rounds, given.samples, given.seeds), save=given.save)
    if given.size:
        rows = [row for size in given.size for row in measure(round(size * MEGABYTE) // 4 * 4, given.repeats)]
        columns = [
            "push",
            "MB/s",
            "processor ms, all ends",
            "times dialed",
            "memory grown: sender / receiver / relay, MB",
        ]
        record("tunnel", "A tunneled edge beside a dialed one", columns, rows, save=given.save)


if __name__ == "__main__":
    main()
