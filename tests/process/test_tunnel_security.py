"""Goal: tunnels and relays give no peer anything that it does not have without them.

Method: real servers, TLS and tunnels in one process; attackers use the same streams with other keys, other ends and other bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tunnel_support import KEYS, LEFT, NEIGHBOR, RELAY, RIGHT, STRANGER, caller, graph_of, key_of, peers
from wire_support import header_of, hello_of

from coordinator_free_bootstrap import Relay
from coordinator_free_bootstrap.errors import NeighborUnavailable, RefusalCode, RemoteProtocolError
from peer.core.messages import Outcome
from peer.wire import convert
from peer.wire.access import REFUSAL_TRAILER, REQUESTS_MAX
from peer.wire.endpoint import SocketFolder, target_of
from peer.wire.frames import chunk_frame, data_of
from peer.wire.offering import Offering
from peer.wire.options import channel_options
from peer.wire.security import MutualTls, open_channel
from peer.wire.switchboard import Switchboard

pytestmark = pytest.mark.process
MODEL = np.tile(np.frombuffer(b"a secret weight!", np.uint8), 1 << 13)  # 128 KiB, finite float32
SECRET = MODEL[:64].tobytes()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(bounded())


async def answer_of(call: Any, *frames: bytes) -> grpc.aio.AioRpcError:
    """Write frames, and return the error with which the call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        for frame in frames:
            await call.write(frame)
        assert await call.read() is not grpc.aio.EOF, "the call ended without an error"
    return caught.value


def code_of(error: grpc.aio.AioRpcError) -> str | None:
    return dict(error.trailing_metadata() or ()).get(REFUSAL_TRAILER)


def test_neighbors_call_each_other_over_tunnels_with_their_own_identities() -> None:
    async def test() -> None:
        async with peers(RELAY, LEFT, RIGHT) as ends:
            for a, b in ((RELAY, LEFT), (RELAY, RIGHT), (LEFT, RELAY), (LEFT, RIGHT), (RIGHT, LEFT)):
                await ends[a].reaches(b, a)
            assert ends[LEFT].recorder.callers == {RELAY, RIGHT} and ends[RIGHT].recorder.callers == {RELAY, LEFT}
            assert not any(end.recorder.refusals for end in ends.values())

    run(test)


@pytest.mark.parametrize("method", ["OfferTunnel", "UseTunnel"])
def test_stranger_cannot_open_or_use_a_tunnel(method: str) -> None:
    """A forged key for a peer, a peer of the federation without an edge, and no TLS at all."""

    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, LEFT, graph=graph) as ends:
            await ends[RELAY].reaches(LEFT, RELAY)
            frame = convert.pack_tunnel_ends(LEFT, RELAY if method == "OfferTunnel" else RIGHT)
            address, options = graph.node(RELAY).address, channel_options(graph.manifest.timeouts)
            async with caller(graph, LEFT, key_of(LEFT)) as forger, caller(graph, STRANGER) as stranger:
                for link in (forger, stranger):
                    call = link._channel.stream_stream(f"/peer.v1.PeerService/{method}")()
                    error = await answer_of(call, frame)
                    assert error.code() is grpc.StatusCode.UNAVAILABLE and code_of(error) is None
            async with open_channel(address, options, None) as plaintext:
                error = await answer_of(plaintext.stream_stream(f"/peer.v1.PeerService/{method}")(), frame)
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert not ends[RELAY].recorder.refusals, "TLS let a stranger reach the service"
            await ends[RELAY].reaches(LEFT, RELAY)

    run(test)


