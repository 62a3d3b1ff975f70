"""What security costs: TLS beside plaintext, one handshake, good rounds under attack, and mutated messages.

    python benchmarks/security.py [tls handshakes attacks messages] [--size 1 10 100] [--repeats 11] [--periods 8] [--save]

tls, handshakes: pushes go from one process to another over loopback, through everything that a peer does with a model
(`transport.py`). The ratio is the median of the ratios within a repeat. Rounds are those of four peers on a complete graph;
their overhead is what is neither training nor evaluation. A handshake is measured by what the caller brings, at the called
peer and at the caller; the last column says how many a second take a fifth of one core.

attacks, messages: the mutating client attacks one peer in a process of its own; state, models and memory are compared
before and after. For the other attacks three good peers run a testbed over TLS without waiting for each other (async), and
a fourth node of the graph, in this process at a lower priority, attacks all of them. Quiet and attacked periods alternate;
the number is the median, over pairs of neighboring periods, of the good peers' median round under attack over that in
quiet. All share this machine's cores, so what the attacker itself burns is in it. Therefore each attacked period is
followed by one in which this process attacks nobody and burns as much processor time; the rounds under attack over those
are what an attacker elsewhere would cost. The good peers' own processor time per round is beside it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import numpy as np
from growing import processor_s
from record import new_parser, record
from testbeds import QUICK, loopback_graph, run
from transport import LIMITS, MEGABYTE, TIMEOUTS, FoldingReceiver, schema_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile import mutate
from target import ATTACKER as STRANGER
from target_process import TargetProcess

from coordinator_free_bootstrap import Graph, Node, canonical_json, digest, load_graph
from coordinator_free_bootstrap.errors import PeerError, RefusalCode
from coordinator_free_bootstrap.manifest import Timeouts
from peer.bed.testbed.testbed import Supervisor
from peer.bed.testbed.warm_up import warm_up
from peer.core.encoding import encode
from peer.core.messages import Heartbeat, Hello, ModelHeader, Outcome, Phase
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyPair, identity_files, load_key_pair
from peer.identity.pinning import pin
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.wire import convert, frames
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE
from peer.wire.security import MutualTls, SecureChannel
from peer.wire.server import PeerServer

PARTS = ("tls", "handshakes", "attacks", "messages")

# ---- TLS -----------------------------------------------------------------------------------------------------------------

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
    pair = target.pairs[STRANGER]
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


# ---- attacks -------------------------------------------------------------------------------------------------------------

ATTACKER = 3
GOOD = (0, 1, 2)
RUN = [
    "run.pace=async",
    "run.rounds=1000000",
    "run.start.wait_for=0.6",
    "run.model_options.hidden=[512,512]",
    "run.local_epochs=3",
    "run.evaluate_every=1000",
    "run.checkpoint_rounds=0",
]


class Attacker:
    """The fourth node: it has a true key, and uses it badly."""

    def __init__(self, graph: Graph, directory: Path) -> None:
        files = identity_files(directory, ATTACKER)
        self.graph = graph
        self.files = files
        self.tls = MutualTls(graph, ATTACKER, load_key_pair(files))
        self.calls: Counter[str] = Counter()
        self.incarnation = 1
        self.digests: dict[str, str] = {}  # known once the peers have started
        self.model_bytes = 0

    def link(self, peer_id: int) -> NeighborLink:
        """Open a link as a good peer would."""
        address, security = self.graph.node(peer_id).address, self.tls.channel(peer_id)
        return NeighborLink(peer_id, address, limits=WireLimits(), timeouts=Timeouts(), security=security)

    def pem_of(self, peer_id: int) -> bytes:
        """Return a peer's certificate, to trust it."""
        return Certificate.from_text(self.graph.node(peer_id).certificates[0], "graph").pem()

    async def greet(self, link: NeighborLink, anew: bool = False) -> int:
        """Shake hands by echo of the peer's own hello; return the peer's round."""
        status, manifest, said = await link.status(), self.graph.manifest, self.digests
        self.incarnation += anew
        hello = Hello(
            sender=ATTACKER,
            incarnation=self.incarnation,
            wire_version=int(said["wire_version"]),
            manifest_digest=digest(manifest),
            graph_digest=self.graph.digest,
            schema_digest=said["schema"],
            frozen_digest=said["frozen"],
            initial_models_digest=said["initial_models"],
            manifest=canonical_json(manifest),
            round_index=int(status["round_index"]),
            phase=Phase.RUNNING,
        )
        reply = await link.hello(hello)
        if (
            reply.refusal is not None and reply.refusal.code is RefusalCode.MEANING_MISMATCH
        ):  # the reply has the peer's record
            reply = await link.hello(replace(hello, meaning=reply.hello.meaning))
        if reply.refusal is not None:
            raise SystemExit(f"the attacker could not shake hands: {reply.refusal}")
        return int(status["round_index"])

    async def loris(self, peer_id: int) -> None:
        """Hold all streams that a neighbor may have, four bytes a second on each; and raw sockets, a byte a second on each."""
        dribblers = [asyncio.create_task(self._dribble(peer_id)) for _ in range(16)]
        link = self.link(peer_id)
        try:
            while True:
                round_index = await self.greet(link, anew=True)
                streams = [asyncio.create_task(self._trickle(link, round_index)) for _ in range(8)]
                done, waiting = await asyncio.wait(streams, timeout=5)
                await link.heartbeat(Heartbeat(ATTACKER, self.incarnation, round_index, Phase.RUNNING))
                self.calls["streams cut"] += len(done)
                for stream in waiting:
                    stream.cancel()
        finally:
            for dribbler in dribblers:
                dribbler.cancel()
            await link.close()

    async def _trickle(self, link: NeighborLink, round_index: int) -> None:
        header = ModelHeader(ATTACKER, self.incarnation, round_index, 0, 0, 0, 1, 10, 1.0, self.model_bytes, "float32")
        call = link._push()
        self.calls["streams opened"] += 1
        try:
            await call.write(convert.pack_header(header))
            while not call.done():
                await call.write(frames.chunk_frame(memoryview(bytes(4))))
                await asyncio.sleep(1)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError):
            return
        finally:
            call.cancel()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.files.certificate, self.files.key)
        context.set_alpn_protocols(["h2"])
        return context

    async def _dribble(self, peer_id: int) -> None:
        host, _, port = self.graph.node(peer_id).address.rpartition(":")
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                _reader, writer = await asyncio.open_connection(host, int(port), ssl=self._context())
                self.calls["sockets opened"] += 1
                for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(1)
                writer.close()
            await asyncio.sleep(0.1)

    async def flood(self, peer_id: int) -> None:
        """TLS handshakes and hellos without end: every other one with a certificate that nobody has pinned."""
        address = self.graph.node(peer_id).address
        stranger = grpc.ssl_channel_credentials(self.pem_of(peer_id))  # it has no certificate of its own
        while True:
            await self._hello_once(address, self.tls.channel(peer_id))
            await self._hello_once(address, SecureChannel(stranger, f"peer-{peer_id}.federation"))

    async def _hello_once(self, address: str, security: SecureChannel) -> None:
        options = [("grpc.ssl_target_name_override", security.server_name), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, security.credentials, options=options) as channel:
            self.calls["handshakes"] += 1
            with suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{SERVICE}/Hello")(b"\x08\x03", timeout=2)
        await asyncio.sleep(0.005)  # 100 to 200 a second: more, and this process would need a core of its own

    async def storm(self, peer_id: int) -> None:
        """Twenty links at once, each with a whole handshake, cut off, and again every second."""
        while True:
            links = [self.link(peer_id) for _ in range(20)]
            answers = await asyncio.gather(*(self.greet(link) for link in links), return_exceptions=True)
            self.calls["links"] += len(links)
            self.calls["links without an answer"] += sum(isinstance(answer, PeerError) for answer in answers)
            await asyncio.gather(*(link.close() for link in links))
            await asyncio.sleep(1)


