"""What one peer can make another do by its tunnels is bounded: offers after dropped connections, connections of a relay."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools.virtual_clock import seconds_of

from coordinator_free_bootstrap import Graph, Manifest, Node, Relay
from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.rates import TLS_RECORD_BYTES, problems
from peer.wire.frames import chunk_frame, data_of
from peer.wire.offering import Offering
from peer.wire.switchboard import Switchboard


class Holder:
    """Stands for the link to a neighbor that uses each offer at once; no service is there, so the connection ends."""

    peer_id = 0

    def __init__(self, most: int) -> None:
        self.offers, self._most = 0, most

    async def open_tunnel(self, method: str, ends: bytes) -> SimpleNamespace:
        self.offers += 1
        assert self.offers <= self._most, "offers without a pause"

        async def read() -> bytes:
            return b"data"

        return SimpleNamespace(read=read, cancel=lambda: None)


def test_an_owner_pauses_before_it_offers_to_a_holder_that_drops_each_connection() -> None:
    holder = Holder(most=500)

    async def work() -> None:
        offering = Offering(holder, 0, 1, Path("/nowhere/service"), retry_s=5.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(300.0):
                await offering.run()
        assert offering.connections == holder.offers

    assert seconds_of(work) == pytest.approx(300.0)
    # Six short pauses, then one of 2.5 to 7.5 s each.
    assert 300.0 / 7.5 <= holder.offers <= 10 + 300.0 / 2.5


def test_a_cancelled_offering_ends_also_if_its_call_fails_at_that_moment() -> None:
    """In gRPC the failure then comes in place of the cancellation; a further offer would wait for a holder that is gone."""

    class Lost(Holder):
        async def open_tunnel(self, method: str, ends: bytes) -> SimpleNamespace:
            async def read() -> bytes:
                try:
                    return await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ConnectionResetError from None

            call = await super().open_tunnel(method, ends)
            call.read = read
            return call

    async def work() -> None:
        holder = Lost(most=1)
        offering = asyncio.ensure_future(Offering(holder, 0, 1, Path("/nowhere/service"), retry_s=5.0).run())
        while not holder.offers:
            await asyncio.sleep(0)
        offering.cancel()
        await asyncio.wait([offering])
        assert offering.cancelled() and holder.offers == 1

    assert seconds_of(work) == 0.0


class Silent:
    """A stream that stays open."""

    def peer(self) -> str:
        return "an address"

    async def read(self) -> object:
        return await asyncio.Event().wait()

    async def write(self, frame: bytes) -> None:
        """Take it."""


def test_one_pair_leaves_a_connection_of_the_relay_to_each_other_pair() -> None:
    """Five connections, two relayed edges with two directions: one is spare, and each pair has its own."""
    pairs = ((1, 2), (2, 1), (3, 4), (4, 3))

    async def relaying(board: Switchboard, owner: int, user: int) -> asyncio.Future[None]:
        board_offer = asyncio.ensure_future(board.offer(owner, user, Silent()))
        await asyncio.sleep(0)
        assert board.holds(owner, user)
        carried = asyncio.ensure_future(board.relay(user, owner, Silent()))
        for _ in range(5):
            await asyncio.sleep(0)
        if carried.done():
            board_offer.cancel()
        return carried

    async def work() -> None:
        board = Switchboard(0, relayed=pairs, limits=Relay(1 << 40, 5))
        greedy = [await relaying(board, 1, 2) for _ in range(3)]
        assert [each.done() for each in greedy] == [False, False, True], "a spare connection is for whoever asks first"
        with pytest.raises(
            RemoteProtocolError, match=r"expected fewer than 5 relayed connections .*3 kept for other pairs"
        ) as caught:
            greedy[2].result()
        assert caught.value.refusal.code is RefusalCode.TOO_MANY_STREAMS
        others = [await relaying(board, *pair) for pair in pairs[1:]]
        assert not any(each.done() for each in others)
        greedy[0].cancel()
        await asyncio.wait(greedy[:1])
        again = await relaying(board, 3, 4)
        assert not again.done(), "what a pair gives back is free"
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(work())


def test_a_probe_takes_no_tunnel_of_a_running_peer_and_gives_way_to_one() -> None:
    async def work() -> None:
        board = Switchboard(0, owners=(1,))

        async def offered(*, probe: bool) -> asyncio.Future[None]:
            made = asyncio.ensure_future(board.offer(1, 0, Silent(), probe=probe))
            await asyncio.sleep(0)
            return made

        first, second = await offered(probe=True), await offered(probe=True)
        await asyncio.wait([first])
        running = await offered(probe=False)
        await asyncio.wait([second])
        with pytest.raises(RemoteProtocolError, match="expected no tunnel of peer 1, got one of the running peer"):
            await board.offer(1, 0, Silent(), probe=True)
        async with board.connection(1, 0):  # in use, and no other offer yet
            with pytest.raises(RemoteProtocolError, match="expected no tunnel of peer 1, got one of the running peer"):
                await board.offer(1, 0, Silent(), probe=True)
            assert not running.done()
        await running
        await offered(probe=True)
        assert board.holds(1, 0)

    asyncio.run(work())


class Bulk(Silent):
    """A stream with long frames to read, which notes what is written and when."""

    def __init__(self, *frames: bytes) -> None:
        self._frames, self.written, self.times = list(frames), b"", []

    async def read(self) -> object:
        return self._frames.pop(0) if self._frames else await asyncio.Event().wait()

    async def write(self, frame: bytes) -> None:
        self.written += bytes(data_of(frame))
        self.times.append(asyncio.get_running_loop().time())


def test_models_at_the_slowest_relay_without_a_warning_are_never_silent_for_the_suspicion_time() -> None:
    """Heartbeats wait behind models, so their bytes must stand for them: they come in steps, not in frames of 256 KiB."""
    timeouts = Manifest().timeouts
    slowest = int(2 * TLS_RECORD_BYTES / (timeouts.suspicion_s / 2)) + 1
    hub = Node(0, "a:1", relay=Relay(slowest, 2))
    graph = Graph(
        (hub, Node(1, "", dials_only=True), Node(2, "", dials_only=True)), ((0, 1), (0, 2), (1, 2)), via=((1, 2, 0),)
    )
    assert list(problems(graph, 1000)) == []
    data = bytes(range(256)) * 1024

    async def work() -> None:
        assert hub.relay is not None
        board = Switchboard(0, relayed=((1, 2), (2, 1)), limits=hub.relay)
        reader, owner = Bulk(*[chunk_frame(memoryview(data))] * 2), Bulk(*[chunk_frame(memoryview(data))] * 2)
        offered = asyncio.ensure_future(board.offer(1, 2, owner))
        await asyncio.sleep(0)
        carried = asyncio.ensure_future(board.relay(2, 1, reader))
        await asyncio.sleep(2 * 4 * len(data) / slowest)
        for end in (reader, owner):
            assert end.written == data + data
            gaps = [later - earlier for earlier, later in pairwise(end.times)]
            assert max(gaps) <= timeouts.suspicion_s / 2
        carried.cancel()
        await asyncio.wait([carried, offered])

    seconds_of(work)