@pytest.mark.parametrize(
    ("subject", "method", "sender", "other", "code"),
    [
        pytest.param(NEIGHBOR, "OfferTunnel", NEIGHBOR, LEFT, "not_a_neighbor", id="offer-without-a-relayed-edge"),
        pytest.param(NEIGHBOR, "OfferTunnel", LEFT, RELAY, "identity_mismatch", id="offer-in-anothers-name"),
        pytest.param(
            LEFT, "OfferTunnel", LEFT, NEIGHBOR, "not_a_neighbor", id="offer-to-a-peer-without-a-relayed-edge"
        ),
        pytest.param(NEIGHBOR, "UseTunnel", NEIGHBOR, LEFT, "not_a_neighbor", id="use-without-a-relayed-edge"),
        pytest.param(NEIGHBOR, "UseTunnel", RIGHT, LEFT, "identity_mismatch", id="use-in-anothers-name"),
        pytest.param(LEFT, "UseTunnel", LEFT, LEFT, "not_a_neighbor", id="use-the-own-offer"),
        pytest.param(LEFT, "UseTunnel", LEFT, RELAY, "not_a_neighbor", id="use-an-offer-to-the-relay-itself"),
        pytest.param(LEFT, "UseTunnel", LEFT, 99, "not_a_neighbor", id="use-an-unknown-peer"),
    ],
)
def test_neighbor_cannot_pose_as_another_or_reach_another(
    subject: int, method: str, sender: int, other: int, code: str
) -> None:
    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, LEFT, RIGHT, graph=graph) as ends, caller(graph, subject) as link:
            await ends[LEFT].reaches(RIGHT, LEFT)
            error = await answer_of(link.tunnel(method), convert.pack_tunnel_ends(sender, other))
            assert code_of(error) == code
            assert ends[RELAY].recorder.refusals == [RefusalCode(code)]
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[RELAY].reaches(LEFT, RELAY)

    run(test)


@pytest.mark.parametrize("method", ["OfferTunnel", "UseTunnel"])
def test_observer_is_refused_before_its_request_is_read(method: str) -> None:
    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, LEFT, RIGHT, graph=graph) as ends, caller(graph, "laptop") as link:
            await ends[LEFT].reaches(RIGHT, LEFT)
            assert code_of(await answer_of(link.tunnel(method))) == "not_a_neighbor"
            assert ends[RELAY].recorder.refusals == [RefusalCode.NOT_A_NEIGHBOR]
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[RELAY].reaches(LEFT, RELAY)

    run(test)


def test_first_frame_that_is_no_frame_is_refused() -> None:
    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, graph=graph), caller(graph, LEFT) as link:
            for frame in (b"\xff\xff", b"", chunk_frame(memoryview(b"data"))):
                error = await answer_of(link.tunnel("OfferTunnel"), frame)
                assert code_of(error) == "malformed"

    run(test)


@pytest.mark.parametrize("method", ["OfferTunnel", "UseTunnel"])
def test_half_open_tunnels_of_a_neighbor_are_limited_and_hinder_no_other(method: str) -> None:
    """Streams that never name their ends are counted, for each caller alone."""

    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, LEFT, RIGHT, graph=graph) as ends, caller(graph, NEIGHBOR) as link:
            calls = [link.tunnel(method) for _ in range(REQUESTS_MAX + 1)]
            reading = [asyncio.ensure_future(call.read()) for call in calls]
            done, waiting = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1 and len(waiting) == REQUESTS_MAX
            (refused,) = (call for call in calls if call.done())
            assert dict(await refused.trailing_metadata())[REFUSAL_TRAILER] == "too_many_streams"
            assert ends[RELAY].recorder.refusals == [RefusalCode.TOO_MANY_STREAMS]
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[RELAY].reaches(LEFT, RELAY)
            for call in calls:
                call.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    run(test)


