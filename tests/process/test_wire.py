"""The wire over real sockets: messages, complete and refused models, and lost streams, which change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import xxhash
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from wire_support import LIMITS, TIMEOUTS, Recorder, header_of, hello_of, linked, serving

from coordinator_free_bootstrap.errors import (
    ConfigError,
    NeighborUnavailable,
    Refusal,
    RefusalCode,
    RemoteProtocolError,
)
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.messages import Heartbeat, Numbers, Outcome, Pass, Phase, PullRequest, Select
from peer.wire import access, convert, frames
from peer.wire.access import CallerLimits
from peer.wire.client import NeighborLink
from peer.wire.frame_sizes import FrameSizes
from peer.wire.frames import HEADER_BYTES_MAX, SINGLE_BYTES_MAX
from peer.wire.generated import peer_pb2, peer_pb2_grpc
from peer.wire.limits import WireLimits
from peer.wire.pacing import Pacing
from peer.wire.server import PeerServer

pytestmark = pytest.mark.process


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


SERVICE = peer_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name


def model(elements: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(elements, np.float32)


HEARTBEAT = Heartbeat(sender=2, incarnation=7, round_index=3, phase=Phase.RUNNING)
SELECT = Select(sender=2, incarnation=7, round_index=3, selected=1, numbers=Numbers.of(1.0, [0.0, -2.0]))
PASS = Pass(sender=2, incarnation=7, round_index=3, step=1)


def test_messages_and_replies_are_unchanged() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with linked(recorder) as link:
            reply = await link.hello(hello_of(2))
            assert (reply.hello, reply.refusal) == (hello_of(1), None)
            assert await link.heartbeat(HEARTBEAT) is None
            assert await link.control(SELECT) is None
            assert await link.control(PASS) is None
            assert recorder.messages == [HEARTBEAT, SELECT, PASS]
            assert (await link.status())["more"] == [1.5]
            recorder.answer = Refusal(RefusalCode.NO_HANDSHAKE, "not now")
            assert (await link.heartbeat(HEARTBEAT)).code is RefusalCode.NO_HANDSHAKE
            recorder.hello_refusal = Refusal(RefusalCode.GRAPH_MISMATCH, "peer 2 differs")
            reply = await link.hello(hello_of(2))
            assert reply.refusal == recorder.hello_refusal

    run(test)


@pytest.mark.parametrize("elements", [1, 1 << 14, (1 << 14) + 1, 1_500_000])
def test_pushed_model_is_received_exactly(elements: int) -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(elements)
        async with linked(recorder) as link:
            reply = await link.push(header_of(theta.nbytes), theta.view(np.uint8))
            assert reply is Outcome.FOLDED
            header, buffer, norm_squared = recorder.models[0]
            assert header == header_of(theta.nbytes)
            assert buffer.tobytes() == theta.tobytes()
            assert norm_squared == pytest.approx(float(np.dot(theta.astype(float), theta.astype(float))), rel=1e-5)
            assert link.payload_bytes_sent == theta.nbytes < link.wire_bytes_sent < theta.nbytes * 1.01 + 400
            assert recorder.losses == recorder.refusals == []

    run(test)


@pytest.mark.parametrize(("size", "sent_frames"), [(4, 1), (SINGLE_BYTES_MAX, 1), (SINGLE_BYTES_MAX + 4, 2)])
def test_small_model_is_one_frame_and_a_larger_one_several(size: int, sent_frames: int) -> None:
    async def test() -> None:
        recorder, payload = Recorder(), model(size // 4).view(np.uint8)
        limits = replace(LIMITS, frame_bytes_max=1 << 20)
        async with linked(recorder, limits=limits) as link:
            reply = await link.push(header_of(size), payload)
            assert reply is Outcome.FOLDED
            fields = convert.pack_header(header_of(size)), frames.chunk_frame(payload.data), end_of(payload)
            assert link.wire_bytes_sent == sum(map(len, fields)) + sent_frames * frames.MESSAGE_OVERHEAD_BYTES
            assert link.payload_bytes_sent == size
            assert recorder.models[0][1].tobytes() == payload.tobytes()

    run(test)


def test_model_larger_than_a_chunk_is_several_frames() -> None:
    async def test() -> None:
        recorder, payload = Recorder(), model(600).view(np.uint8)
        limits = replace(LIMITS, frame_bytes_max=1024)
        async with linked(recorder, limits=limits) as link:
            assert (await link.push(header_of(payload.nbytes), payload)) is Outcome.FOLDED
            assert recorder.models[0][1].tobytes() == payload.tobytes()

    run(test)


@pytest.mark.parametrize("size", [1, 3, (1 << 16) + 1])
def test_size_that_is_not_a_multiple_of_four_is_accepted_in_other_encodings(size: int) -> None:
    async def test() -> None:
        recorder, payload = Recorder(), np.arange(size, dtype=np.uint8)
        async with linked(recorder) as link:
            reply = await link.push(header_of(size, encoding="int8"), payload)
            assert reply is Outcome.FOLDED
            assert recorder.models[0][1].tobytes() == payload.tobytes()
            assert recorder.models[0][2] is None

    run(test)


def test_waiting_push_is_not_timed_out_and_does_not_block_other_calls() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 20)
        timeouts = Timeouts(suspicion_s=4.0, round_deadline_s=4.0)
        recorder.accepting.clear()
        limits = replace(LIMITS, requests_per_second=1e6)
        async with linked(recorder, limits=limits, timeouts=timeouts) as link:
            pushes = [
                asyncio.create_task(link.push(header_of(theta.nbytes, slot=slot), theta.view(np.uint8)))
                for slot in range(3)
            ]
            await recorder.until(lambda: len(recorder.offers) == 3)
            held_until = asyncio.get_running_loop().time() + 1.25 * timeouts.idle_transfer_s
            while asyncio.get_running_loop().time() < held_until:
                assert await link.heartbeat(HEARTBEAT) is None
            assert not any(push.done() for push in pushes)
            assert link.payload_bytes_sent <= 3 * LIMITS.frame_bytes_max
            recorder.accepting.set()
            assert await asyncio.gather(*pushes) == [Outcome.FOLDED] * 3

    run(test)


def test_refused_push_gets_its_reason_and_sends_at_most_one_chunk() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 20)
        recorder.answer = Refusal(RefusalCode.ROUND_TOO_FAR_AHEAD, "not now")
        async with linked(recorder) as link:
            reply = await link.push(header_of(theta.nbytes), theta.view(np.uint8))
            assert reply == recorder.answer
            assert link.payload_bytes_sent <= LIMITS.frame_bytes_max
            assert recorder.refusals == []  # the handler counts its own refusals
            recorder.answer = None
            assert (await link.push(header_of(theta.nbytes), theta.view(np.uint8))) is Outcome.FOLDED

    run(test)


@pytest.mark.parametrize("size", [1 << 12, 1 << 18])
def test_cancelled_push_withdraws_its_offer(size: int) -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(size)
        recorder.accepting.clear()
        async with linked(recorder) as link:
            push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            await recorder.until(lambda: recorder.offers)
            push.cancel()
            await recorder.until(lambda: recorder.withdrawn == 1)
            with pytest.raises(asyncio.CancelledError):
                await push
            assert recorder.models == recorder.losses == []

    run(test)


def test_model_of_one_frame_is_used_although_its_sender_disconnects() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 12)
        recorder.completing.clear()
        async with linked(recorder) as link:
            push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            await recorder.until(lambda: recorder.offers)
            push.cancel()
            await asyncio.gather(push, return_exceptions=True)
            assert await link.heartbeat(HEARTBEAT) is None
            recorder.completing.set()
            await recorder.until(lambda: recorder.models)
            assert recorder.models[0][1].tobytes() == theta.tobytes()
            assert recorder.losses == []

    run(test)


def test_complete_stream_is_used_although_its_sender_disconnects() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(SINGLE_BYTES_MAX // 4 + 1)
        recorder.completing.clear()
        async with linked(recorder) as link:
            push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            while link.payload_bytes_sent < theta.nbytes:
                await asyncio.sleep(0)
            assert await link.heartbeat(HEARTBEAT) is None
            push.cancel()
            await asyncio.gather(push, return_exceptions=True)
            recorder.completing.set()
            await recorder.until(lambda: recorder.models or recorder.losses)
            # The model is lost if the cancellation came before its last bytes, and complete otherwise.
            assert len(recorder.models) + len(recorder.losses) == 1

    run(test)


async def stream(port: int, *messages: bytes) -> peer_pb2.PushReply:
    """Push any messages through gRPC, as a faulty or malicious neighbor could."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_unary(f"/{SERVICE}/PushModel")()
        try:
            for message in messages:
                await call.write(message)
            await call.done_writing()
        except asyncio.InvalidStateError:
            assert call.done()
        return peer_pb2.PushReply.FromString(await call)


