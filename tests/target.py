"""One real peer under attack: peer 0 of a line 1 - 0 - 2, over TLS, in this process, waiting in round 0 for its neighbors.

Peer 1 attacks, peer 2 is good. Nobody listens at their addresses: they only call.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from coordinator_free_bootstrap import Graph, Node, Subject, parse_manifest
from peer.assembly import LocalSettings, assemble
from peer.core import events as ev
from peer.core.messages import Hello, ModelHeader, Phase
from peer.core.state import Stage
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime import PeerRuntime
from peer.testbed import free_ports
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2
from peer.wire.options import SERVICE
from peer.wire.security import MutualTls

ATTACKER, GOOD, STRANGER, OBSERVER = 1, 2, 3, "watcher"
INCARNATION = 7
RUN: dict[str, Any] = {
    "rounds": 4,
    "fold_order": "arrival",
    "local_epochs": 1,
    # Nothing happens by itself: whatever changes, the attacker has changed.
    "timeouts": {"heartbeat_s": 100.0, "suspicion_s": 400.0, "idle_transfer_s": 10.0, "round_deadline_s": 600.0},
}


def keys() -> dict[Subject, KeyPair]:
    """Return a key pair for everybody."""
    subjects: list[Subject] = [0, ATTACKER, GOOD, STRANGER, OBSERVER]
    made = {subject: make_certificate("federation", subject) for subject in subjects}
    return {s: KeyPair(private, certificate, certificate.pem()) for s, (private, certificate) in made.items()}


def merged(run: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return run settings with others over them, sections key by key."""
    both = {**run}
    for key, value in more.items():
        both[key] = {**both[key], **value} if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


@dataclass
class Target:
    """The peer, and what it is asked from outside."""

    runtime: PeerRuntime
    graph: Graph
    pairs: dict[Subject, KeyPair]
    port: int
    plaintext: bool = False

    def digest(self, lives: bool = True) -> str:
        """Return a digest of everything that an attack must not change: engine state but for its counters, and models.

        Without ``lives``, also but for the incarnation that a neighbor claims: it may end its own former lives.
        """
        engine, models = self.runtime.engine, self.runtime.bench.models
        state = engine.state()
        del state["refusals"]
        if not lives:
            del state["incarnations"]
        state["totals"] = {key: n for key, n in state["totals"].items() if key != "label_conflicts"}  # a counter, too
        state["stage"], state["facts_now"] = str(engine.stage), engine.facts
        found = hashlib.sha256(json.dumps(state, sort_keys=True, default=str).encode())
        for slot in range(len(models)):
            found.update(models.model(slot).tobytes())
            found.update(repr((slot, models.folded_weight(slot), models._weights[slot])).encode())
            if slot in models._asides:
                found.update(models._asides[slot].value.tobytes())
        found.update(repr(len(self.runtime.bench.arrivals)).encode())
        return found.hexdigest()

    def channel(self, subject: Subject | None) -> grpc.aio.Channel:
        """Open a channel to the peer with somebody's certificate."""
        address = f"127.0.0.1:{self.port}"
        if self.plaintext or subject is None:
            return grpc.aio.insecure_channel(address)
        pair = self.pairs[subject]
        credentials = grpc.ssl_channel_credentials(self.pairs[0].certificate.pem(), pair.private_key, pair.chain)
        options = [("grpc.ssl_target_name_override", "peer-0.federation"), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def hello(self, sender: int, **changes: Any) -> Hello:
        """Return a hello that the peer accepts, but for the changes."""
        digests = self.runtime.parts.digests
        fields: dict[str, Any] = {
            "sender": sender,
            "incarnation": INCARNATION,
            "wire_version": int(digests["wire_version"]),
            "manifest_digest": digests["manifest"],
            "graph_digest": digests["graph"],
            "schema_digest": digests["schema"],
            "initial_models_digest": digests["initial_models"],
            "round_index": 0,
            "phase": Phase.RUNNING,
            "manifest": self.runtime.parts.manifest_json,
        }
        return Hello(**(fields | changes))

    def model(self, slot: int = 0, scale: float = 1.0, nan_at: int | None = None) -> np.ndarray[Any, Any]:
        """Return a model to send: one of the peer's own, scaled or spoiled."""
        model = self.runtime.bench.models.model(slot) * np.float32(scale)
        if nan_at is not None:
            model[nan_at] = np.nan
        return model

    def header(self, sender: int, **changes: Any) -> ModelHeader:
        """Return a header that the peer accepts, but for the changes."""
        fields: dict[str, Any] = {
            "sender": sender,
            "incarnation": INCARNATION,
            "round_index": 0,
            "step": 0,
            "slot": 0,
            "index": 0,
            "total": 1,
            "sample_count": 10,
            "degree": 1,
            "mass": 1.0,
            "scalars": (),
            "size_bytes": self.runtime.engine.model_bytes,
            "encoding": "float32",
        }
        return ModelHeader(**(fields | changes))

    async def reach(self, stage: Stage) -> None:
        """Wait until the peer is in a stage."""
        async with asyncio.timeout(30):
            while self.runtime.engine.stage is not stage:
                await asyncio.sleep(0.005)

    async def greet(self, *subjects: int) -> None:
        """Shake hands as these neighbors, and be alive: nobody listens at their addresses, so the engine is told of an answer."""
        for subject in subjects:
            async with self.channel(subject) as channel:
                reply = await call(channel, "Hello", convert.pack_hello(self.hello(subject)))
                assert not peer_pb2.HelloReply.FromString(reply).refusal
            self.runtime.post(ev.Greeted(self.hello(subject), answered=True))

    async def push_good(self, index: int = 0) -> peer_pb2.PushReply:
        """Push one good model as the good neighbor."""
        model = self.model()
        chunks = frames.model_frames(model.view(np.uint8), self.graph.manifest.limits.frame_bytes_max)
        messages = [convert.pack_header(self.header(GOOD, index=index)), *(frame for frame, _size in chunks)]
        async with self.channel(GOOD) as channel:
            return peer_pb2.PushReply.FromString(await push(channel, messages))


async def call(channel: grpc.aio.Channel, method: str, data: bytes) -> bytes:
    """Make a unary call with raw bytes."""
    reply: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=20)
    return reply