def test_owner_of_a_tunnel_cannot_answer_as_another_peer() -> None:
    """Peer 2 lets its tunnel end at the service of peer 3: the relay finds peer 3's certificate where peer 2 should be."""

    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, NEIGHBOR, graph=graph) as ends, caller(graph, RIGHT) as link:
            async with forwarding_to(graph.node(NEIGHBOR).address) as service:
                offering = asyncio.ensure_future(Offering(link, RELAY, RIGHT, service, 0.5).run())
                with pytest.raises(RemoteProtocolError, match="has no certificate of peer 2") as caught:
                    await ends[RELAY].reaches(RIGHT, RELAY)
                assert caught.value.refusal.code is RefusalCode.IDENTITY_MISMATCH
                offering.cancel()
            assert not ends[NEIGHBOR].recorder.callers

    run(test)


class forwarding_to:
    """A unix socket that leads to a TCP address."""

    def __init__(self, address: str) -> None:
        self._address, self._folder = address, SocketFolder()

    async def __aenter__(self) -> Path:
        self._server = await asyncio.start_unix_server(self._connect, self._folder.service)
        return self._folder.service

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._folder.remove()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._address.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
            target.close()

        try:
            await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)
        finally:
            back.close()
            writer.close()


def test_holder_of_an_offer_is_only_itself_to_the_owner() -> None:
    """The relay uses the offer that peer 1 made for peer 2: with its own key it is the relay, and no one else."""

    async def test() -> None:
        graph = graph_of()
        async with peers(RELAY, LEFT, graph=graph) as ends:
            await ends[RELAY].reaches(LEFT, RELAY)
            board, folder = ends[RELAY].edges.switchboard, SocketFolder()
            security = MutualTls(graph, RELAY, KEYS[RELAY]).channel(LEFT)
            server = await asyncio.start_unix_server(through(board, LEFT, RIGHT), folder.service)
            options = channel_options(graph.manifest.timeouts)
            async with open_channel(target_of(folder.service), options, security) as channel:
                hello = channel.unary_unary("/peer.v1.PeerService/Hello")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await hello(convert.pack_hello(hello_of(RIGHT)))
            assert code_of(caught.value) == "identity_mismatch"
            assert ends[LEFT].recorder.callers == {RELAY}
            server.close()
            folder.remove()

    run(test)


def through(board: Switchboard, owner: int, user: int) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return what carries a local connection over any offer that a peer holds: the power of a holder."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with board.connection(owner, user) as (stream, _lost):

            async def send() -> None:
                while data := await reader.read(1 << 16):
                    await stream.write(chunk_frame(memoryview(data)))

            sending = asyncio.ensure_future(send())
            try:
                while (frame := await stream.read()) is not grpc.aio.EOF:
                    writer.write(bytes(data_of(frame)))
            finally:
                sending.cancel()
                writer.close()

    return connect


class Tap(Switchboard):
    """The switchboard of a dishonest relay: it records what it carries, and may change frames on the way to the owner."""

    def __init__(self, own: Switchboard, alter: Callable[[bytes], bytes] = lambda frame: frame) -> None:
        self.__dict__.update(own.__dict__)
        self.alter = alter
        self.sent: list[bytes] = []  # to the owner
        self.seen: list[bytes] = []  # in both directions

    async def relay(self, user: int, owner: int, stream: Any) -> None:
        await super().relay(user, owner, _Tapped(self, stream))


class _Tapped:
    def __init__(self, tap: Tap, stream: Any) -> None:
        self._tap, self._stream = tap, stream

    async def read(self) -> Any:
        frame = await self._stream.read()
        if frame is grpc.aio.EOF:
            return frame
        self._tap.seen.append(frame)
        self._tap.sent.append(frame)
        return self._tap.alter(frame)

    async def write(self, frame: bytes) -> None:
        self._tap.seen.append(frame)
        await self._stream.write(frame)