def chunk(data: bytes) -> bytes:
    return frames.chunk_frame(memoryview(data))


def end_of(data: bytes | np.ndarray) -> bytes:
    return frames.end_frame(xxhash.xxh3_128(data).digest())


DATA = model(16).tobytes()
HEADER = convert.pack_header(header_of(64))
AT_LIMIT = bytes(LIMITS.frame_bytes_max)
NAN = np.array([1.0, np.nan] * 8, np.float32).tobytes()
INFINITE = np.array([1.0, -np.inf] * 8, np.float32).tobytes()
BAD_STREAMS: dict[str, tuple[RefusalCode, list[bytes]]] = {
    "nothing": (RefusalCode.MALFORMED, []),
    "no header": (RefusalCode.MALFORMED, [chunk(DATA), end_of(DATA)]),
    "garbage": (RefusalCode.MALFORMED, [b"\xff" * 40]),
    "empty frame": (RefusalCode.MALFORMED, [HEADER, b""]),
    "header and end": (RefusalCode.WRONG_SIZE, [HEADER + end_of(DATA)]),
    "no end after header and chunk": (RefusalCode.MALFORMED, [HEADER + chunk(DATA)]),
    "two headers": (RefusalCode.MALFORMED, [HEADER, HEADER]),
    "no end": (RefusalCode.MALFORMED, [HEADER, chunk(DATA)]),
    "empty chunk": (RefusalCode.MALFORMED, [HEADER, chunk(b""), chunk(DATA), end_of(DATA)]),
    "misaligned chunk": (RefusalCode.MALFORMED, [HEADER, chunk(DATA[:6]), chunk(DATA[6:]), end_of(DATA)]),
    "one element short": (RefusalCode.WRONG_SIZE, [HEADER, chunk(DATA[:-4]), end_of(DATA[:-4])]),
    "one byte more": (RefusalCode.WRONG_SIZE, [HEADER, chunk(DATA + b"\0"), end_of(DATA + b"\0")]),
    "a second chunk more": (RefusalCode.WRONG_SIZE, [HEADER, chunk(DATA), chunk(DATA), end_of(DATA)]),
    "flipped bit": (RefusalCode.DIGEST_MISMATCH, [HEADER, chunk(b"\x01" + DATA[1:]), end_of(DATA)]),
    "no digest": (RefusalCode.DIGEST_MISMATCH, [HEADER, chunk(DATA), frames.end_frame(b"")]),
    "end before the chunks": (RefusalCode.WRONG_SIZE, [HEADER, end_of(DATA), chunk(DATA)]),
    "nan": (RefusalCode.NON_FINITE, [HEADER, chunk(NAN), end_of(NAN)]),
    "infinity": (RefusalCode.NON_FINITE, [HEADER, chunk(INFINITE), end_of(INFINITE)]),
    "frame over the limit": (
        RefusalCode.TOO_LARGE,
        [convert.pack_header(header_of(len(AT_LIMIT) + 4)), chunk(AT_LIMIT + bytes(4)), end_of(AT_LIMIT + bytes(4))],
    ),
    "model over the limit": (RefusalCode.TOO_LARGE, [convert.pack_header(header_of(LIMITS.model_bytes_max + 1))]),
    "index past total": (RefusalCode.MALFORMED, [convert.pack_header(header_of(64, index=2, total=2))]),
    "unknown encoding": (
        RefusalCode.WRONG_ENCODING,
        [peer_pb2.PushFrame(header=peer_pb2.ModelHeader(total=1, size_bytes=4, encoding=99)).SerializeToString()],
    ),
}