class Period(NamedTuple):
    """Some seconds of a run: the rounds that lie in it, and what the good peers used."""

    rounds: list[float]
    processor_s: float


def rounds_between(directory: Path, begin: float, end: float) -> list[float]:
    """Return the seconds of all good peers' rounds that lie in a period of wall-clock time."""
    found = []
    for peer_id in GOOD:
        for line in read_history(StateDir.of_peer(directory, peer_id).history):
            if line["kind"] != "round":
                continue
            ended, took = datetime.fromisoformat(line["time"]).timestamp(), sum(line["seconds"].values())
            if begin <= ended - took and ended <= end:
                found.append(took)
    return found


async def beside_rounds(
    directory: Path, attack: Callable[[int], Awaitable[None]], used: Callable[[], float], seconds: float, repeats: int
) -> tuple[list[Period], list[Period], list[Period]]:
    """Alternate quiet, attacked and burnt periods; return them. ``used``: the processor time of all good peers so far."""

    async def under(attack: Callable[[int], Awaitable[None]]) -> None:
        tasks = [asyncio.ensure_future(attack(peer_id)) for peer_id in GOOD]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def period(course: Awaitable[None]) -> Period:
        began, before = time.time(), used()
        await course
        return Period(rounds_between(directory, began, time.time()), used() - before)

    quiet: list[Period] = []
    attacked: list[Period] = []
    burnt: list[Period] = []
    for _ in range(repeats):
        quiet.append(await period(asyncio.sleep(seconds)))
        mine = time.process_time()
        attacked.append(await period(under(attack)))
        burnt.append(await period(burn(seconds, time.process_time() - mine)))
    return quiet, attacked, burnt


