"""What a running peer does when a neighbor calls: check who speaks, tell the engine, wait for its answer.

The wire calls these methods; none of them calls a neighbor. Models wait here in their streams until the engine admits them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from coordinator_free_bootstrap.handshake import check_hello
from peer import failpoints
from peer.core import events as ev
from peer.core.averaging import Vector
from peer.core.decisions import Rejection
from peer.core.engine import Engine
from peer.core.messages import Announce, Beat, Hello, HelloReply, ModelHeader, Outcome, PushReply
from peer.core.state import Stage
from peer.wire.inbound import Admission

Answer = Admission | PushReply
UNUSED = PushReply(Outcome.UNUSED)


@dataclass
class Stream:
    """One push from a neighbor: first waiting for an answer to its header, then for one to its model."""

    header: ModelHeader
    answer: asyncio.Future[Answer]
    admission: Admission | None = None
    model: Vector | None = None  # what the admission's buffer belongs to, for float32
    reply: asyncio.Future[PushReply] | None = None


class InboundCalls:
    """The runtime's side of `peer.wire.inbound.Inbound`, apart from pulls and status.

    Args:
        engine: is told of everything that passes the first checks.
        post: gives an event to the engine's loop.
        hello_for: makes this peer's own hello to a neighbor.
        screen: returns why a complete model is not taken (finiteness, norm); runs off the event loop.
        on_refused: is told of each refusal, for counting and logging.
        reached: is told of each neighbor whose hello was accepted: it can be called now.
    """

    def __init__(
        self,
        engine: Engine,
        post: Callable[[ev.Event], None],
        hello_for: Callable[[int], Hello],
        screen: Callable[[Admission], Any],
        on_refused: Callable[[int | None, Refusal, str], None],
        reached: Callable[[int], None] = lambda _sender: None,
    ) -> None:
        self._engine = engine
        self._post = post
        self._hello_for = hello_for
        self._screen = screen
        self._moved_at: dict[int, float] = {}
        self._reached = reached
        self._on_refused = on_refused
        self._next_stream = 0
        self.streams: dict[int, Stream] = {}
        self._stream_of: dict[int, tuple[int, Stream]] = {}  # id(admission) -> stream

    async def hello(self, caller: int | None, hello: Hello) -> HelloReply:
        """Check a handshake and answer with the own hello, also where it is refused."""
        self._must_not_be_over()
        known = self._engine.views.get(hello.sender)
        if not self._engine.neighbors:
            raise RemoteProtocolError(Refusal.NOT_A_NEIGHBOR, f"peer {self._engine.peer_id} has no neighbors")
        mine = self._hello_for(hello.sender) if known else self._hello_for(self._engine.neighbors[0])
        problem = check_hello(
            mine, hello, neighbors=self._engine.neighbors, last_incarnation=known.last_incarnation if known else 0
        )
        if problem is not None:
            code, sentence = problem
            self._engine.refusals[code] += 1
            self._on_refused(hello.sender, code, sentence)
            return HelloReply(mine, code, sentence)
        self._reached(hello.sender)
        failpoints.reach("hello.end")
        self._post(ev.Greeted(hello, answered=False))
        return HelloReply(mine)  # made before: it says which earlier life of the caller is known

    async def beat(self, caller: int | None, beat: Beat) -> Refusal | None:
        """Note a sign of life."""
        rejection = self._engine.admits(beat.sender, beat.incarnation)
        if rejection is None:
            self._post(ev.Heard(beat))
            return self._engine.answer_to_beat(beat.sender)
        return self.reject(beat.sender, rejection)

    async def announce(self, caller: int | None, announce: Announce) -> Refusal | None:
        """Note what a neighbor will deliver."""
        self._must_not_be_over()
        rejection = self._engine.check_announce(announce)
        if rejection is None:
            self._post(ev.Announced(announce))
            return None
        return self.reject(announce.sender, rejection)

    async def offered(self, caller: int | None, header: ModelHeader) -> Answer:
        """Wait until the engine admits a model or answers it unread."""
        self._must_not_be_over()
        rejection = self._engine.admits(header.sender, header.incarnation) or self._size_rejection(header)
        if rejection is not None:
            self.reject(header.sender, rejection)
            return PushReply(Outcome.REFUSED, rejection.code, rejection.reason)
        self._next_stream += 1
        number = self._next_stream
        stream = Stream(header, asyncio.get_running_loop().create_future())
        self.streams[number] = stream
        self._post(ev.Offered(number, header))
        try:
            return await stream.answer
        except asyncio.CancelledError:
            self._forget(number)
            self._post(ev.Cut(number))
            raise

    async def arrived(self, admission: Admission) -> PushReply:
        """Screen a complete model, then wait until the engine has decided about it."""
        number, stream = self._stream_of.pop(id(admission), (0, None))
        if stream is None:  # answered with its last frame: its step closed, or a newer stream carries the same model
            return admission.verdict or UNUSED
        rejection: Rejection | None = await self._screen(admission)
        if rejection is not None:
            self.reject(stream.header.sender, rejection)
            self._forget(number)
            self._post(ev.Cut(number, rejection.code))
            return PushReply(Outcome.REFUSED, rejection.code, rejection.reason)
        if number not in self.streams:
            return admission.verdict or UNUSED
        stream.reply = asyncio.get_running_loop().create_future()
        self._post(ev.Arrived(number))
        return await stream.reply

    def cut(self, admission: Admission, reason: str, code: Refusal | None) -> None:
        """Forget a model that will never be complete. One that is no number is what it is: its sender does not repeat it."""
        number, _ = self._stream_of.pop(id(admission), (0, None))
        if number in self.streams:
            self._forget(number)
            self._post(ev.Cut(number, code if code is Refusal.NON_FINITE else None))

    def refused(self, caller: int | None, code: Refusal, sentence: str) -> None:
        """Count a refusal that the wire made."""
        self._engine.refusals[code] += 1
        self._on_refused(caller, code, sentence)

    # ---- what the runtime does with streams -----------------------------------------------------------------------

    def admit(self, number: int, buffer: np.ndarray[Any, Any], model: Vector | None) -> None:
        """Let a stream be read into ``buffer``."""
        stream = self.streams[number]
        stream.admission = Admission(stream.header, buffer, moving=lambda: self._moving(number))
        stream.model = model
        self._stream_of[id(stream.admission)] = number, stream
        if not stream.answer.done():
            stream.answer.set_result(stream.admission)

    def _moving(self, number: int) -> None:
        """Take a frame of a model for the sign of life that waits behind it; twice a heartbeat is often enough."""
        if number not in self.streams:  # of a life that is over
            return
        sender = self.streams[number].header.sender
        now, view = asyncio.get_running_loop().time(), self._engine.views[sender]
        if now - self._moved_at.get(sender, 0.0) >= self._engine.manifest.timeouts.heartbeat_s / 2:
            self._moved_at[sender] = now
            self._post(ev.Heard(Beat(sender, view.incarnation, view.round_index, view.persisted_round, view.phase)))

    def answer(self, number: int, reply: PushReply) -> None:
        """Answer a push, wherever it is; a stream that is to be folded stays until `take`.

        One that is being read is given up: the engine counts its buffer as free from now on, and so it must be.
        """
        stream = self.streams.get(number)
        if stream is None:
            return
        if stream.reply is not None:
            if not stream.reply.done():
                stream.reply.set_result(reply)
        elif not stream.answer.done():
            stream.answer.set_result(reply)
        elif stream.admission is not None:
            stream.admission.give_up(reply)
        if reply.outcome is not Outcome.FOLDED:
            self._forget(number)

    def take(self, number: int) -> Stream:
        """Remove a complete stream to fold it."""
        return self.streams.pop(number)

    def open_streams(self) -> int:
        """Return how many pushes are unread, being read or waiting for their turn."""
        return len(self.streams)

    def _forget(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream is not None:
            self._stream_of.pop(id(stream.admission), None)

    def _must_not_be_over(self) -> None:
        if self._engine.stage is Stage.STOPPED:
            raise RemoteProtocolError(Refusal.SHUTTING_DOWN, f"peer {self._engine.peer_id} is leaving")

    def _size_rejection(self, header: ModelHeader) -> Rejection | None:
        manifest = self._engine.manifest
        if header.encoding != manifest.encoding:
            return Rejection(Refusal.WRONG_ENCODING, f"encoding {header.encoding!r}; this run's is {manifest.encoding}")
        if header.size_bytes != self._engine.model_bytes:
            return Rejection(
                Refusal.WRONG_SIZE,
                f"a model of {header.size_bytes} bytes; the schema's takes {self._engine.model_bytes}",
            )
        return None

    def reject(self, sender: int, rejection: Rejection) -> Refusal:
        """Count and tell a refusal of the runtime's; return its code."""
        if rejection.code is not Refusal.NO_HANDSHAKE:  # what a restarted peer hears first is no misbehavior
            self._engine.refusals[rejection.code] += 1
            self._on_refused(sender, rejection.code, rejection.reason)
        return rejection.code