def single(header: bytes, data: bytes) -> bytes:
    return header + chunk(data) + end_of(data)


SINGLE = single(HEADER, DATA)
# A field that no PushFrame has.
PADDING = peer_pb2.StatusReply(padding=bytes(LIMITS.frame_bytes_max + HEADER_BYTES_MAX)).SerializeToString()
BAD_STREAMS |= {
    "header alone over the limit": (RefusalCode.TOO_LARGE, [HEADER + PADDING]),
    "single: empty chunk": (RefusalCode.MALFORMED, [HEADER + chunk(b"") + end_of(b"")]),
    "single: one element short": (RefusalCode.WRONG_SIZE, [single(HEADER, DATA[:-4])]),
    "single: one element more": (RefusalCode.WRONG_SIZE, [single(HEADER, DATA + bytes(4))]),
    "single: flipped bit": (RefusalCode.DIGEST_MISMATCH, [HEADER + chunk(b"\x01" + DATA[1:]) + end_of(DATA)]),
    "single: no digest": (RefusalCode.DIGEST_MISMATCH, [HEADER + chunk(DATA) + frames.end_frame(b"")]),
    "single: nan": (RefusalCode.NON_FINITE, [single(HEADER, NAN)]),
    "single: chunk over the limit": (
        RefusalCode.TOO_LARGE,
        [single(convert.pack_header(header_of(len(AT_LIMIT) + 4)), AT_LIMIT + bytes(4))],
    ),
    "single: frame over the limit": (RefusalCode.TOO_LARGE, [SINGLE + PADDING]),
    "single: after a header": (RefusalCode.MALFORMED, [HEADER, SINGLE]),
    "single: index past total": (
        RefusalCode.MALFORMED,
        [single(convert.pack_header(header_of(64, index=2, total=2)), DATA)],
    ),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_invalid_stream_is_refused_with_its_code_and_changes_nothing(name: str) -> None:
    code, messages = BAD_STREAMS[name]

    async def test() -> None:
        recorder = Recorder()
        async with linked(recorder) as link:
            reply = await stream(int(link.address.rpartition(":")[2]), *messages)
            assert reply.refusal.code == code and reply.refusal.reason
            assert recorder.models == []
            assert recorder.refusals == [code]
            assert len(recorder.losses) == len(recorder.offers)
            theta = model(64)  # the server is up, and the next valid model is folded
            assert (await link.push(header_of(theta.nbytes), theta.view(np.uint8))) is Outcome.FOLDED

    run(test)


def test_sender_gets_the_refusal_of_a_partly_sent_model() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(2_000_000)
        theta[40_000] = np.nan
        async with linked(recorder) as link:
            reply = await link.push(header_of(theta.nbytes), theta.view(np.uint8))
            assert reply.code is RefusalCode.NON_FINITE
            assert len(recorder.losses) == 1 and recorder.models == []

    run(test)


def test_message_over_the_limit_of_grpc_does_not_stop_the_server() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(64)
        async with linked(recorder) as link:
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await stream(int(link.address.rpartition(":")[2]), HEADER, chunk(bytes(5 << 20)))
            await recorder.until(lambda: recorder.losses)
            assert recorder.models == []
            assert (await link.push(header_of(theta.nbytes), theta.view(np.uint8))) is Outcome.FOLDED

    run(test)


def test_partly_sent_model_is_lost_when_its_push_is_cancelled() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(20_000_000)
        async with linked(recorder) as link:
            push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            while link.payload_bytes_sent < 8 * LIMITS.frame_bytes_max:
                await asyncio.sleep(0)
            push.cancel()
            await recorder.until(lambda: recorder.losses)
            with pytest.raises(asyncio.CancelledError):
                await push
            assert recorder.models == recorder.refusals == []
            assert await link.heartbeat(HEARTBEAT) is None

    run(test)


def test_a_frame_and_a_model_at_their_limits_are_accepted() -> None:
    async def test() -> None:
        recorder = Recorder()
        limits = replace(LIMITS, model_bytes_max=len(AT_LIMIT))
        async with serving(recorder, limits=limits) as port:
            header = convert.pack_header(header_of(len(AT_LIMIT)))
            reply = await stream(port, header, chunk(AT_LIMIT), end_of(AT_LIMIT))
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED
            header = convert.pack_header(header_of(len(AT_LIMIT) + 4))
            assert (await stream(port, header)).refusal.code == RefusalCode.TOO_LARGE

    run(test)


@pytest.mark.parametrize("parts", [[HEADER + chunk(DATA), end_of(DATA)], [HEADER, chunk(DATA), end_of(DATA)], [SINGLE]])
def test_header_is_alone_or_with_the_first_chunk(parts: list[bytes]) -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder) as port:
            assert (await stream(port, *parts)).outcome == peer_pb2.OUTCOME_FOLDED
            assert recorder.models[0][1].tobytes() == DATA

    run(test)