async def burn(seconds: float, processor_s: float) -> None:
    """Use as much processor time in so many seconds, a little at a time, and do nothing with it."""
    end, used = time.monotonic() + seconds, time.process_time()
    while (left := end - time.monotonic()) > 0:
        due = processor_s * (1 - left / seconds) - (time.process_time() - used)
        until = time.process_time() + max(0.0, min(due, 0.02))
        while time.process_time() < until:
            pass
        await asyncio.sleep(0.005)


def slowdowns(seconds: float, repeats: int) -> list[list[object]]:
    """Run the testbed and each attack on it; return a row for each."""
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="abuse-") as name:
        directory = Path(name)
        graph = loopback_graph("complete", 4, RUN)
        warm_up(graph, None)
        bed = Supervisor(graph, directory, threads=1)
        bed.start(GOOD)
        pids = [bed.pid(peer_id) for peer_id in GOOD]

        def used() -> float:
            return sum(map(processor_s, pids))

        os.nice(5)
        try:
            attacker = Attacker(load_graph(directory / "graph.json"), directory)
            attacker.digests, attacker.model_bytes = started(directory)
            for attack in (attacker.loris, attacker.flood, attacker.storm):
                attacker.calls.clear()
                quiet, attacked, burnt = asyncio.run(beside_rounds(directory, attack, used, seconds, repeats))
                what = ", ".join(f"{count} {kind}" for kind, count in attacker.calls.items())
                rows.append(
                    [
                        attack.__name__,
                        what,
                        summary(quiet),
                        summary(attacked),
                        slower(quiet, attacked),
                        slower(burnt, attacked),
                        f"{100 * (per_round(attacked) / per_round(quiet) - 1):+.0f} %",
                    ]
                )
                print(rows[-1], flush=True)
                if set(bed.processes) != set(GOOD) or bed.poll(0):
                    raise SystemExit("a good peer has died")
        finally:
            bed.stop()
    return rows


def slower(before: list[Period], after: list[Period]) -> str:
    """Return by how much the median round is longer: the median over pairs of neighboring periods."""
    pairs = [(b.rounds, a.rounds) for b, a in zip(before, after, strict=True) if b.rounds and a.rounds]
    ratio = statistics.median(statistics.median(a) / statistics.median(b) for b, a in pairs)
    return f"{100 * (ratio - 1):+.0f} %"


def per_round(periods: list[Period]) -> float:
    """Return the processor seconds that a good peer spent on a round."""
    return sum(period.processor_s for period in periods) / sum(len(period.rounds) for period in periods)


