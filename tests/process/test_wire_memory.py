"""What callers can make a peer hold, over real sockets: requests that never end, refused streams, models nobody wants."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from target import ATTACKER, GOOD, call, under_attack
from target import push as push_frames
from wire_support import LIMITS, TIMEOUTS, Recorder, header_of, hello_of, linked, serving

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.manifest import Timeouts
from peer.core.messages import Announce, Beat, Outcome, Phase, PushReply
from peer.core.state import Stage
from peer.wire import convert, frames
from peer.wire.gate import REFUSAL_TRAILER
from peer.wire.generated import peer_pb2
from peer.wire.inbound import Admission, PullRequest
from peer.wire.limits import REQUESTS_MAX
from peer.wire.options import SERVICE

pytestmark = pytest.mark.process
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
SMALL = [f"{SERVICE}/Hello", f"{SERVICE}/Beat", f"{SERVICE}/Announce", f"{SERVICE}/Status", f"{HEALTH}/Check"]
LONG = [f"{SERVICE}/PullModel", f"{SERVICE}/WatchStatus", f"{HEALTH}/Watch", f"{REFLECTION}/ServerReflectionInfo"]
BEAT = Beat(sender=2, incarnation=7, round_index=3, persisted_round=2, phase=Phase.RUNNING)
ANNOUNCE = Announce(sender=2, incarnation=7, round_index=3, step=0, total=2, selected=1)
DATA = np.arange(16, dtype=np.float32).tobytes()
HEADER, CHUNK = convert.pack_header(header_of(len(DATA))), frames.chunk_frame(memoryview(DATA)[:32])
NAN = frames.chunk_frame(memoryview(np.full(8, np.nan, np.float32).tobytes()))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header field of HTTP/2, spelled out (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def half_a_request(method: str) -> bytes:
    """Return all that a connection sends for a call whose message of 4 MiB never ends: gRPC itself cannot send that."""
    fields = {":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "x", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    head = b"".join(literal(name.encode(), value.encode()) for name, value in fields.items())
    data = b"\0" + struct.pack(">I", 4 << 20) + bytes(16_000)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, head) + frame(0, 0, 1, data)


@pytest.mark.parametrize("method", SMALL + LONG)
def test_a_request_that_never_ends_is_refused_after_the_idle_time(method: str) -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder, timeouts=Timeouts(idle_transfer_s=0.2)) as port:
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(half_a_request(method))
            await recorder.until(lambda: recorder.refusals == [Refusal.TOO_SLOW])
            writer.close()

    run(test)


async def refusal_of(open_call: Any) -> str:
    """Return the code in a call's reply or trailing metadata; "" if it is no refusal."""
    try:
        return peer_pb2.Acknowledgement.FromString(await open_call).refusal
    except grpc.aio.AioRpcError as error:
        return dict(error.trailing_metadata() or ()).get(REFUSAL_TRAILER, str(error))


@pytest.mark.parametrize("method", SMALL)
def test_requests_on_their_way_are_counted_for_each_caller(method: str) -> None:
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
            assert [one.result() for one in refused] == [Refusal.TOO_MANY_STREAMS]
            assert recorder.refusals == [Refusal.TOO_MANY_STREAMS] and recorder.heard == []
            beat = convert.pack_beat(BEAT)
            assert await refusal_of(channel.unary_unary(f"/{SERVICE}/Beat")(beat)) == Refusal.TOO_MANY_STREAMS
            for one in calls:
                one.cancel()
            while await refusal_of(channel.unary_unary(f"/{SERVICE}/Beat")(beat)):
                pass  # until the server has seen that they are gone
            assert recorder.heard == [BEAT]

    run(test)


def test_a_good_neighbor_never_meets_the_count() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with linked(recorder) as link:
            for _ in range(10):
                talk = [link.hello(hello_of(2)), link.beat(BEAT), link.announce(ANNOUNCE), link.status()]
                again = [link.beat(BEAT), link.announce(ANNOUNCE), link.status()]
                await asyncio.gather(*talk, *again, *(link.push(header_of(len(DATA)), DATA) for _ in range(4)))
            assert recorder.refusals == [] and len(recorder.models) == 40

    run(test)


def test_a_call_without_a_message_is_malformed_and_what_follows_the_first_is_not_read() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with serving(recorder) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            beat, check = (channel.stream_unary(f"/{method}") for method in (f"{SERVICE}/Beat", f"{HEALTH}/Check"))
            for method in (beat, check):
                assert await refusal_of(method(iter(()))) == Refusal.MALFORMED
            assert await refusal_of(beat(iter([convert.pack_beat(BEAT), b"\xff"]))) == ""
            assert recorder.heard == [BEAT]
            asked = health_pb2.HealthCheckRequest().SerializeToString()
            assert health_pb2.HealthCheckResponse.FromString(await check(iter([asked]))).status == 1
            assert recorder.refusals == [Refusal.MALFORMED] * 2

    run(test)


