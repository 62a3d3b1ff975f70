"""The handlers of PeerService: bytes in, checks in order, the runtime's answer out.

Order of checks: identity, limits, form, claimed sender, size, then what the runtime decides; state changes only there.
Every refusal is a reply (or, where the reply type has no room for one, a status with the trailers below); none of them
ends the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Limits, Timeouts
from peer.core.messages import Announce, Beat, Outcome, PushReply
from peer.wire import convert, frames
from peer.wire.identity import Identify, caller_key, peer_of, same_sender
from peer.wire.inbound import Inbound
from peer.wire.limits import CallerLimits
from peer.wire.options import SERVICE
from peer.wire.reception import Reception

REFUSAL_TRAILER = "peer-refusal"
_STATUS = {
    Refusal.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.NOT_A_NEIGHBOR: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.IDENTITY_MISMATCH: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class PeerService:
    """Handlers of one peer; `handlers` gives them to gRPC. Streams end when ``stopping`` is set."""

    def __init__(
        self,
        inbound: Inbound,
        *,
        limits: Limits,
        timeouts: Timeouts,
        identify: Identify | None,
        stopping: asyncio.Event,
    ) -> None:
        self._inbound = inbound
        self._limits = limits
        self._timeouts = timeouts
        self._identify = identify
        self._stopping = stopping
        self._callers = CallerLimits(limits, asyncio.get_running_loop().time)
        self._arriving: set[asyncio.Future[PushReply]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return all methods, bytes in and out: messages are parsed inside, so that a malformed one is a refusal."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "Hello": unary(self.hello),
            "Beat": unary(self.beat),
            "Announce": unary(self.announce),
            "PushModel": grpc.stream_unary_rpc_method_handler(self.push),
            "PullModel": stream(self.pull),
            "Status": unary(self.status),
            "WatchStatus": stream(self.watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def hello(self, data: bytes, context: Any) -> bytes:
        """Answer a handshake."""
        caller: int | None = None
        try:
            caller = self._admit(context)
            hello = convert.unpack_hello(data)
            same_sender(caller, hello.sender)
            return convert.pack_hello_reply(await self._inbound.hello(caller, hello))
        except RemoteProtocolError as error:
            await self._abort(context, caller, error)

    async def beat(self, data: bytes, context: Any) -> bytes:
        """Note a sign of life."""

        async def note(caller: int | None) -> Refusal | None:
            beat: Beat = convert.unpack_beat(data)
            same_sender(caller, beat.sender)
            return await self._inbound.beat(caller, beat)

        return await self._acknowledge(context, note)

    async def announce(self, data: bytes, context: Any) -> bytes:
        """Note what one exchange step will bring."""

        async def note(caller: int | None) -> Refusal | None:
            announce: Announce = convert.unpack_announce(data)
            same_sender(caller, announce.sender)
            return await self._inbound.announce(caller, announce)

        return await self._acknowledge(context, note)

    async def push(self, _requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Receive one model."""
        caller: int | None = None
        reception = Reception(self._inbound, context, None, limits=self._limits, timeouts=self._timeouts)
        try:
            reception.caller = caller = self._caller(context)
            with self._callers.stream(caller_key(caller, context)):
                reply = await self._receive(reception)
        except RemoteProtocolError as error:
            self._inbound.refused(caller, error.code, error.sentence)
            reply = PushReply(Outcome.REFUSED, error.code, error.sentence)
            if error.code is not Refusal.TOO_SLOW:
                await reception.drain()
        return convert.pack_push_reply(reply)

    async def pull(self, data: bytes, context: Any) -> None:
        """Send one model that a neighbor asks for."""
        caller: int | None = None
        try:
            caller = self._caller(context)
            with self._callers.stream(caller_key(caller, context)):
                await self._send(caller, data, context)
        except RemoteProtocolError as error:
            await self._abort(context, caller, error)

    async def status(self, _data: bytes, context: Any) -> bytes:
        """Say what the peer is doing."""
        try:
            self._callers.message(caller_key(self._anyone(context), context))
            return convert.pack_status(self._inbound.status())
        except RemoteProtocolError as error:
            await self._abort(context, None, error)

    async def watch(self, data: bytes, context: Any) -> None:
        """Say what the peer is doing until the observer leaves or the peer stops."""
        try:
            with self._callers.stream(caller_key(self._anyone(context), context)):
                interval_s = convert.unpack_watch(data)
                while not self._stopping.is_set():
                    await context.write(convert.pack_status(self._inbound.status()))
                    await _set_within(self._stopping, interval_s)
        except RemoteProtocolError as error:
            await self._abort(context, None, error)

    async def _receive(self, reception: Reception) -> PushReply:
        admission = await reception.admit()
        if isinstance(admission, PushReply):
            await reception.drain()
            return admission
        await reception.fill(admission)
        # From here on the model is the runtime's, also if the sender goes away before it has its reply.
        arriving = asyncio.ensure_future(self._inbound.arrived(admission))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)
        return await asyncio.shield(arriving)

    async def _send(self, caller: int | None, data: bytes, context: Any) -> None:
        request = convert.unpack_pull(data)
        same_sender(caller, request.sender)
        answer = await self._inbound.pull(caller, request)
        if isinstance(answer, Refusal):
            await _abort(context, answer, "the pull is refused")
        header, payload = answer
        clock, idle_s = asyncio.get_running_loop().time, self._timeouts.idle_transfer_s
        try:
            async with asyncio.timeout(idle_s) as deadline:
                await context.write(convert.pack_header(header))
                for frame, _size in frames.model_frames(payload, self._limits.frame_bytes_max):
                    await context.write(frame)
                    deadline.reschedule(clock() + idle_s)
        except TimeoutError as error:
            sentence = f"the receiver took no byte for {idle_s:g} s (timeouts.idle_transfer_s)"
            raise RemoteProtocolError(Refusal.TOO_SLOW, sentence) from error

    async def _acknowledge(self, context: Any, note: Callable[[int | None], Awaitable[Refusal | None]]) -> bytes:
        caller: int | None = None
        try:
            caller = self._admit(context)
            refusal, reason = await note(caller), ""
        except RemoteProtocolError as error:
            refusal, reason = error.code, error.sentence
            self._inbound.refused(caller, refusal, reason)
        return convert.pack_acknowledgement(refusal, reason)

    def _admit(self, context: Any) -> int | None:
        caller = self._caller(context)
        self._callers.message(caller_key(caller, context))
        return caller

    def _anyone(self, context: Any) -> Subject | None:
        return self._identify(context) if self._identify else None

    def _caller(self, context: Any) -> int | None:
        return peer_of(self._anyone(context))

    async def _abort(self, context: Any, caller: int | None, error: RemoteProtocolError) -> NoReturn:
        self._inbound.refused(caller, error.code, error.sentence)
        await _abort(context, error.code, error.sentence)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _abort(context: Any, code: Refusal, sentence: str) -> NoReturn:
    status = _STATUS.get(code, grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(status, f"{code}: {sentence}", trailing_metadata=((REFUSAL_TRAILER, code.value),))
    raise LocalProtocolError("an aborted call went on")