def test_stream_that_ends_at_any_frame_changes_nothing() -> None:
    async def test() -> None:
        recorder = Recorder()
        data = model(64).tobytes()
        whole = [convert.pack_header(header_of(256)), *(chunk(data[i : i + 64]) for i in range(0, 256, 64))]
        async with serving(recorder) as port:
            for sent in range(1, len(whole) + 1):
                channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
                call = channel.stream_unary(f"/{SERVICE}/PushModel")()
                for message in whole[:sent]:
                    await call.write(message)
                await call.initial_metadata()  # accepted
                await channel.close(None)
                await recorder.until(lambda expected=sent: len(recorder.losses) == expected)
        assert recorder.models == recorder.refusals == []
        assert recorder.losses == [None] * len(whole)

    run(test)


def test_stopped_transfer_is_refused_as_too_slow() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder, timeouts=Timeouts(suspicion_s=0.5)) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_unary(f"/{SERVICE}/PushModel")()
                await call.write(HEADER)
                await call.write(chunk(DATA[:32]))
                reply = peer_pb2.PushReply.FromString(await call)
            assert reply.refusal.code == RefusalCode.TOO_SLOW
            assert len(recorder.losses) == 1 and recorder.models == []

    run(test)


def test_transfer_of_tiny_chunks_is_refused_at_the_round_deadline() -> None:
    async def test() -> None:
        recorder = Recorder()
        timeouts = Timeouts(suspicion_s=0.3, round_deadline_s=0.3)
        async with serving(recorder, timeouts=timeouts) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.stream_unary(f"/{SERVICE}/PushModel")()
                await call.write(convert.pack_header(header_of(1 << 30)))
                with pytest.raises((asyncio.InvalidStateError, grpc.aio.AioRpcError)):
                    while True:
                        await call.write(chunk(bytes(4)))
            assert recorder.refusals == [RefusalCode.TOO_SLOW]
            assert len(recorder.losses) == 1 and recorder.models == []

    run(test)