def summary(periods: list[Period]) -> str:
    """Return the median round of all periods, and how many rounds there were."""
    rounds = [seconds for period in periods for seconds in period.rounds]
    return f"{1000 * statistics.median(rounds):.0f} ms ({len(rounds)})"


def started(directory: Path) -> tuple[dict[str, str], int]:
    """Wait until the good peers have finished two rounds; return their digests and the bytes of a model."""
    history = StateDir.of_peer(directory, 0).history
    deadline = time.monotonic() + 120
    while sum(line["kind"] == "round" for line in read_history(history)) < 2:
        if time.monotonic() > deadline:
            raise SystemExit("the good peers do not run")
        time.sleep(0.2)
    line = next(line for line in read_history(history) if line["kind"] == "start")
    return line["digests"], 4 * line["parameters"]


def mutations(messages: int) -> list[object]:
    """Send mutated messages to one peer; return the row."""
    limits = WireLimits(requests_per_second=1e6, streams_per_neighbor=64)
    with tempfile.TemporaryDirectory(prefix="abuse-") as name, TargetProcess(Path(name), limits) as target:
        asyncio.run(mutate(target, 2000))
        before = target.ask()
        mutator = asyncio.run(mutate(target, messages, seed=2))
        after = target.ask()
    if after["digest"] != before["digest"] or after["streams"] or after["buffers"]:
        raise SystemExit(f"the peer has changed: {before} {after}")
    grown = (after["memory_bytes"] - before["memory_bytes"]) / 1e6
    refused = Counter(after["refusals"]) - Counter(before["refusals"])
    codes = ", ".join(f"{code} {count}" for code, count in sorted(refused.items(), key=lambda item: -item[1]))
    return [mutator.sent, "unchanged", f"{grown:+.1f} MB", codes]


# ---- all of them ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure the parts that are named and print a table for each."""
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--size", type=float, nargs="*", default=[1, 10, 100], help="tls: model sizes in MB")
    parser.add_argument("--repeats", type=int, default=11, help="tls: pushes of each kind")
    parser.add_argument("--rounds", type=int, default=20, help="tls: of a testbed, 2 or more: the first is not counted")
    parser.add_argument("--runs", type=int, default=3, help="tls: testbeds of each kind, alternating")
    parser.add_argument("--calls", type=int, default=1000, help="handshakes: of each kind")
    parser.add_argument("--seconds", type=float, default=5, help="attacks: of a quiet or an attacked period")
    parser.add_argument("--periods", type=int, default=8, help="attacks: of each kind")
    parser.add_argument("--messages", type=int, default=100_000, help="messages: how many")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"expected {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    if given.runs and given.rounds < 2:
        parser.error(f"--rounds: expected 2 or more, as the first round is not counted, got {given.rounds}")
    if "attacks" in given.parts:  # first: the testbed forks, which must not happen once gRPC has started here
        rows = slowdowns(given.seconds, given.periods)
        header = ["attack", "what came", "round, quiet (rounds)", "round, attacked", "slower by (aim: under 20 %)"]
        header += ["slower than beside a program that burns as much", "own processor time per round"]
        record("attack-rounds", "Good peers' rounds under attack", header, rows, save=given.save)
    if "tls" in given.parts:
        rows = [row for size in given.size for row in throughput(round(size * MEGABYTE) // 4 * 4, given.repeats)]
        if given.runs:
            rows += round_overhead(given.rounds, given.runs)
        record("tls", "TLS beside plaintext", ["what", *WAYS, "ratio"], rows, save=given.save)
    if "handshakes" in given.parts:
        header = ["what the caller does", "the peer, ms", "the caller, ms"]
        header += ["number per second that takes a fifth of a core"]
        record("handshakes", "Processor time of one handshake", header, handshakes(given.calls), save=given.save)
    if "messages" in given.parts:
        header = ["messages", "state and models", "memory", "refused, by code"]
        row = mutations(given.messages)
        record("attack-messages", "Mutated messages against a running peer", header, [row], save=given.save)


if __name__ == "__main__":
    main()
