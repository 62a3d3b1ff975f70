"""One real peer under attack: peer 0 of the line 1 - 0 - 2, over TLS, in this process. It waits in round 0 for its neighbors.

Peer 1 attacks; peer 2 is good. Both only call peer 0: no process listens at their addresses. With secure sums two more good peers
are neighbors of 0, 1 and 2.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from coordinator_free_bootstrap import Graph, Node, Subject, parse_manifest
from coordinator_free_bootstrap import digest as digest_of
from coordinator_free_bootstrap.graph import Removed, run_digest
from peer.bed.testbed.ports import free_ports
from peer.core import events as ev
from peer.core.messages import Hello, ModelHeader, Phase
from peer.core.stages import Stage
from peer.host import PeerHost
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.process import secure_sums
from peer.runtime.world import AsyncioWorld
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE
from peer.wire.security import MutualTls

ATTACKER, GOOD, STRANGER, OBSERVER = 1, 2, 3, "watcher"
MORE_GOOD = (4, 5)  # with secure sums
LINE = ((0, ATTACKER), (0, GOOD), (GOOD, STRANGER))
SUMMED = (
    *itertools.combinations((0, ATTACKER, GOOD, *MORE_GOOD), 2),
    *((n, STRANGER) for n in (GOOD, *MORE_GOOD)),
)
INCARNATION = 7
RUN: dict[str, Any] = {
    "rounds": 4,
    "aggregation": "on_arrival",
    "local_epochs": 1,
}


def keys() -> dict[Subject, KeyPair]:
    """Return a key pair for every subject."""
    subjects: list[Subject] = [0, ATTACKER, GOOD, STRANGER, *MORE_GOOD, OBSERVER]
    made = {subject: make_certificate("federation", subject) for subject in subjects}
    return {s: KeyPair(private, certificate, certificate.pem()) for s, (private, certificate) in made.items()}


def merged(run: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return run settings with ``more`` laid over them, key by key within sections."""
    both = {**run}
    for key, value in more.items():
        both[key] = {**both[key], **value} if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


@dataclass
class Target:
    """The peer under attack, and the calls that tests make to it."""

    world: AsyncioWorld
    graph: Graph
    pairs: dict[Subject, KeyPair]
    port: int
    plaintext: bool = False
    sum_keys: dict[int, bytes] = field(default_factory=dict)  # that neighbors announce in their hellos

    @property
    def host(self) -> PeerHost:
        """Engine, models and algorithm of the peer."""
        return self.world.host

    def open_streams(self) -> int:
        """Return how many pushes wait for an answer."""
        streams: int = self.world.requests.status()["open_streams"]
        return streams

    def digest(self, *, incarnations: bool = True) -> str:
        """Return a digest of all that an attack must not change: the engine's state without its counters, and the models.

        Args:
            incarnations: include the neighbors' incarnations; a neighbor may raise its own.
        """
        state, models = self.host.state.checkpoint(), self.host.workspace.models
        del state["refusals"]
        if not incarnations:
            del state["incarnations"]
        counters = ("models_rejected", "control_messages_sent")  # the second grows with time, by heartbeats
        state["totals"] = {key: count for key, count in state["totals"].items() if key not in counters}
        state["stage"], state["arrivals"] = str(self.host.engine.stage), len(self.host.workspace.arrivals)
        found = hashlib.sha256(json.dumps(state, sort_keys=True, default=str).encode())
        for name, value in vars(models).items():
            if name not in ("_spare", "_shared"):  # unused buffers; which arrays must be copied before a change
                _add(found, name)
                _add(found, value)
        return found.hexdigest()

    def channel(self, subject: Subject | None) -> grpc.aio.Channel:
        """Open a channel to the peer with the certificate of a subject; None: without one."""
        address = f"127.0.0.1:{self.port}"
        if self.plaintext or subject is None:
            return grpc.aio.insecure_channel(address)
        pair = self.pairs[subject]
        credentials = grpc.ssl_channel_credentials(self.pairs[0].certificate.pem(), pair.private_key, pair.chain)
        options = [("grpc.ssl_target_name_override", "peer-0.federation"), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def hello(self, sender: int, **changes: Any) -> Hello:
        """Return a hello that the peer accepts, except for the changes."""
        fields: dict[str, Any] = dataclasses.asdict(self.host.compared)
        fields |= {"sender": sender, "incarnation": INCARNATION, "round_index": 0, "phase": Phase.RUNNING}
        fields["sum_key"] = self.sum_keys.get(sender, b"")
        return Hello(**(fields | changes))

    def model(self, slot: int = 0, scale: float = 1.0, nan_at: int | None = None) -> np.ndarray[Any, Any]:
        """Return a model to send: one of the peer's own, scaled, with a NaN where asked for."""
        models = self.host.workspace.models
        model = models.part.of(models.model(slot)) * np.float32(scale)
        if nan_at is not None:
            model[nan_at] = np.nan
        return model

    def header(self, sender: int, **changes: Any) -> ModelHeader:
        """Return a header that the peer accepts, except for the changes."""
        fields: dict[str, Any] = {
            "sender": sender,
            "incarnation": INCARNATION,
            "round_index": 0,
            "step": 0,
            "slot": 0,
            "index": 0,
            "total": 1,
            "sample_count": 10,
            "mass": 1.0,
            "size_bytes": self.model().nbytes,
            "encoding": "float32",
        }
        return ModelHeader(**(fields | changes))

    async def reach(self, *stages: Stage) -> None:
        """Wait until the peer is in one of these stages."""
        await until(lambda: self.host.engine.stage in stages)

    async def connect(self, *subjects: int) -> None:
        """Complete the handshakes of these neighbors. The engine is given their replies: no process listens there."""
        for subject in subjects:
            async with self.channel(subject) as channel:
                reply = await call(channel, "Hello", convert.pack_hello(self.hello(subject)))
                assert not peer_pb2.HelloReply.FromString(reply).HasField("refusal")
            self.world.post(ev.HandshakeDone(self.hello(subject), answered=True))

    async def push_good(self, index: int = 0) -> peer_pb2.PushReply:
        """Push one good model as the good neighbor."""
        model = self.model()
        header = convert.pack_header(self.header(GOOD, index=index))
        parts = frames.model_frames(header, model.view(np.uint8), self.world.limits.frame_bytes_max)
        messages = [frame for frame, _size in parts]
        async with self.channel(GOOD) as channel:
            return peer_pb2.PushReply.FromString(await push(channel, messages))


def _add(found: Any, value: Any) -> None:
    """Add the bits of nested values to a digest."""
    if isinstance(value, np.ndarray):
        found.update(value.tobytes())
    elif isinstance(value, dict):
        for key, each in value.items():
            found.update(repr(key).encode())
            _add(found, each)
    elif isinstance(value, list):
        for each in value:
            _add(found, each)
    elif is_dataclass(value):
        _add(found, vars(value))
    else:
        found.update(repr(value).encode())


async def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait in the event loop of the peer until a condition holds; fail after so many seconds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


async def call(channel: grpc.aio.Channel, method: str, data: bytes) -> bytes:
    """Make a unary call with raw bytes."""
    reply: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=20)
    return reply