def test_streams_and_messages_of_one_caller_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(64)
        recorder.accepting.clear()
        limits = replace(LIMITS, streams_per_neighbor=2)
        async with linked(recorder, limits=limits) as link:

            def push() -> Awaitable[Any]:
                return asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))

            held = [push(), push()]
            await recorder.until(lambda: len(recorder.offers) == 2)
            assert (await push()).code is RefusalCode.TOO_MANY_STREAMS
            recorder.accepting.set()
            assert [await one for one in held] == [Outcome.FOLDED] * 2
            assert (await push()) is Outcome.FOLDED

        # A bucket of one message, which no time refills.
        monkeypatch.setattr(access, "CallerLimits", lambda limits, _clock: CallerLimits(limits, lambda: 0.0))
        slow = replace(LIMITS, requests_per_second=0.2)
        async with linked(Recorder(), limits=slow) as link:
            assert await link.heartbeat(HEARTBEAT) is None
            assert (await link.heartbeat(HEARTBEAT)).code is RefusalCode.RATE_LIMITED
            with pytest.raises(RemoteProtocolError, match=r"0\.2 messages per second") as caught:
                await link.hello(hello_of(2))
            assert caught.value.refusal.code is RefusalCode.RATE_LIMITED

    run(test)


def test_sender_that_is_not_the_authenticated_caller_is_refused() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(64)
        async with linked(recorder, identify=lambda _context: 5) as link:
            assert (await link.heartbeat(HEARTBEAT)).code is RefusalCode.IDENTITY_MISMATCH
            assert (await link.control(SELECT)).code is RefusalCode.IDENTITY_MISMATCH
            assert (await link.control(PASS)).code is RefusalCode.IDENTITY_MISMATCH
            reply = await link.push(header_of(theta.nbytes), theta.view(np.uint8))
            assert reply.code is RefusalCode.IDENTITY_MISMATCH
            with pytest.raises(RemoteProtocolError) as caught:
                await link.hello(hello_of(2))
            assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
            assert recorder.messages == recorder.offers == []
            assert set(recorder.refusals) == {RefusalCode.IDENTITY_MISMATCH}
            await link.hello(hello_of(5))
            assert recorder.callers == {5}

    run(test)