class Opened:
    """A push that is written by hand and stays open."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_unary(f"/{SERVICE}/PushModel")()

    async def write(self, *messages: bytes) -> Opened:
        for message in messages:
            await self.call.write(message)
        return self

    async def reply(self) -> PushReply:
        return convert.unpack_push_reply(await self.call)

    async def end(self) -> PushReply:
        await self.call.done_writing()
        return await self.reply()


def test_refused_streams_are_read_away_only_as_many_at_a_time_as_may_be_open() -> None:
    async def test() -> None:
        recorder = Recorder()
        recorder.gate.clear()
        limits = LIMITS.model_copy(update={"streams_per_neighbor": 2})
        async with (
            serving(recorder, limits=limits) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            held = [await Opened(channel).write(HEADER) for _ in range(2)]
            await recorder.until(lambda: len(recorder.offers) == 2)
            drained = [await Opened(channel).write(HEADER) for _ in range(2)]
            for push in drained:
                await push.call.initial_metadata()  # comes when the reading away begins
            beyond = await Opened(channel).reply()
            assert (beyond.outcome, beyond.refusal) == (Outcome.REFUSED, Refusal.TOO_MANY_STREAMS)
            assert not any(push.call.done() for push in drained)
            for push in drained:
                assert (await push.end()).refusal is Refusal.TOO_MANY_STREAMS
            assert recorder.refusals == [Refusal.TOO_MANY_STREAMS] * 3
            recorder.gate.set()
            for push in held:
                assert (await push.end()).refusal is Refusal.MALFORMED

    run(test)


class Keeper(Recorder):
    """Keeps admissions, but not their buffers; says when a frame has come."""

    def __init__(self) -> None:
        super().__init__()
        self.admissions: list[Admission] = []
        self.buffers: list[weakref.ref[Any]] = []
        self.moved = 0

    async def offered(self, caller: int | None, header: Any) -> Admission | PushReply:
        answer = await super().offered(caller, header)
        assert isinstance(answer, Admission)
        answer.moving = self._moving
        self.admissions.append(answer)
        self.buffers.append(weakref.ref(answer.buffer))
        return answer

    def _moving(self) -> None:
        self.moved += 1
        self._tell_soon()


VERDICT = PushReply(Outcome.REFUSED, Refusal.NO_HANDSHAKE, "taken for an older life")


@pytest.mark.parametrize("rest", [[frames.chunk_frame(memoryview(DATA)[32:])], [b"\xff"], []])
def test_a_model_given_up_while_it_is_read_frees_its_buffer_at_once(rest: list[bytes]) -> None:
    async def test() -> None:
        keeper = Keeper()
        async with serving(keeper) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            push = await Opened(channel).write(HEADER, CHUNK)
            await keeper.until(lambda: keeper.moved)
            assert keeper.buffers[0]() is not None
            keeper.admissions[0].give_up(VERDICT)
            assert keeper.buffers[0]() is None
            await push.write(*rest)
            assert await push.end() == VERDICT
            assert keeper.models == keeper.refusals == []
            assert len(keeper.cuts) == 1

    run(test)


@pytest.mark.parametrize("talks", [False, True])
def test_who_does_not_end_a_model_given_up_is_heard_out_for_the_idle_time(talks: bool) -> None:
    async def test() -> None:
        keeper = Keeper()
        async with (
            serving(keeper, timeouts=Timeouts(idle_transfer_s=0.3)) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            push = await Opened(channel).write(convert.pack_header(header_of(1 << 30)), CHUNK)
            await keeper.until(lambda: keeper.moved)
            keeper.admissions[0].give_up(VERDICT)
            if talks:
                with pytest.raises((asyncio.InvalidStateError, grpc.aio.AioRpcError)):
                    while True:
                        await push.write(CHUNK)  # gRPC may lose the reply of a call that ends while it is written to
            else:
                assert await push.reply() == VERDICT
            assert keeper.refusals == []

    run(test)


def test_a_model_given_up_before_it_is_read_is_answered_like_one_that_was_not_admitted() -> None:
    class GivesUp(Keeper):
        async def offered(self, caller: int | None, header: Any) -> Admission | PushReply:
            answer = await super().offered(caller, header)
            self.admissions[-1].give_up(VERDICT)
            return answer

    async def test() -> None:
        keeper = GivesUp()
        async with linked(keeper) as link:
            big = np.zeros(2 * LIMITS.frame_bytes_max, np.uint8)
            assert await link.push(header_of(big.nbytes), big) == VERDICT
            assert link.payload_bytes_sent == LIMITS.frame_bytes_max  # it was not told to go on
            assert keeper.moved == 0

    run(test)


def test_a_model_refused_in_the_middle_frees_its_buffer_before_the_rest_is_read_away() -> None:
    async def test() -> None:
        keeper = Keeper()
        async with serving(keeper) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            push = await Opened(channel).write(HEADER, NAN)
            await keeper.until(lambda: keeper.refusals)
            keeper.admissions.clear()
            assert keeper.buffers[0]() is None
            assert not push.call.done()
            assert (await push.end()).refusal is Refusal.NON_FINITE

    run(test)


def test_a_running_peer_holds_no_more_models_than_its_engine_counts(tmp_path: Path) -> None:
    """A model that comes again, in the same life or in a new one, ends the stream that it came in before."""

    async def test() -> None:
        async with under_attack(tmp_path) as target:
            await target.greet(ATTACKER, GOOD)
            await target.reach(Stage.EXCHANGING)
            calls, inbox = target.runtime.calls, target.runtime.engine.inbox
            admitted: asyncio.Queue[None] = asyncio.Queue()
            buffers: list[weakref.ref[Any]] = []
            admit = calls.admit

            def watched(number: int, buffer: Any, model: Any) -> None:
                buffers.append(weakref.ref(model))
                admit(number, buffer, model)
                admitted.put_nowait(None)

            def held() -> int:
                return sum(buffer() is not None for buffer in buffers)

            calls.admit = watched  # type: ignore[method-assign]
            async with target.channel(ATTACKER) as channel:
                pushes = []
                for life in (7, 7, 7, 8, 8, 9, 10):
                    await call(channel, "Hello", convert.pack_hello(target.hello(ATTACKER, incarnation=life)))
                    header = target.header(ATTACKER, incarnation=life)
                    frame_of_it = frames.chunk_frame(memoryview(target.model().tobytes())[:1000])
                    messages = [convert.pack_header(header), frame_of_it]
                    pushes.append(asyncio.create_task(push_frames(channel, messages, hold=True)))
                    await admitted.get()
                    assert held() == inbox.buffers() == 1
                for push in pushes:
                    push.cancel()
                await asyncio.gather(*pushes, return_exceptions=True)
                while calls.streams or held():
                    await asyncio.sleep(0)
                assert inbox.buffers() == 0 and not calls._stream_of
            reply = await target.push_good()
            assert reply.outcome == peer_pb2.OUTCOME_FOLDED, reply

    run(test)


def test_a_pull_that_is_read_too_slowly_ends_at_the_round_deadline_though_bytes_move() -> None:
    async def test() -> None:
        recorder = Recorder()
        recorder.pulled = header_of(1 << 30, sender=1), np.zeros(1 << 30, np.uint8)
        timeouts = Timeouts(heartbeat_s=0.05, suspicion_s=0.3, idle_transfer_s=0.3, round_deadline_s=0.3)
        async with (
            serving(recorder, timeouts=timeouts) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            frames_read = channel.unary_stream(f"/{SERVICE}/PullModel")(convert.pack_pull(PullRequest(2, 7, 1)))
            with pytest.raises(grpc.aio.AioRpcError, match="too slowly"):
                async for _ in frames_read:
                    pass
            assert recorder.refusals == [Refusal.TOO_SLOW]

    run(test)


def test_a_pull_that_is_not_read_lets_go_of_its_model_and_keeps_its_place() -> None:
    async def test() -> None:
        recorder, payload = Recorder(), np.zeros(32 << 20, np.uint8)
        recorder.pulled, model = (header_of(payload.nbytes, sender=1), payload), weakref.ref(payload)
        limits = LIMITS.model_copy(update={"streams_per_neighbor": 1})
        timeouts = TIMEOUTS.model_copy(update={"idle_transfer_s": 0.2})
        request = convert.pack_pull(PullRequest(2, 7, 1))
        options = [("grpc.http2.bdp_probe", 0)]  # so that what gRPC reads ahead stays small
        async with (
            serving(recorder, limits=limits, timeouts=timeouts) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
        ):
            unread = channel.unary_stream(f"/{SERVICE}/PullModel")(request)
            await unread.read()
            recorder.pulled = Refusal.SLOT_OUT_OF_RANGE
            del payload
            await recorder.until(lambda: recorder.refusals == [Refusal.TOO_SLOW])
            assert model() is None
            with pytest.raises(grpc.aio.AioRpcError, match="streams_per_neighbor"):
                await channel.unary_stream(f"/{SERVICE}/PullModel")(request).read()
            assert not unread.done()

    run(test)