# gRPC's own client says so where a write meets the end of its call: the answer is lost here, and was none of the server's.
ENDED_WHILE_WRITING = "Internal error from Core"


async def push(
    channel: grpc.aio.Channel, messages: list[bytes], hold: bool = False, trickle_s: float | None = None
) -> bytes:
    """Push raw frames.

    Args:
        channel: to the peer.
        messages: the frames.
        hold: leave the stream open until the answer.
        trickle_s: send four more bytes at this interval until the answer.
    """
    stream = channel.stream_unary(f"/{SERVICE}/PushModel")(timeout=60)
    try:
        for message in messages:
            await stream.write(message)
        while trickle_s is not None and not stream.done():
            await stream.write(frames.chunk_frame(memoryview(bytes(4))))
            await asyncio.sleep(trickle_s)
        if not hold:
            await stream.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.InternalError):
        pass  # the peer has answered already
    reply: bytes = await stream
    return reply


class _TerminatedTls:
    """TLS that ends at a proxy: the server is plaintext, and still asks for the caller's identity."""

    def __init__(self, tls: MutualTls) -> None:
        self.identify = tls.identify
        self.channel = tls.channel
        self.ends = tls.ends
        self.fingerprint = tls.fingerprint

    def server_credentials(self) -> None:
        return None


class _StoppedClock(AsyncioWorld):
    """A world in which no time passes for the engine, so that every change of state is caused by the attacker."""

    def now(self) -> float:
        return 1000.0

    def set_timer(self, at: float) -> None:
        pass


@asynccontextmanager
async def under_attack(
    directory: Path,
    run: dict[str, Any] | None = None,
    *,
    limits: WireLimits | None = None,
    plaintext: bool = False,
    earlier: Sequence[str] = (),
    removed: bool = False,
) -> AsyncIterator[Target]:
    """Run the peer for the duration of the block.

    Args:
        directory: of its state.
        run: manifest keys beside `RUN`.
        limits: of the peer; default: those of every run.
        plaintext: serve without TLS, and still require it.
        earlier: digests of peers and edges of the graph files before, with the same manifest; the last first.
        removed: the attacker is a former peer.
    """
    manifest, pairs = parse_manifest(merged(RUN, run or {}), "target"), keys()
    edges = LINE if manifest.secure_sum is None else SUMMED
    ids = sorted({end for edge in edges for end in edge})
    nodes = tuple(Node(i, f"127.0.0.1:{port}") for i, port in zip(ids, free_ports(len(ids)), strict=True))
    known = [pair.certificate for subject, pair in pairs.items() if subject in (*ids, OBSERVER)]
    graph = pin(Graph(nodes, edges, manifest), known)
    chain = tuple(run_digest(each, digest_of(manifest)) for each in earlier)
    graph = replace(graph, continues=chain)
    if removed:
        former = graph.node(ATTACKER)
        graph = replace(
            graph,
            nodes=tuple(node for node in graph.nodes if node != former),
            edges=tuple(edge for edge in graph.edges if ATTACKER not in edge),
            removed=(Removed(ATTACKER, former.pins, former.certificates),),
        )
    tls = MutualTls(graph, 0, pairs[0])
    parts = assemble(0, graph, LocalSettings.at(directory), secure_sums(0, graph, tls))
    shown = _TerminatedTls(tls) if plaintext else tls
    world = _StoppedClock(parts, shown, limits)  # type: ignore[arg-type]
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(world.run(listening.set_result))
    try:
        yield Target(world, graph, pairs, await listening, plaintext)
        assert not running.done(), running
    finally:
        world.stop("left")
        await running
        parts.lock.release()
