"""What TLS costs: pushes and rounds with it beside those without, repeats interleaved; and the processor time of one handshake.

    python benchmarks/tls.py [--size 100] [--repeats 11] [--rounds 20] [--handshakes 1000] [--save]

Pushes go from one process to another over loopback, through everything that a peer does with a model (`transport.py`). The
ratio is the median of the ratios within a repeat. Rounds are those of four peers on a complete graph; their overhead is what is
neither training nor evaluation. A handshake is measured by what the caller brings, at the called peer and at the caller; the
last column says how many a second take a fifth of one core.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from growing import processor_s
from record import new_parser, record
from testbeds import QUICK, loopback_graph, run
from transport import LIMITS, MEGABYTE, TIMEOUTS, FoldingReceiver, schema_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from target import ATTACKER
from target_process import TargetProcess

from coordinator_free_bootstrap import Graph, Node
from peer.core.encoding import encode
from peer.core.messages import ModelHeader, Outcome
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

WAYS = ("TLS", "plaintext")
MODEL = ["run.model=mlp", "run.model_options.hidden=[256,256]", "run.local_epochs=1", "run.batch_size=100"]


def both_ends() -> tuple[Graph, list[KeyPair]]:
    """Return a graph of two pinned peers and their keys."""
    made = [make_certificate("federation", peer_id) for peer_id in (0, 1)]
    pairs = [KeyPair(private, certificate, certificate.pem()) for private, certificate in made]
    graph = Graph((Node(0, "127.0.0.1:1"), Node(1, "127.0.0.1:2")), ((0, 1),))
    return pin(graph, [pair.certificate for pair in pairs]), pairs


def receive(size: int, tls: MutualTls | None, ports: Connection) -> None:
    """Serve as peer 0 until the process is ended."""

    async def main() -> None:
        secure = {"credentials": tls.server_credentials(), "identify": tls.identify} if tls else {}
        receiver = FoldingReceiver(size // 4)
        server = PeerServer(receiver, "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS, **secure)
        ports.send(await server.start())
        await asyncio.Event().wait()

    asyncio.run(main())


def receive_with_keys(size: int, graph: Graph, private: bytes, pem: bytes, ports: Connection) -> None:
    """Serve as peer 0; keys travel to the new process as bytes."""
    from peer.identity.certificates import Certificate

    tls = MutualTls(graph, 0, KeyPair(private, Certificate.from_pem(pem, "0"), pem)) if private else None
    receive(size, tls, ports)


async def pushes(
    size: int, repeats: int, ports: dict[str, int], pids: dict[str, int], tls: MutualTls
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each push, repeat by repeat, and the processor seconds of one push at both ends together."""
    theta = np.random.default_rng(1).standard_normal(size // 4, np.float32)
    header = ModelHeader(1, 1, 0, 0, 0, 0, 1, 100, 1.0, theta.nbytes, "float32")
    payload = encode(theta, schema_of(theta.size), "float32")
    links = {}
    for way, port in ports.items():
        security = tls.channel(0) if way == "TLS" else None
        links[way] = NeighborLink(0, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, security=security)
    seconds: dict[str, list[float]] = {way: [] for way in links}
    used = dict.fromkeys(links, 0.0)
    for repeat in range(repeats + 2):
        for way, link in links.items():
            began, used_here, used_there = time.perf_counter(), time.process_time(), processor_s(pids[way])
            reply = await link.push(header, payload)
            if reply is not Outcome.FOLDED:
                raise SystemExit(f"push: {reply}")
            if repeat >= 2:  # the first two warm up connections, flow control and memory
                seconds[way].append(time.perf_counter() - began)
                used[way] += time.process_time() - used_here + processor_s(pids[way]) - used_there
    for link in links.values():
        await link.close()
    return seconds, {way: total / repeats for way, total in used.items()}


def throughput(size: int, repeats: int) -> list[list[object]]:
    """Return the rows of pushes: both speeds and their ratio, both processor times and theirs."""
    graph, pairs = both_ends()
    context = multiprocessing.get_context("spawn")
    ports, pids, processes = {}, {}, []
    for way in WAYS:
        ours, theirs = context.Pipe()
        keys = (pairs[0].private_key, pairs[0].chain) if way == "TLS" else (b"", b"")
        process = context.Process(target=receive_with_keys, args=(size, graph, *keys, theirs), daemon=True)
        process.start()
        processes.append(process)
        ports[way], pids[way] = ours.recv(), process.pid or 0
    try:
        seconds, used = asyncio.run(pushes(size, repeats, ports, pids, MutualTls(graph, 1, pairs[1])))
    finally:
        for process in processes:
            process.terminate()
            process.join()
    ratio = statistics.median(p / t for p, t in zip(seconds["plaintext"], seconds["TLS"], strict=True))
    speeds = [f"{size / statistics.median(seconds[way]) / 1e9:.2f} GB/s" for way in WAYS]
    name = f"push of {size / MEGABYTE:g} MB"
    rows: list[list[object]] = [[name, *speeds, f"{ratio:.2f} of plaintext's speed (aim 0.6)"]]
    if size >= 100 * MEGABYTE:  # the kernel counts in hundredths of a second
        times = [f"{1000 * used[way]:.0f} ms" for way in WAYS]
        rows.append([f"{name}, processor time, both ends", *times, f"{used['plaintext'] / used['TLS']:.2f} of TLS's"])
    return rows


def round_overhead(rounds: int, repeats: int) -> list[list[object]]:
    """Return the rows of rounds: overhead and whole round, medians over all peers and rounds but the first."""
    overheads: dict[str, list[float]] = {way: [] for way in WAYS}
    totals: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            graph = loopback_graph("complete", 4, [*QUICK, *MODEL, f"run.rounds={rounds}"])
            for line in run(graph, insecure=way == "plaintext").lines("round"):
                if line["round_index"] > 0:
                    seconds = line["seconds"]
                    totals[way].append(sum(seconds.values()))
                    own = seconds.get("train", 0) + seconds.get("evaluate", 0)
                    overheads[way].append(sum(seconds.values()) - own)
    rows: list[list[object]] = []
    for name, found in (("round overhead, 4 peers", overheads), ("whole round, 4 peers", totals)):
        tls, plain = (statistics.median(found[way]) for way in WAYS)
        rows.append([name, f"{1000 * tls:.1f} ms", f"{1000 * plain:.1f} ms", f"{tls / plain:.2f} times plaintext"])
    return rows


# ---- handshakes --------------------------------------------------------------------------------------------------------

Deed = Callable[[TargetProcess], Coroutine[Any, Any, None]]


async def connect(target: TargetProcess) -> None:
    """Open a TCP connection and close it."""
    with socket.create_connection(("127.0.0.1", target.port)):
        pass


def _channel(target: TargetProcess, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    options = [("grpc.ssl_target_name_override", "peer-0.federation"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"127.0.0.1:{target.port}", credentials, options=options)


def _proved(target: TargetProcess) -> grpc.ChannelCredentials:
    pair = target.pairs[ATTACKER]
    return grpc.ssl_channel_credentials(target.pairs[0].chain, pair.private_key, pair.chain)


async def _call(target: TargetProcess, credentials: grpc.ChannelCredentials, *methods: str) -> None:
    async with _channel(target, credentials) as channel:
        for method in methods:
            with suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/{method}")(b"\x08\x03", timeout=2)


async def stranger(target: TargetProcess) -> None:
    """A TLS handshake without a certificate: it fails."""
    await _call(target, grpc.ssl_channel_credentials(target.pairs[0].chain), "Hello")


async def silent(target: TargetProcess) -> None:
    """A TLS handshake with a neighbor's certificate, and no call."""
    async with _channel(target, _proved(target)) as channel:
        await channel.channel_ready()


async def unknown(target: TargetProcess) -> None:
    """The same, and a call of a method that does not exist: gRPC alone answers."""
    await _call(target, _proved(target), "Nothing")


async def neighbor(target: TargetProcess) -> None:
    """The same, and a hello that is refused."""
    await _call(target, _proved(target), "Hello")


async def ten(target: TargetProcess) -> None:
    """The same, and ten such hellos on the one connection."""
    await _call(target, _proved(target), *["Hello"] * 10)


def handshakes_of(target: TargetProcess, deed: Deed, count: int) -> list[object]:
    """Return a row: what it is, and the milliseconds of both sides."""

    async def all_of_them() -> None:
        for _ in range(count):
            await deed(target)

    asyncio.run(deed(target))
    theirs, mine = processor_s(target.process.pid), time.process_time()
    asyncio.run(all_of_them())
    mine = time.process_time() - mine
    target.ask()  # by now it has dealt with all of them
    theirs = processor_s(target.process.pid) - theirs
    each = 1000 * theirs / count
    return [
        str(deed.__doc__).rstrip("."),
        f"{each:.2f}",
        f"{1000 * mine / count:.2f}",
        f"{200 / each:.0f}" if each else "",
    ]


def handshakes(count: int) -> list[list[object]]:
    """Return a row for each way to call a peer."""
    limits = WireLimits(requests_per_second=1e6)
    with tempfile.TemporaryDirectory() as place, TargetProcess(Path(place), limits) as target:
        return [handshakes_of(target, deed, count) for deed in (connect, stranger, silent, unknown, neighbor, ten)]


def main() -> None:
    """Measure all and print two tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--size", type=float, nargs="*", default=[1, 10, 100], help="model sizes in MB")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=20, help="of a testbed, 2 or more: the first one is not counted")
    parser.add_argument("--runs", type=int, default=3, help="testbeds of each kind, alternating")
    parser.add_argument("--handshakes", type=int, default=1000, help="of each kind; 0: none")
    given = parser.parse_args()
    if given.runs and given.rounds < 2:
        parser.error(f"--rounds: expected 2 or more, as the first round is not counted, got {given.rounds}")
    rows = [row for size in given.size for row in throughput(round(size * MEGABYTE) // 4 * 4, given.repeats)]
    if given.runs:
        rows += round_overhead(given.rounds, given.runs)
    if rows:
        record("tls", "TLS beside plaintext", ["what", *WAYS, "ratio"], rows, save=given.save)
    if given.handshakes:
        header = [
            "what the caller does",
            "the peer, ms",
            "the caller, ms",
            "number per second that takes a fifth of a core",
        ]
        title = "Processor time of one handshake"
        record("handshakes", title, header, handshakes(given.handshakes), save=given.save)


if __name__ == "__main__":
    main()
