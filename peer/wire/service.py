"""Handlers of PeerService: parse a request, check it in a fixed order, return the peer's answer.

Order of checks: identity, limits, form, sender, size, then the peer's own checks; only the peer changes state. Identity and
limits are checked before the first byte of a request is read. A refusal is a reply, or, where the reply has no field for
it, a status with the trailer of `access`. No refusal stops the server.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TypeVar

import grpc
import grpc.aio
import xxhash

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import NeighborUnavailable, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.arrivals import Arrival
from peer.core.messages import Control, Heartbeat, PushReply
from peer.wire import convert, frames
from peer.wire.access import AccessControl, abort, first_message, require_peer, require_sender
from peer.wire.arrival_probe import ACKNOWLEDGE_METADATA, Acknowledgements, ArrivalProbe
from peer.wire.arrival_reader import ArrivalReader, too_slow
from peer.wire.calls import Context
from peer.wire.frames import OnSent, SentModel
from peer.wire.handler import RequestHandler
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.round_ring import RecordBatch
from peer.wire.switchboard import Switchboard

M = TypeVar("M", bound=Heartbeat | Control)


class PeerServicer:
    """Handlers of one peer. Streams to observers end when ``stopping`` is set."""

    def __init__(
        self,
        handler: RequestHandler,
        *,
        access: AccessControl,
        limits: WireLimits,
        timeouts: Timeouts,
        stopping: asyncio.Event,
        switchboard: Switchboard,
        pacing: Pacing = UNLIMITED,
        on_served: OnSent = lambda _sent: None,
    ) -> None:
        self._on_served = on_served
        self._switchboard = switchboard
        self._pacing = pacing
        self._handler = handler
        self._access = access
        self._limits = limits
        self._timeouts = timeouts
        self._stopping = stopping
        self._completing: set[asyncio.Future[PushReply]] = set()
        self._pulling: defaultdict[int | None, asyncio.Lock] = defaultdict(asyncio.Lock)  # by neighbor

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return all methods for gRPC, with bytes in and out: a message that cannot be parsed is refused here, not in gRPC."""
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods = {
            "Hello": unary(self.hello),
            "Heartbeat": unary(self.heartbeat),
            "Select": unary(self.select),
            "Pass": unary(self.pass_),
            "Statistics": unary(self.statistics),
            "Sum": unary(self.sum),
            "PushModel": unary(self.push),
            "PullModel": stream(self.pull),
            "Status": unary(self.status),
            "WatchStatus": stream(self.watch),
            "OfferTunnel": stream(self.offer_tunnel),
            "UseTunnel": stream(self.use_tunnel),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def hello(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Answer a handshake."""
        async with self._access.peer(context) as caller:
            hello = convert.unpack_hello(await self._access.request(caller, context))
            require_sender(caller, hello.sender)
            return convert.pack_hello_reply(await self._handler.hello(hello))

    async def heartbeat(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take a heartbeat."""
        return await self._acknowledge(context, convert.unpack_heartbeat, self._handler.heartbeat)

    async def select(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take a selection."""
        return await self._acknowledge(context, convert.unpack_select, self._handler.control)

    async def pass_(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take a pass."""
        return await self._acknowledge(context, convert.unpack_pass, self._handler.control)

    async def statistics(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take the numbers of sites."""
        return await self._acknowledge(context, convert.unpack_statistics, self._handler.control)

    async def sum(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take what opens a secure sum."""
        return await self._acknowledge(context, convert.unpack_sum, self._handler.control)

    async def push(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Take one model."""
        subject: Subject | None = None
        caller: int | None = None
        reader = ArrivalReader(
            self._handler, context, None, limits=self._limits, timeouts=self._timeouts, pacing=self._pacing
        )
        try:
            subject = self._access.subject(context)
            reader.caller = caller = require_peer(subject)
            with self._access.stream(subject, context):
                return convert.pack_push_reply(await self._take(reader))
        except RemoteProtocolError as error:
            refusal = error.refusal
            self._handler.refused(caller, refusal)
        # Outside of the except clause: there the error's traceback would keep the model's buffer in memory.
        if refusal.code is not RefusalCode.TOO_SLOW:
            with suppress(RemoteProtocolError), self._access.discard(subject, context):
                await reader.discard()
        return convert.pack_push_reply(refusal)

    async def pull(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Send one model to a neighbor that pulls it; pulls of one neighbor share the upload that one has."""
        async with self._access.peer(context) as caller:
            with self._access.stream(caller, context):
                request = await first_message(context, self._timeouts)
                async with nullcontext() if caller is None else self._pulling[caller]:
                    problem = await self._send(caller, request, context)
                if problem is not None:
                    await self._access.abort(context, caller, problem)

    async def status(self, _requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Return the peer's status."""
        async with self._access.aborting(context):
            caller = self._access.subject(context)
            request = await self._access.request(caller, context)
            await self._pacing.download.take(len(request))
            wanted = 0 if isinstance(caller, str) else convert.unpack_status_request(request)
            reply = convert.pack_status(self._handler.status(), padding_bytes=wanted)
            await self._pacing.upload.take(len(reply))
            return reply

    async def watch(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Send the peer's status repeatedly, until the caller cancels or the peer stops."""
        async with self._access.aborting(context):
            with self._access.stream(self._access.subject(context), context):
                interval_s, since = convert.unpack_watch(await first_message(context, self._timeouts))
                batch = RecordBatch()
                while True:
                    stopping = self._stopping.is_set()
                    batch = RecordBatch() if since is None else self._handler.rounds.batch(since, batch.after)
                    await context.write(convert.pack_status(self._handler.status(), batch))
                    if stopping and not batch.more:  # the last reply has what came while the peer stopped
                        return
                    if not batch.more:
                        await _wait_at_most(self._stopping, interval_s)

    async def offer_tunnel(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Hold a neighbor's offer, and the connection over it, until it ends."""
        async with self._tunnel(context) as (owner, user, probe):
            await self._switchboard.offer(owner, user, context, probe=probe)

    async def use_tunnel(self, _requests: AsyncIterator[bytes], context: Context) -> None:
        """Relay one connection of a neighbor to another neighbor's offer."""
        async with self._tunnel(context) as (user, owner, _probe):
            await self._switchboard.relay(user, owner, context)

    @asynccontextmanager
    async def _tunnel(self, context: Context) -> AsyncIterator[tuple[int, int, bool]]:
        """Yield the ends of a tunnel and whether it is a probe; end the call with the error that is raised inside."""
        async with self._access.peer(context) as caller:
            sender, other, probe = convert.unpack_tunnel_ends(await self._access.request(caller, context))
            require_sender(caller, sender)
            try:
                yield sender, other, probe
            except NeighborUnavailable as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _take(self, reader: ArrivalReader) -> PushReply:
        arrival = await reader.offer()
        if not isinstance(arrival, Arrival):
            await reader.discard()
            return arrival
        await reader.read(arrival)
        if arrival.verdict is not None:
            return arrival.verdict
        # A complete arrival is used even if its sender disconnects before it has the reply: hence the future and the shield.
        completing = asyncio.ensure_future(self._handler.complete(arrival))
        self._completing.add(completing)
        completing.add_done_callback(self._completing.discard)
        return await asyncio.shield(completing)

    async def _send(self, caller: int | None, data: bytes, context: Context) -> RemoteProtocolError | None:
        """Send the model; return the error of a receiver that is too slow.

        Returned, not raised: the status of the call waits behind the bytes that the receiver does not read, for an unlimited
        time, and a traceback would keep the model in memory meanwhile.
        """
        request = convert.unpack_pull(data)
        require_sender(caller, request.sender)
        answer = await self._handler.pull(request)
        if isinstance(answer, Refusal):
            await abort(context, answer)
        header, payload = answer
        clock, idle_s = asyncio.get_running_loop().time, self._timeouts.idle_transfer_s
        began, written = clock(), 0
        receiver, most = request.sender, self._limits.frame_bytes_max
        digest, problem = xxhash.xxh3_128(), "interrupted"
        acknowledged = Acknowledgements(context)
        probe = ArrivalProbe(acknowledged.answer, self._pacing, receiver)
        asks = probe.is_needed
        self._on_served(SentModel(receiver, header))
        try:
            async with asyncio.timeout(idle_s) as deadline:
                if asks:
                    await context.send_initial_metadata(((ACKNOWLEDGE_METADATA, "1"),))
                model = frames.model_frames(
                    convert.pack_header(header), payload, lambda: self._pacing.frame_bytes(receiver, most), digest
                )
                for frame, size in model:
                    await self._pacing.upload.take(len(frame))
                    written, wrote_at = written + size, clock()
                    if written == header.size_bytes:
                        problem = "complete"  # the puller may end the call before this write returns
                    await context.write(frame)
                    acknowledged.wrote()
                    if size:
                        self._pacing.wrote(receiver, written, clock() - began)
                    if asks and probe.is_needed and written < header.size_bytes:  # nobody waits for the last frame
                        await (probe.arrived(size, wrote_at) if size else probe.begin(wrote_at))
                    lasts_s = self._pacing.may_last_s(receiver, header.size_bytes, written, self._timeouts)
                    deadline.reschedule(min(began + lasts_s, clock() + idle_s))
        except TimeoutError:
            problem = "interrupted"
            self._pacing.failed(receiver)
            return too_slow(self._timeouts, written, clock() - began)
        finally:
            self._on_served(SentModel(receiver, header, written, digest.hexdigest(), problem))
        return None

    async def _acknowledge(
        self,
        context: Context,
        unpack: Callable[[bytes], M],
        take: Callable[[M], Awaitable[Refusal | None]],
    ) -> bytes:
        caller: int | None = None
        try:
            caller = require_peer(self._access.subject(context))
            message = unpack(await self._access.request(caller, context))
            require_sender(caller, message.sender)
            refusal = await take(message)
        except RemoteProtocolError as error:
            refusal = error.refusal
            self._handler.refused(caller, refusal)
        return convert.pack_acknowledgement(refusal)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