def test_unidentified_caller_is_refused_by_every_method() -> None:
    def unknown(_context: Any) -> int | None:
        raise RemoteProtocolError(RefusalCode.NOT_A_NEIGHBOR, "no neighbor has this key")

    async def test() -> None:
        recorder = Recorder()
        async with linked(recorder, identify=unknown) as link:
            assert (await link.heartbeat(HEARTBEAT)).code is RefusalCode.NOT_A_NEIGHBOR
            assert (await link.push(header_of(64), DATA)).code is RefusalCode.NOT_A_NEIGHBOR
            for call in (link.status(), link.pull(PullRequest(2, 7, 0)), link.hello(hello_of(2))):
                with pytest.raises(RemoteProtocolError, match="no neighbor has this key"):
                    await call
            assert len(recorder.refusals) == 5

    run(test)


def test_malformed_unary_message_is_refused() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            reply = await channel.unary_unary(f"/{SERVICE}/Heartbeat")(b"\xff\xff")
            assert peer_pb2.Acknowledgement.FromString(reply).refusal.code == RefusalCode.MALFORMED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{SERVICE}/Hello")(b"\xff\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert recorder.refusals == [RefusalCode.MALFORMED] * 2

    run(test)


def test_hello_reply_of_another_peer_is_refused() -> None:
    async def test() -> None:
        async with serving(Recorder(peer_id=9)) as port:
            link = NeighborLink(1, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS)
            with pytest.raises(RemoteProtocolError, match="expected peer 1 at") as caught:
                await link.hello(hello_of(2))
            assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
            await link.close()

    run(test)


