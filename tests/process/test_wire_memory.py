"""Memory that callers can occupy, over real sockets: endless requests, refused streams, arrivals given up, unread pulls."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from wire_support import LIMITS, Recorder, header_of, hello_of, linked, serving

from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.arrivals import Arrival
from peer.core.messages import Heartbeat, Pass, Phase, PullRequest, PushReply, Select
from peer.wire import convert, frames
from peer.wire.access import REFUSAL_TRAILER, REQUESTS_MAX
from peer.wire.generated import peer_pb2
from peer.wire.options import SERVICE, UNARY

pytestmark = pytest.mark.process
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
UNARY_METHODS = [*(f"{SERVICE}/{name}" for name in UNARY), f"{HEALTH}/Check"]
STREAM_METHODS = [
    f"{SERVICE}/PullModel",
    f"{SERVICE}/WatchStatus",
    f"{HEALTH}/Watch",
    f"{REFLECTION}/ServerReflectionInfo",
]
HEARTBEAT = Heartbeat(sender=2, incarnation=7, round_index=3, phase=Phase.RUNNING)
SELECT = Select(sender=2, incarnation=7, round_index=3, selected=1)
PASS = Pass(sender=2, incarnation=7, round_index=3, step=0)
DATA = np.arange(16, dtype=np.float32).tobytes()
HEADER, CHUNK = convert.pack_header(header_of(len(DATA))), frames.chunk_frame(memoryview(DATA)[:32])
NAN = frames.chunk_frame(memoryview(np.full(8, np.nan, np.float32).tobytes()))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def literal(name: bytes, value: bytes) -> bytes:
    """Return a literal header field of HTTP/2 without indexing (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def half_a_request(method: str) -> bytes:
    """Return the bytes of a call whose message of 4 MiB stays incomplete, which a gRPC client cannot send."""
    fields = {":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "x", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    head = b"".join(literal(name.encode(), value.encode()) for name, value in fields.items())
    data = b"\0" + struct.pack(">I", 4 << 20) + bytes(16_000)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, head) + frame(0, 0, 1, data)


@pytest.mark.parametrize("method", UNARY_METHODS + STREAM_METHODS)
def test_endless_request_is_refused_after_the_idle_time(method: str) -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder, timeouts=Timeouts(suspicion_s=0.1)) as port:
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(half_a_request(method))
            await recorder.until(lambda: recorder.refusals == [RefusalCode.TOO_SLOW])
            writer.close()

    run(test)


async def refusal_of(open_call: Any) -> str:
    """Return the refusal code in a call's reply or trailing metadata; "" if it was accepted."""
    try:
        return peer_pb2.Acknowledgement.FromString(await open_call).refusal.code
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata() or ()).get(REFUSAL_TRAILER, str(error))