def tapped(taps: list[Tap], **options: Any) -> Callable[[Switchboard], Switchboard]:
    def make(own: Switchboard) -> Switchboard:
        taps.append(Tap(own, **options))
        return taps[0]

    return make


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plaintext"])
def test_relay_sees_ciphertext_only(secure: bool) -> None:
    """Without TLS the same tap does find the model, so it looks at the right bytes."""

    async def test() -> None:
        taps: list[Tap] = []
        async with peers(RELAY, LEFT, RIGHT, secure=secure, board=tapped(taps)) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            reply = await ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL)
            assert reply is Outcome.FOLDED
            assert np.array_equal(ends[RIGHT].recorder.models[0][1], MODEL)
        carried = b"".join(bytes(data_of(frame)) for frame in taps[0].seen)
        assert len(carried) > MODEL.size
        assert (SECRET in carried) is not secure

    run(test)


def test_relay_cannot_change_a_model() -> None:
    """One bit of a push is flipped: the connection breaks, nothing of the model is used, and the next push is complete."""

    async def test() -> None:
        taps: list[Tap] = []
        flipped: list[int] = []

        def flip(frame: bytes) -> bytes:
            if flipped or not armed.is_set() or len(frame) < 4096:
                return frame
            flipped.append(len(frame))
            changed = bytearray(frame)
            changed[len(frame) // 2] ^= 1
            return bytes(changed)

        armed = asyncio.Event()
        async with peers(RELAY, LEFT, RIGHT, board=tapped(taps, alter=flip)) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            armed.set()
            with pytest.raises(NeighborUnavailable):
                await ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL)
            assert flipped and not ends[RIGHT].recorder.models
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL)
            assert len(ends[RIGHT].recorder.models) == 1 and np.array_equal(ends[RIGHT].recorder.models[0][1], MODEL)

    run(test)


def test_relay_cannot_replay_a_model() -> None:
    """The relay sends a recorded connection to the owner once more: the TLS handshake fails, no call arrives."""

    async def test() -> None:
        taps: list[Tap] = []
        async with peers(RELAY, LEFT, RIGHT, board=tapped(taps)) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            await ends[LEFT].link(RIGHT).push(header_of(MODEL.size, sender=LEFT), MODEL)
            recorded, tap = list(taps[0].sent), taps[0]
            assert sum(map(len, recorded)) > MODEL.size
            async with asyncio.timeout(20):
                while not tap.holds(RIGHT, LEFT):
                    await asyncio.sleep(0.02)  # until the owner has made its next offer
            async with tap.connection(RIGHT, LEFT) as (stream, _lost):
                for frame in recorded:
                    try:
                        await stream.write(frame)
                    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                        break  # the owner has closed the connection
                while await stream.read() is not grpc.aio.EOF:
                    pass  # the owner's half of a handshake that cannot be completed
            assert len(ends[RIGHT].recorder.models) == len(ends[RIGHT].recorder.offers) == 1
            await ends[LEFT].reaches(RIGHT, LEFT)

    run(test)


def test_relay_carries_no_more_connections_than_its_owner_agreed_to() -> None:
    async def test() -> None:
        graph = graph_of()
        nodes = tuple(replace(n, relay=Relay(1 << 30, 1)) if n.id == RELAY else n for n in graph.nodes)
        async with peers(RELAY, LEFT, RIGHT, graph=replace(graph, nodes=nodes)) as ends:
            await ends[LEFT].reaches(RIGHT, LEFT)
            with pytest.raises(NeighborUnavailable):
                await ends[RIGHT].link(LEFT).hello(hello_of(RIGHT))
            assert RefusalCode.TOO_MANY_STREAMS in ends[RELAY].recorder.refusals
            await ends[LEFT].reaches(RIGHT, LEFT)

    run(test)


def test_local_sockets_are_in_a_folder_of_this_user_alone_and_go_with_the_peer() -> None:
    async def test() -> None:
        async with peers(RELAY, LEFT) as ends:
            await ends[RELAY].reaches(LEFT, RELAY)
            folders = [end.edges._folder._path for end in ends.values()]
            assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
            assert all(list(folder.iterdir()) for folder in folders)
        assert not any(folder.exists() for folder in folders)

    run(test)