def test_pulled_model_is_received_exactly_and_refused_pull_has_its_code() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(100_000)
        async with linked(recorder) as link:
            with pytest.raises(RemoteProtocolError) as caught:
                await link.pull(PullRequest(2, 7, 1))
            assert caught.value.refusal.code is RefusalCode.SLOT_OUT_OF_RANGE
            recorder.pulled = header_of(theta.nbytes, sender=1), theta.view(np.uint8)
            header, payload = await link.pull(PullRequest(2, 7, 1), size_bytes=theta.nbytes)
            assert header == header_of(theta.nbytes, sender=1)
            assert payload.tobytes() == theta.tobytes()
            assert link.payload_bytes_received == theta.nbytes
            with pytest.raises(RemoteProtocolError) as caught:
                await link.pull(PullRequest(2, 7, 1), size_bytes=theta.nbytes - 4)
            assert caught.value.refusal.code is RefusalCode.WRONG_SIZE

    run(test)


def test_stopped_neighbor_is_unavailable() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 20)
        recorder.accepting.clear()
        server = PeerServer(recorder, "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS)
        port = await server.start()
        link = NeighborLink(1, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS)
        push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
        await recorder.until(lambda: recorder.offers)
        await server.stop(0)
        with pytest.raises(NeighborUnavailable, match="peer 1 at 127"):
            await push
        for call in (
            link.heartbeat(HEARTBEAT),
            link.push(header_of(64), DATA),
            link.pull(PullRequest(2, 7, 0)),
            link.status(),
        ):
            with pytest.raises(NeighborUnavailable):
                await call
        await link.close()
        with pytest.raises(NeighborUnavailable, match="closed"):
            await link.heartbeat(HEARTBEAT)

    run(test)


LARGE = np.zeros(1 << 20, np.uint8)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda link: link.heartbeat(HEARTBEAT), id="heartbeat"),
        pytest.param(lambda link: link.control(SELECT), id="selection"),
        pytest.param(lambda link: link.push(header_of(64), DATA), id="model-of-one-frame"),
        pytest.param(lambda link: link.push(header_of(LARGE.nbytes), LARGE), id="model"),
        pytest.param(lambda link: link.pull(PullRequest(2, 7, 0)), id="pull"),
        pytest.param(lambda link: link.open_tunnel("OfferTunnel", b""), id="offer"),
        pytest.param(lambda link: link.open_tunnel("UseTunnel", b""), id="use-of-a-tunnel"),
    ],
)
def test_call_in_flight_fails_and_is_not_cancelled_when_its_link_reconnects(call: Callable[..., Any]) -> None:
    async def test() -> None:
        link = NeighborLink(1, "127.0.0.1:1", limits=LIMITS, timeouts=TIMEOUTS)
        asking, first = asyncio.create_task(call(link)), link._channel
        while link._channel is first:
            await asyncio.sleep(0)
            link.reconnect()  # as when the neighbor sends a hello: it reconnects once the first attempt has failed
        assert not asking.done()
        with pytest.raises(NeighborUnavailable, match="the link was closed"):
            await asking
        await link.close()

    run(test)


def test_link_reports_how_long_a_push_has_waited_for_its_answer() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 20)
        async with linked(recorder) as link:
            for event in (recorder.accepting, recorder.completing):  # waits for the decision, then for the reply
                event.clear()
                push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
                while link.quiet_for_s() < 0.05:
                    assert not push.done()
                    await asyncio.sleep(0)
                event.set()
                await push
                assert link.quiet_for_s() == 0.0

    run(test)


def test_push_in_flight_fails_and_is_not_cancelled_when_its_link_is_closed() -> None:
    async def test() -> None:
        recorder, theta = Recorder(), model(1 << 20)
        recorder.accepting.clear()
        async with linked(recorder) as link:
            push = asyncio.create_task(link.push(header_of(theta.nbytes), theta.view(np.uint8)))
            await recorder.until(lambda: recorder.offers)
            await link.close()
            with pytest.raises(NeighborUnavailable, match="PushModel"):
                await push
            await recorder.until(lambda: recorder.withdrawn)

    run(test)