@pytest.mark.parametrize("method", UNARY_METHODS)
def test_requests_in_flight_of_a_caller_are_limited(method: str) -> None:
    async def test() -> None:
        recorder = Recorder()
        async with (
            serving(recorder, identify=lambda _context: 2) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            calls = [channel.stream_unary(f"/{method}")() for _ in range(REQUESTS_MAX + 1)]
            refused, _ = await asyncio.wait(
                map(asyncio.ensure_future, map(refusal_of, calls)), return_when="FIRST_COMPLETED"
            )
            assert [one.result() for one in refused] == [RefusalCode.TOO_MANY_STREAMS]
            assert recorder.refusals == [RefusalCode.TOO_MANY_STREAMS] and recorder.messages == []
            beat = convert.pack_heartbeat(HEARTBEAT)
            assert await refusal_of(channel.unary_unary(f"/{SERVICE}/Heartbeat")(beat)) == RefusalCode.TOO_MANY_STREAMS
            for one in calls:
                one.cancel()
            while await refusal_of(channel.unary_unary(f"/{SERVICE}/Heartbeat")(beat)):
                pass  # until the server has seen the cancellations
            assert recorder.messages == [HEARTBEAT]

    run(test)


def test_honest_neighbor_stays_below_the_limit_of_requests() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with linked(recorder) as link:
            for _ in range(10):
                calls = [link.hello(hello_of(2)), link.heartbeat(HEARTBEAT), link.control(SELECT), link.status()]
                retries = [link.heartbeat(HEARTBEAT), link.control(PASS), link.status()]
                await asyncio.gather(*calls, *retries, *(link.push(header_of(len(DATA)), DATA) for _ in range(4)))
            assert recorder.refusals == [] and len(recorder.models) == 40

    run(test)


def test_call_without_a_message_is_malformed_and_only_the_first_message_is_read() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            beat, check = (channel.stream_unary(f"/{method}") for method in (f"{SERVICE}/Heartbeat", f"{HEALTH}/Check"))
            for method in (beat, check):
                assert await refusal_of(method(iter(()))) == RefusalCode.MALFORMED
            assert await refusal_of(beat(iter([convert.pack_heartbeat(HEARTBEAT), b"\xff"]))) == ""
            assert recorder.messages == [HEARTBEAT]
            asked = health_pb2.HealthCheckRequest().SerializeToString()
            assert health_pb2.HealthCheckResponse.FromString(await check(iter([asked]))).status == 1
            assert recorder.refusals == [RefusalCode.MALFORMED] * 2

    run(test)


class OpenPush:
    """A push whose messages the test writes; it stays open."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_unary(f"/{SERVICE}/PushModel")()

    async def write(self, *messages: bytes) -> OpenPush:
        for message in messages:
            await self.call.write(message)
        return self

    async def reply(self) -> PushReply:
        return convert.unpack_push_reply(await self.call)

    async def end(self) -> PushReply:
        await self.call.done_writing()
        return await self.reply()


def test_number_of_refused_streams_that_are_discarded_is_limited() -> None:
    async def test() -> None:
        recorder = Recorder()
        recorder.accepting.clear()
        limits = replace(LIMITS, streams_per_neighbor=2)
        async with (
            serving(recorder, limits=limits) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            held = [await OpenPush(channel).write(HEADER) for _ in range(2)]
            await recorder.until(lambda: len(recorder.offers) == 2)
            discarded = [await OpenPush(channel).write(HEADER) for _ in range(2)]
            for push in discarded:
                await push.call.initial_metadata()  # sent when the server begins to discard
            beyond = await OpenPush(channel).reply()
            assert beyond.code is RefusalCode.TOO_MANY_STREAMS
            assert not any(push.call.done() for push in discarded)
            for push in discarded:
                assert (await push.end()).code is RefusalCode.TOO_MANY_STREAMS
            assert recorder.refusals == [RefusalCode.TOO_MANY_STREAMS] * 3
            recorder.accepting.set()
            for push in held:
                assert (await push.end()).code is RefusalCode.MALFORMED

    run(test)


class ArrivalKeeper(Recorder):
    """A Recorder that keeps arrivals, but not their buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[Arrival] = []
        self.buffers: list[weakref.ref[Any]] = []

    async def offered(self, header: Any) -> Arrival | PushReply:
        answer = await super().offered(header)
        assert isinstance(answer, Arrival)
        self.arrivals.append(answer)
        self.buffers.append(weakref.ref(answer.buffer))
        return answer


VERDICT = Refusal(RefusalCode.NO_HANDSHAKE, "an older incarnation")


@pytest.mark.parametrize("rest", [[frames.chunk_frame(memoryview(DATA)[32:])], [b"\xff"], []])
def test_arrival_given_up_while_it_is_read_frees_its_buffer_at_once(rest: list[bytes]) -> None:
    async def test() -> None:
        keeper = ArrivalKeeper()
        async with serving(keeper) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            push = await OpenPush(channel).write(HEADER, CHUNK)
            await keeper.until(lambda: keeper.frames)
            assert keeper.buffers[0]() is not None
            keeper.arrivals[0].give_up(VERDICT)
            assert keeper.buffers[0]() is None
            await push.write(*rest)
            assert await push.end() == VERDICT
            assert keeper.models == keeper.refusals == []
            assert len(keeper.losses) == 1

    run(test)


@pytest.mark.parametrize("writes", [False, True])
def test_frames_of_an_arrival_given_up_are_discarded_for_the_idle_time(writes: bool) -> None:
    async def test() -> None:
        keeper = ArrivalKeeper()
        async with (
            serving(keeper, timeouts=Timeouts(suspicion_s=0.15)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            push = await OpenPush(channel).write(convert.pack_header(header_of(1 << 30)), CHUNK)
            await keeper.until(lambda: keeper.frames)
            keeper.arrivals[0].give_up(VERDICT)
            if writes:
                with pytest.raises((asyncio.InvalidStateError, grpc.aio.AioRpcError)):
                    while True:
                        await push.write(CHUNK)  # gRPC may lose the reply of a call that ends during a write
            else:
                assert await push.reply() == VERDICT
            assert keeper.refusals == []

    run(test)


def test_arrival_given_up_before_it_is_read_is_not_accepted() -> None:
    class GivesUp(ArrivalKeeper):
        async def offered(self, header: Any) -> Arrival | PushReply:
            answer = await super().offered(header)
            self.arrivals[-1].give_up(VERDICT)
            return answer

    async def test() -> None:
        keeper = GivesUp()
        async with linked(keeper) as link:
            big = np.zeros(2 * LIMITS.frame_bytes_max, np.uint8)
            assert await link.push(header_of(big.nbytes), big) == VERDICT
            assert link.payload_bytes_sent == LIMITS.frame_bytes_max  # it was not accepted
            assert keeper.frames == 0
            small = np.zeros(LIMITS.frame_bytes_max, np.uint8)  # one message
            assert await link.push(header_of(small.nbytes), small) == VERDICT
            assert keeper.frames == 0 and keeper.models == []

    run(test)


def test_refused_model_frees_its_buffer_before_its_remaining_frames_are_discarded() -> None:
    async def test() -> None:
        keeper = ArrivalKeeper()
        async with serving(keeper) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            push = await OpenPush(channel).write(HEADER, NAN)
            await keeper.until(lambda: keeper.refusals)
            keeper.arrivals.clear()
            assert keeper.buffers[0]() is None
            assert not push.call.done()
            assert (await push.end()).code is RefusalCode.NON_FINITE

    run(test)


def test_pull_that_is_read_too_slowly_ends_at_the_round_deadline() -> None:
    async def test() -> None:
        recorder = Recorder()
        recorder.pulled = header_of(1 << 30, sender=1), np.zeros(1 << 30, np.uint8)
        timeouts = Timeouts(suspicion_s=0.3, round_deadline_s=0.3)
        async with (
            serving(recorder, timeouts=timeouts) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            frames_read = channel.unary_stream(f"/{SERVICE}/PullModel")(convert.pack_pull(PullRequest(2, 7, 1)))
            with pytest.raises(grpc.aio.AioRpcError, match="too slow"):
                async for _ in frames_read:
                    pass
            assert recorder.refusals == [RefusalCode.TOO_SLOW]

    run(test)


def test_unread_pull_frees_its_model_and_still_counts_as_an_open_stream() -> None:
    async def test() -> None:
        recorder, payload = Recorder(), np.zeros(32 << 20, np.uint8)
        recorder.pulled, model = (header_of(payload.nbytes, sender=1), payload), weakref.ref(payload)
        limits = replace(LIMITS, streams_per_neighbor=1)
        request = convert.pack_pull(PullRequest(2, 7, 1))
        options = [("grpc.http2.bdp_probe", 0)]  # so that what gRPC reads ahead stays small
        async with (
            serving(recorder, limits=limits, timeouts=Timeouts(suspicion_s=0.1)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
        ):
            unread = channel.unary_stream(f"/{SERVICE}/PullModel")(request)
            await unread.read()
            recorder.pulled = Refusal(RefusalCode.SLOT_OUT_OF_RANGE)
            del payload
            await recorder.until(lambda: recorder.refusals == [RefusalCode.TOO_SLOW])
            assert model() is None
            with pytest.raises(grpc.aio.AioRpcError, match="at most 1 open streams"):
                await channel.unary_stream(f"/{SERVICE}/PullModel")(request).read()
            assert not unread.done()

    run(test)
