"""The client side: one gRPC channel to one neighbor, with a method per RPC.

A link keeps no protocol state and does not retry transfers; the engine does. Unary calls time out after
`timeouts.suspicion_s`, transfers after `Timeouts.idle_transfer_s` without a byte; cancellation ends any call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
import xxhash
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import NeighborUnavailable, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Timeouts
from peer import failpoints
from peer.core.encoding import Payload, Sliced
from peer.core.messages import (
    Control,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Outcome,
    PullRequest,
    PushReply,
    Select,
    Statistics,
    SumMessage,
)
from peer.wire import convert, frames
from peer.wire.access import refusal_of
from peer.wire.arrival_probe import ACKNOWLEDGE_METADATA, ACKNOWLEDGEMENT, METHOD, ArrivalProbe, by_check
from peer.wire.arrival_reader import ACCEPTED_METADATA, check_size, too_slow
from peer.wire.calls import Call
from peer.wire.failures import UNTRUSTED, in_words
from peer.wire.frame_sizes import FIRST_BYTES
from peer.wire.frames import OnSent, SentModel
from peer.wire.limits import WireLimits
from peer.wire.memory import keep_frame_memory
from peer.wire.options import SERVICE, TUNNELS, UNARY, channel_options
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.proxy import HttpProxy
from peer.wire.round_ring import RecordBatch
from peer.wire.security import SecureChannel, open_channel

T = TypeVar("T")
RECONNECTS_MAX, RECONNECTS_S = 5, 10.0  # at most `RECONNECTS_MAX` reconnects in `RECONNECTS_S` seconds


class NeighborLink:
    """One channel to one neighbor. It connects with the first call; construct it inside a running event loop.

    Every call raises NeighborUnavailable if the neighbor does not answer, and RemoteProtocolError if it refuses with a status
    instead of a reply, or if its answer is malformed.

    Args:
        peer_id: of the neighbor.
        address: ``host:port``.
        limits: of messages and models.
        timeouts: of the manifest.
        security: the certificate trusted as this neighbor's; None is plaintext.
        proxy: dials every address that it serves; None: all addresses are dialed directly.
        called_at: where the neighbor is called, for messages; default: at its address.
        keeps_tunnels: whether this channel carries the offers over which neighbors call this peer.
        pacing: of this peer, shared by all its links.
        on_sent: told of each model, before its first byte and after its last one.

    Attributes:
        payload_bytes_sent: encoded model bytes written to streams, also of pushes that did not become complete.
        payload_bytes_received: encoded model bytes of pulls.
        wire_bytes_sent: bytes of all messages with gRPC's 5-byte prefixes, without HTTP/2 and TCP headers.
        unanswered_hellos: in a row, up to now, where the neighbor is called now.
    """

    def __init__(
        self,
        peer_id: int,
        address: str,
        *,
        limits: WireLimits,
        timeouts: Timeouts,
        security: SecureChannel | None = None,
        proxy: HttpProxy | None = None,
        called_at: str = "",
        keeps_tunnels: bool = False,
        pacing: Pacing = UNLIMITED,
        on_sent: OnSent = lambda _sent: None,
    ) -> None:
        self._pacing, self._on_sent = pacing, on_sent
        self.peer_id = peer_id
        self.address = address
        self.payload_bytes_sent = 0
        self.payload_bytes_received = 0
        self.wire_bytes_sent = 0
        self.unanswered_hellos = 0
        self._limits = limits
        self._timeouts = timeouts
        self._security = security
        serving = proxy if proxy and proxy.serves(address) else None
        self._called_at = called_at or f"at {address}{f' through the proxy {proxy}' if serving else ''}"
        self._options = [*channel_options(timeouts, serving, keeps_tunnels=keeps_tunnels), *pacing.options()]
        self._quiet_since: float | None = None
        self._push_began, self._push_bytes = 0.0, 0  # of the push under way: when its frames began, and those written
        self._frame_began = 0.0  # when its last frame was handed to gRPC
        self._closing: set[asyncio.Task[None]] = set()
        self._in_flight: set[asyncio.Timeout] = set()
        self._reconnected_at: deque[float] = deque(maxlen=RECONNECTS_MAX)
        keep_frame_memory()
        self._open()

    def _open(self) -> None:
        self._channel = open_channel(self.address, self._options, self._security)
        self._unary = {name: self._channel.unary_unary(f"/{SERVICE}/{name}") for name in UNARY}
        self._push = self._channel.stream_unary(f"/{SERVICE}/PushModel")
        self._push_single = self._channel.unary_unary(f"/{SERVICE}/PushModel")  # a stream of one frame
        self._pull = self._channel.stream_stream(f"/{SERVICE}/PullModel")
        self._watch = self._channel.unary_stream(f"/{SERVICE}/WatchStatus")
        self._check = self._channel.unary_unary(METHOD)
        self._tunnels = {name: self._channel.stream_stream(f"/{SERVICE}/{name}") for name in TUNNELS}

    def reconnect(self) -> None:
        """Reconnect without gRPC's backoff if the last attempt failed; call it when a message of the neighbor has arrived.

        Does nothing beyond `RECONNECTS_MAX` times in `RECONNECTS_S` seconds, so that a flood of hellos causes few connections.
        """
        now = asyncio.get_running_loop().time()
        limited = len(self._reconnected_at) == RECONNECTS_MAX and now - self._reconnected_at[0] < RECONNECTS_S
        if limited or self._channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return
        self._reconnected_at.append(now)
        self._reopen()

    def redirect(self, address: str, called_at: str = "") -> None:
        """Call the neighbor elsewhere from now on; calls in flight raise NeighborUnavailable."""
        self.address, self._called_at = address, called_at or f"at {address}"
        self.unanswered_hellos = 0
        self._reopen()

    def _reopen(self) -> None:
        self._end_calls()
        closing = asyncio.ensure_future(self._channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._open()

    async def hello(self, hello: Hello) -> HelloReply:
        """Send a hello and return the reply, which may be a refusal.

        Raises:
            RemoteProtocolError: IDENTITY_MISMATCH, if the server at the neighbor's address is not this neighbor.
        """
        channel = self._channel
        try:
            reply = convert.unpack_hello_reply(await self._ask("Hello", convert.pack_hello(hello)))
        except NeighborUnavailable as error:
            self.unanswered_hellos += channel is self._channel  # else this peer ended the call itself
            cause = error.__cause__
            details = cause.details() or "" if isinstance(cause, grpc.aio.AioRpcError) else ""
            if any(sign in details for sign in UNTRUSTED):
                sentence = f"the server {self._called_at} has no certificate of peer {self.peer_id}: {error}"
                raise RemoteProtocolError(RefusalCode.IDENTITY_MISMATCH, sentence) from error
            raise
        self.unanswered_hellos = 0
        if reply.hello.sender != self.peer_id:
            sentence = f"expected peer {self.peer_id} {self._called_at}, got peer {reply.hello.sender}"
            raise RemoteProtocolError(RefusalCode.IDENTITY_MISMATCH, sentence)
        return reply

    async def heartbeat(self, heartbeat: Heartbeat) -> Refusal | None:
        """Send a heartbeat; return the neighbor's refusal."""
        return convert.unpack_acknowledgement(await self._ask("Heartbeat", convert.pack_heartbeat(heartbeat)))

    async def control(self, message: Control) -> Refusal | None:
        """Send a selection, a pass, the numbers of sites or what opens a sum; return the neighbor's refusal."""
        if isinstance(message, Select):
            reply = await self._ask("Select", convert.pack_select(message))
        elif isinstance(message, Statistics):
            reply = await self._ask("Statistics", convert.pack_statistics(message))
        elif isinstance(message, SumMessage):
            reply = await self._ask("Sum", convert.pack_sum(message))
        else:
            reply = await self._ask("Pass", convert.pack_pass(message))
        return convert.unpack_acknowledgement(reply)

    async def status(self) -> dict[str, Any]:
        """Return the neighbor's status."""
        return convert.unpack_status(await self._ask("Status", b""))

    async def exchange_padding(self, sent_bytes: int, received_bytes: int) -> int:
        """Ask for the status, with ``sent_bytes`` of padding and ``received_bytes`` in the reply; return its size in bytes."""
        return len(await self._ask("Status", convert.pack_status_request(sent_bytes, received_bytes)))

    async def watch_status(
        self, interval_s: float, rounds_since: int | None = None
    ) -> AsyncGenerator[tuple[dict[str, object], RecordBatch], None]:
        """Yield the neighbor's status every ``interval_s`` seconds, until the neighbor stops.

        Args:
            interval_s: seconds.
            rounds_since: with each status come the records of this round and later ones that did not come before; None: none.
        """
        call = self._watch(convert.pack_watch(interval_s, rounds_since))
        try:
            with self._failures("WatchStatus"):
                async for data in call:
                    yield convert.unpack_watched(data)
        finally:
            call.cancel()

    async def push(self, header: ModelHeader, payload: Payload | Sliced) -> PushReply:
        """Send one model; return the neighbor's answer.

        The neighbor may take long to accept the header, and long to reply; only cancellation ends these waits. Until it
        accepts, at most one chunk is sent, so that a waiting push costs the receiver no more memory than that.

        Args:
            header: with the exact size and the encoding of ``payload``.
            payload: contiguous bytes, or slices of them, each read once; must not change until this returns.
        """
        self._push_began, self._push_bytes = asyncio.get_running_loop().time(), 0
        digest, pushed_bytes, answer = xxhash.xxh3_128(), 0, "no answer"
        self._on_sent(SentModel(self.peer_id, header))
        try:
            async with self._calling("PushModel"):
                data: bytes = await self._send_model(header, payload, digest)
            reply = convert.unpack_push_reply(data)
            answer = str(reply.code if isinstance(reply, Refusal) else reply)
        except NeighborUnavailable:
            self._pacing.failed(self.peer_id)
            raise
        except RemoteProtocolError as error:
            answer = str(error.refusal.code)
            raise
        finally:
            pushed_bytes, self._push_bytes = self._push_bytes, 0
            self._on_sent(SentModel(self.peer_id, header, pushed_bytes, digest.hexdigest(), answer))
        if isinstance(reply, Refusal) and reply.code is RefusalCode.TOO_SLOW:
            self._pacing.failed(self.peer_id)
        elif pushed_bytes == header.size_bytes and reply is Outcome.FOLDED:
            # another reply may come before the last byte
            self._pacing.answered(self.peer_id, header.size_bytes, self._pushed_s())
        return reply

    @property
    def sends_model(self) -> bool:
        """Whether more frames of a model are written than before its acceptance, and its answer has not come."""
        return self._push_bytes > FIRST_BYTES

    def _pushed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._push_began

    def _frame_bytes(self) -> int:
        return self._pacing.frame_bytes(self.peer_id, self._limits.frame_bytes_max)

    async def _send_model(self, header: ModelHeader, payload: Payload | Sliced, digest: xxhash.xxh3_128) -> Any:
        """Send the frames of a model; return the answer. A single frame takes two thirds of a stream's processor time in gRPC."""
        model = frames.model_frames(convert.pack_header(header), payload, self._frame_bytes, digest)
        frame, size = next(model)
        is_single = size == header.size_bytes
        failpoints.reach("send.begin")
        await self._pacing.upload.take(len(frame))
        call = self._push_single(frame) if is_single else self._push()
        try:
            if is_single:
                await asyncio.sleep(0)  # hands the frame to gRPC
                self._wrote(frame, size)
                failpoints.reach("send.end")
            else:
                await self._write_frames(call, frame, model, header.size_bytes)
            return await self._answer(call)
        finally:
            call.cancel()

    def quiet_for_s(self) -> float:
        """Return for how many seconds a push has waited for the neighbor's answer; 0 while it sends."""
        return 0.0 if self._quiet_since is None else asyncio.get_running_loop().time() - self._quiet_since

    async def _answer(self, answer: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        self._quiet_since = loop.time()
        try:
            return await (loop.create_future() if failpoints.reach("send.answer") else answer)
        finally:
            self._quiet_since = None

    async def pull(
        self, request: PullRequest, *, size_bytes: int | None = None
    ) -> tuple[ModelHeader, NDArray[np.uint8]]:
        """Fetch the neighbor's current model of one slot; return its header and payload, uint8 [size_bytes].

        Args:
            request: the slot and the sender of the request.
            size_bytes: of the payload by the schema; None accepts any size up to `limits.model_bytes_max`.

        Raises:
            RemoteProtocolError: the neighbor's refusal, or the error of a stream that is malformed, of another size, too
                large, not finite (float32) or of another digest.
        """
        data = convert.pack_pull(request)
        self._sent(data)
        call = self._pull()
        try:
            async with self._calling("PullModel"):
                await _tell(call, data)
                return await self._read_model(call, size_bytes)
        finally:
            call.cancel()

    def tunnel(self, method: str) -> Call:
        """Return a stream of a tunnel: OfferTunnel, which waits until there is a connection, or UseTunnel."""
        call: Call = self._tunnels[method](wait_for_ready=method == "OfferTunnel")
        return call

    async def open_tunnel(self, method: str, ends: bytes) -> Call:
        """Open a stream of a tunnel and return it; ``ends`` is its first frame, which names the ends of the tunnel."""
        call = self.tunnel(method)
        try:
            async with self._calling(method):
                await call.write(ends)
        except BaseException:
            call.cancel()
            raise
        return call

    async def close(self) -> None:
        """Close the channel; calls in flight raise NeighborUnavailable."""
        self._end_calls()
        await asyncio.gather(self._channel.close(), *self._closing)

    async def _ask(self, method: str, data: bytes) -> bytes:
        self._sent(data)
        self._pacing.upload.count(len(data))
        async with self._calling(method):
            reply: bytes = await self._unary[method](data, timeout=self._timeouts.suspicion_s)
        self._pacing.download.count(len(reply))
        return reply

    async def _write_frames(
        self, call: Call, first: bytes, model: Iterator[tuple[bytes, int]], size_bytes: int
    ) -> None:
        """Write frames until the model is sent or the receiver refuses; the refusal is in its reply."""
        try:
            await call.write(first)
            self._wrote(first, 0)
            frame, size = next(model)
            await self._write(call, frame, size)
            if size_bytes > size:
                accepted = ACCEPTED_METADATA in dict(await self._answer(call.initial_metadata()))
                self._push_began = asyncio.get_running_loop().time()
                async with asyncio.timeout(self._timeouts.idle_transfer_s) as deadline:
                    if accepted:
                        await self._write_ahead(call, model, deadline)
            await _half_close(call)
            failpoints.reach("send.end")
        except asyncio.InvalidStateError:
            if not call.done():
                raise

    async def _write_ahead(self, call: Call, model: Iterator[tuple[bytes, int]], deadline: asyncio.Timeout) -> None:
        """Write frames, and build (copy, hash) each one while gRPC sends the frame before it: up to 30 % faster.

        On a link that has not shown to be fast, a frame is written when the one before it has arrived.
        """
        clock = asyncio.get_running_loop().time
        probe = ArrivalProbe(by_check(self._check), self._pacing, self.peer_id)
        await probe.begin()  # what was written before
        await probe.begin()
        writing: asyncio.Future[None] | None = None
        try:
            for frame, size in model:
                if writing is not None:
                    await writing
                deadline.reschedule(clock() + self._timeouts.idle_transfer_s)
                writing = asyncio.ensure_future(self._write(call, frame, size))
                await asyncio.sleep(0)  # starts the write
                if probe.is_needed:
                    await writing
                    await probe.arrived(size, self._frame_began)
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                writing.cancel()

    async def _write(self, call: Call, frame: bytes, payload_bytes: int) -> None:
        await self._pacing.upload.take(len(frame))
        self._frame_began = asyncio.get_running_loop().time()
        await call.write(frame)
        self._wrote(frame, payload_bytes)

    def _wrote(self, frame: bytes, payload_bytes: int) -> None:
        self._sent(frame)
        self.payload_bytes_sent += payload_bytes
        self._push_bytes += payload_bytes
        if payload_bytes:
            self._pacing.wrote(self.peer_id, self._push_bytes, self._pushed_s())
            failpoints.reach("send.frame")

    async def _read_model(self, call: Call, size_bytes: int | None) -> tuple[ModelHeader, NDArray[np.uint8]]:
        frame = await self._read(call)
        acknowledges = ACKNOWLEDGE_METADATA in dict(await call.initial_metadata())
        header = convert.first_header(frame)
        if size_bytes is not None and header.size_bytes != size_bytes:
            sentence = f"ModelHeader.size_bytes: expected {size_bytes} (the schema's), got {header.size_bytes}"
            raise RemoteProtocolError(RefusalCode.WRONG_SIZE, sentence)
        check_size(header, self._limits)
        payload = np.empty(header.size_bytes, np.uint8)
        writer = frames.ChunkWriter(
            payload, frame_bytes_max=self._limits.frame_bytes_max, float32=header.encoding == "float32"
        )
        frame, received, clock = frame._replace(header=None), 0, asyncio.get_running_loop().time
        began = clock()
        while True:
            if frame.chunk is not None:
                await self._pacing.download.take(frame.chunk.nbytes)
                received += frame.chunk.nbytes
                self.payload_bytes_received += frame.chunk.nbytes
            if writer.write(frame):
                return header, payload
            if clock() > began + self._pacing.may_last_s(self.peer_id, header.size_bytes, received, self._timeouts):
                raise too_slow(self._timeouts, received, clock() - began)
            if acknowledges:
                await _tell(call, ACKNOWLEDGEMENT)
                self._sent(ACKNOWLEDGEMENT)
            frame = await self._read(call)

    async def _read(self, call: Call) -> frames.Frame:
        async with asyncio.timeout(self._timeouts.idle_transfer_s):
            frame = await call.read()
        if frame is grpc.aio.EOF:
            await _raise_for_status(call)
            raise RemoteProtocolError(RefusalCode.MALFORMED, "the stream ends without an end frame")
        return frames.read_frame(frame)

    def _sent(self, message: bytes) -> None:
        self.wire_bytes_sent += len(message) + frames.MESSAGE_OVERHEAD_BYTES

    @asynccontextmanager
    async def _calling(self, method: str) -> AsyncIterator[None]:
        """Convert failures as `_failures` does, and end the call when its channel is closed.

        gRPC leaves a stream waiting for ever that is closed before its first write is sent.
        """
        with self._failures(method):
            try:
                async with asyncio.timeout(None) as closed:
                    self._in_flight.add(closed)
                    yield
            except TimeoutError as error:
                if closed.expired():
                    raise asyncio.CancelledError from error
                raise
            finally:
                self._in_flight.discard(closed)

    def _end_calls(self) -> None:
        for closed in self._in_flight:
            closed.reschedule(0.0)
        self._in_flight.clear()

    @contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        """Convert gRPC's exceptions to NeighborUnavailable or RemoteProtocolError; the cancellation of the own task passes.

        A channel that is closed, also by `reconnect`, raises CancelledError in its calls although their tasks were not
        cancelled. It is converted too: the engine would wait forever for the answer of a call that ends silently.
        """
        where = f"peer {self.peer_id} {self._called_at}: {method}"
        task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            raise NeighborUnavailable(f"{where}: the link was closed") from error
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            if (refusal := refusal_of(error)) is not None:
                raise RemoteProtocolError(refusal.code, refusal.reason) from error
            reason = in_words(error.code(), details, self._timeouts.suspicion_s)
            raise NeighborUnavailable(f"{where}: {reason}") from error
        except TimeoutError as error:
            limit = f"{self._timeouts.idle_transfer_s:g} s (set by timeouts.suspicion_s)"
            raise NeighborUnavailable(f"{where}: no byte sent or received for {limit}") from error
        except grpc.aio.UsageError as error:
            raise NeighborUnavailable(f"{where}: the link is closed") from error
        except grpc.aio.InternalError as error:
            raise NeighborUnavailable(f"{where}: the call ended while a message was being sent") from error


async def _half_close(call: Call) -> None:
    try:
        await call.done_writing()
    except grpc.aio.InternalError:
        return  # the neighbor has replied before the half-close; awaiting the call returns its reply


async def _tell(call: Call, message: bytes) -> None:
    """Send a message of a stream that its server may end at any time; the next read tells whether and why it has."""
    with suppress(asyncio.InvalidStateError, grpc.aio.InternalError):
        await call.write(message)


async def _raise_for_status(call: Call) -> None:
    """Raise the AioRpcError of a finished stream whose status is not OK."""
    if await call.code() is not grpc.StatusCode.OK:
        metadata = await call.initial_metadata(), await call.trailing_metadata()
        raise grpc.aio.AioRpcError(await call.code(), *metadata, details=await call.details())