@pytest.mark.parametrize("asked", [False, True], ids=["not asked to acknowledge", "asked, and it does not"])
def test_model_streams_are_compatible_with_generated_protobuf_stubs(asked: bool) -> None:
    async def test() -> None:
        recorder, theta, pacing = Recorder(), model(50_000), Pacing()
        recorder.pulled = header_of(theta.nbytes), theta.view(np.uint8)
        if asked:
            pacing.learned = FrameSizes()
        async with serving(recorder, pacing=pacing) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = peer_pb2_grpc.PeerServiceStub(channel)
            pull = stub.PullModel(iter([peer_pb2.PullRequest(sender=2)]))
            got = [frame async for frame in pull]
            assert ("peer-acknowledge" in dict(await pull.initial_metadata())) == asked
            assert got[0].header.size_bytes == theta.nbytes
            assert b"".join(frame.chunk for frame in got[1:]) == theta.tobytes()
            assert got[-1].end.digest == xxhash.xxh3_128(theta.data).digest()
            reply = await stub.PushModel(iter(got))
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED
            assert recorder.models[0][1].tobytes() == theta.tobytes()
            status = await stub.Status(peer_pb2.StatusRequest())
            assert (status.peer_id, status.phase) == (1, peer_pb2.PHASE_RUNNING)

    run(test)


def test_a_pull_whose_frames_are_not_acknowledged_ends_as_too_slow() -> None:
    async def test() -> None:
        recorder, theta, pacing = Recorder(), model(50_000), Pacing()
        recorder.pulled, pacing.learned = (header_of(theta.nbytes), theta.view(np.uint8)), FrameSizes()
        timeouts = Timeouts(suspicion_s=0.3)
        async with (
            serving(recorder, pacing=pacing, timeouts=timeouts) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            pull = channel.stream_stream(f"/{SERVICE}/PullModel")()
            await pull.write(peer_pb2.PullRequest(sender=2).SerializeToString())
            assert await pull.read() is not grpc.aio.EOF, "the header"
            with pytest.raises(grpc.aio.AioRpcError, match="too slow"):
                await pull.read()
            assert recorder.refusals == [RefusalCode.TOO_SLOW]

    run(test)


def test_status_is_watched_until_the_peer_stops() -> None:
    async def test() -> None:
        recorder = Recorder()
        server = PeerServer(recorder, "127.0.0.1:0", limits=LIMITS, timeouts=TIMEOUTS)
        link = NeighborLink(1, f"127.0.0.1:{await server.start()}", limits=LIMITS, timeouts=TIMEOUTS)
        seen = 0
        async for status, _rounds in link.watch_status(0.05):
            assert status["peer_id"] == 1
            seen += 1
            if seen == 3:
                stopping = asyncio.create_task(server.stop(10))
        await stopping
        assert seen >= 3
        await link.close()

    run(test)


def test_health_and_reflection_answer() -> None:
    async def test() -> None:
        async with serving(Recorder()) as port:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                for service in ("", SERVICE):
                    reply = await health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(service=service)
                    )
                    assert reply.status == health_pb2.HealthCheckResponse.SERVING

            def services() -> list[str]:
                with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
                    return list(ProtoReflectionDescriptorDatabase(plain).get_services())

            assert SERVICE in await asyncio.to_thread(services)

    run(test)


def test_port_in_use_is_a_config_error() -> None:
    async def test() -> None:
        async with serving(Recorder()) as port:
            second = PeerServer(Recorder(), f"127.0.0.1:{port}", limits=WireLimits(), timeouts=Timeouts())
            with pytest.raises(
                ConfigError, match=f"--listen: expected a free port of this machine, got 127.0.0.1:{port}"
            ):
                await second.start()
            await second.stop(0)

    run(test)