async def push(
    channel: grpc.aio.Channel, messages: list[bytes], hold: bool = False, trickle_s: float | None = None
) -> bytes:
    """Push raw frames; ``hold`` leaves the stream open until the answer, ``trickle_s`` lets four bytes follow that often."""
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
        pass  # it has answered already
    reply: bytes = await stream
    return reply


class _Stripped:
    """TLS that ends in front of the peer: the server itself serves plaintext, and still asks who calls."""

    def __init__(self, tls: MutualTls) -> None:
        self.identify = tls.identify
        self.channel = tls.channel

    def server_credentials(self) -> None:
        return None


@asynccontextmanager
async def under_attack(
    directory: Path, run: dict[str, Any] | None = None, *, plaintext: bool = False
) -> AsyncIterator[Target]:
    """Run the peer until the block ends.

    Args:
        directory: for its state.
        run: manifest keys beside `RUN`.
        plaintext: serve without TLS and demand it all the same.
    """
    ports, pairs = free_ports(4), keys()
    nodes = tuple(Node(i, f"127.0.0.1:{port}") for i, port in enumerate(ports))
    manifest = parse_manifest(merged(RUN, run or {}), "target")
    graph = pin(Graph(nodes, ((0, 1), (0, 2), (2, 3)), manifest), [pair.certificate for pair in pairs.values()])
    tls: Any = MutualTls(graph, 0, pairs[0])
    parts = assemble(0, graph, LocalSettings(directory))
    runtime = PeerRuntime(parts, _Stripped(tls) if plaintext else tls)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(runtime.run(listening.set_result))
    try:
        yield Target(runtime, graph, pairs, await listening, plaintext)
        assert not running.done(), running
    finally:
        runtime._finish("left")
        await running
        parts.lock.release()
