"""A hostile neighbor: it sends mutated valid messages over TLS."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import grpc
import grpc.aio
from mutation import mutated
from target import ATTACKER, ENDED_WHILE_WRITING, OBSERVER, call, push
from target_process import TargetProcess

from coordinator_free_bootstrap import Subject
from peer.core.messages import (
    Heartbeat,
    Hello,
    ModelHeader,
    Numbers,
    Opening,
    Pass,
    Phase,
    PullRequest,
    Select,
    Statistics,
    SumMessage,
)
from peer.wire import convert, frames
from peer.wire.options import SERVICE

# Each answer must be a reply or one of these. INTERNAL and UNKNOWN would be unhandled errors of the server.
ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}


def channel_to(target: TargetProcess, subject: Subject = ATTACKER) -> grpc.aio.Channel:
    """Open a separate channel with the certificate of a subject."""
    pair = target.pairs[subject]
    credentials = grpc.ssl_channel_credentials(target.pairs[0].chain, pair.private_key, pair.chain)
    options = [("grpc.ssl_target_name_override", "peer-0.federation"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"127.0.0.1:{target.port}", credentials, options=options)


def hello_of(target: TargetProcess, **changes: Any) -> Hello:
    """Return a hello of the attacker; valid except for ``changes``."""
    fields: dict[str, Any] = {"sender": ATTACKER, "incarnation": 7, "round_index": 0, "phase": Phase.RUNNING}
    return Hello(**(target.hello | fields | changes))


class Mutator:
    """Draw and make hostile calls.

    Args:
        target: the attacked peer.
        seed: of all draws.
    """

    def __init__(self, target: TargetProcess, seed: int) -> None:
        self.draw = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.sent = 0
        size = target.model_bytes
        header = ModelHeader(ATTACKER, 7, 0, 0, 0, 0, 1, 10, 1.0, size, "float32")
        chunks = [frames.chunk_frame(memoryview(bytes(n))) for n in (4, 1000, size)]
        # The digest is wrong, so that a push is not folded even if its mutations leave it valid.
        self._push = [convert.pack_header(header), chunks[2], frames.end_frame(b"\1" * 16)]
        self._pieces = [*self._push, *chunks, convert.pack_header(header)]
        self._unary = {
            "Hello": convert.pack_hello(hello_of(target)),
            "Heartbeat": convert.pack_heartbeat(Heartbeat(ATTACKER, 7, 0, Phase.RUNNING)),
            "Select": convert.pack_select(Select(ATTACKER, 7, 0, 1, Numbers.of([0.0] * 2))),
            "Pass": convert.pack_pass(Pass(ATTACKER, 7, 0, 0)),
            "Statistics": convert.pack_statistics(Statistics(ATTACKER, 7, Numbers.of(0, [1.0] * 4))),
            "Sum": convert.pack_sum(SumMessage(ATTACKER, 7, 0, Opening.MEMBERS, bytes(100))),
            "Status": b"",
        }
        self._streams = {
            "PullModel": convert.pack_pull(PullRequest(ATTACKER, 7, 0)),
            "WatchStatus": convert.pack_watch(1.0),
        }

    async def one(self, channel: grpc.aio.Channel) -> None:
        """Make one call; raises AssertionError for an answer that is not allowed."""
        kind = self.draw.random()
        try:
            if kind < 0.35:
                await asyncio.wait_for(push(channel, self._frames(), hold=False), 10)
            elif kind < 0.9:
                method = self.draw.choice(list(self._unary))
                self.sent += 1
                await call(channel, method, self._spoiled(self._unary[method]))
            else:
                await self._read_a_little(channel)
            self.answers["a reply"] += 1
        except grpc.aio.AioRpcError as error:
            if error.details() == ENDED_WHILE_WRITING:
                self.answers["lost here"] += 1
                return
            assert error.code() in ALLOWED, (error.code(), error.details())
            self.answers[error.code().name] += 1

    def _spoiled(self, data: bytes) -> bytes:
        return self.draw.randbytes(self.draw.randint(0, 64)) if self.draw.random() < 0.1 else mutated(data, self.draw)

    def _frames(self) -> list[bytes]:
        messages = list(self._push)
        for _ in range(self.draw.randint(1, 2)):
            at = self.draw.randrange(len(messages))
            if self.draw.random() < 0.6:
                messages[at] = mutated(messages[at], self.draw)
            elif self.draw.random() < 0.5:
                messages.insert(at, self.draw.choice(self._pieces))
            else:
                del messages[at]
                if not messages:
                    break
        self.sent += len(messages)
        return messages

    async def _read_a_little(self, channel: grpc.aio.Channel) -> None:
        method = self.draw.choice(list(self._streams))
        self.sent += 1
        stream = channel.unary_stream(f"/{SERVICE}/{method}")(self._spoiled(self._streams[method]), timeout=10)
        async for _ in stream:
            break
        stream.cancel()


async def mutate(target: TargetProcess, messages: int, *, seed: int = 1, channels: int = 4) -> Mutator:
    """Send mutated messages over several channels at once, one of them an observer's; return the mutator with its counts."""
    mutator = Mutator(target, seed)

    async def send(number: int) -> None:
        async with channel_to(target, OBSERVER if number == 0 else ATTACKER) as channel:
            while mutator.sent < messages:
                await mutator.one(channel)

    await asyncio.gather(*(send(number) for number in range(channels)))
    return mutator
