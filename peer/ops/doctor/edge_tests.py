"""Test every edge of a peer in both directions, over the routes that a run takes: `peer doctor --neighbors graph.json --id N`.

Out: the doctor calls each neighbor with the peer's own key and measures round-trip time and throughput. In: if the peer does not
run, the doctor listens in its place, opens its tunnels and notes which neighbors call it; it refuses their messages. If the
peer runs, each neighbor says how it sees it. A neighbor keeps the tunnels of a peer that runs, whether the doctor knows or not.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import (
    ConfigError,
    NeighborUnavailable,
    Refusal,
    RefusalCode,
    RemoteProtocolError,
)
from coordinator_free_bootstrap.rates import declared_rate
from coordinator_free_bootstrap.strict_json import loads, printable
from peer.core.arrivals import Arrival
from peer.core.messages import Control, Heartbeat, Hello, HelloReply, ModelHeader, PullRequest
from peer.runtime.edges import Edges
from peer.wire.client import NeighborLink
from peer.wire.limits import WireLimits
from peer.wire.proxy import HttpProxy
from peer.wire.round_ring import RoundRing
from peer.wire.security import MutualTls
from peer.wire.server import PeerServer

CALLS = 5  # of which the median round-trip time is taken
PADDING_BYTES = 1 << 20  # at most, of a measured transfer
FIRST_BYTES = 32 << 10  # of the first one; at a link's real rate the next one takes `TRANSFER_S` at most
TRANSFER_S = 0.5  # well below any suspicion time: heartbeats of a running peer wait behind it
INTERVAL_S = 60.0  # of watching; one reply is enough
HELD = "not tested, since the running peer holds its tunnel"
PAUSE_S = 0.2  # between two attempts to reach a neighbor
TESTING = Refusal(RefusalCode.SHUTTING_DOWN, "peer doctor tests this address; the peer does not run yet")


@dataclass(frozen=True)
class EdgeTest:
    """The result of one edge; None where it could not be measured.

    Attributes:
        neighbor: its id.
        route: ``direct``, ``proxy HOST:PORT``, ``tunnel`` or ``via peer N``.
        outgoing: "" if the neighbor answers, else why not.
        incoming: "" if the neighbor reaches this peer, else what is known.
        round_trip_s: seconds, the median of `CALLS` calls.
        upload: bytes per second to the neighbor.
        download: bytes per second from it.
        round_s: seconds of one of the neighbor's last rounds, their median.
    """

    neighbor: int
    route: str
    outgoing: str
    incoming: str
    round_trip_s: float | None = None
    upload: float | None = None
    download: float | None = None
    round_s: float | None = None


async def edge_tests(
    graph: Graph,
    peer_id: int,
    tls: MutualTls | None,
    *,
    proxy: HttpProxy | None = None,
    listen: str | None = None,
    runs: bool = False,
) -> list[EdgeTest]:
    """Test the edges of a peer; takes about the suspicion time where a neighbor does not answer.

    Args:
        graph: of the run.
        peer_id: of the peer.
        tls: its keys; None is plaintext.
        proxy: as of `peer run --proxy`.
        listen: as of `peer run --listen`.
        runs: whether the peer is known to run, so that the doctor must not open tunnels in its place; a port in use shows it too.
    """
    manifest, edges, place = graph.manifest, Edges(peer_id, graph, tls, proxy), _Place()
    server = PeerServer(
        place,
        listen or graph.node(peer_id).address,
        limits=WireLimits.of(manifest),
        timeouts=manifest.timeouts,
        credentials=tls.server_credentials() if tls else None,
        identify=tls.identify if tls else None,
        switchboard=edges.switchboard,
        local=edges.service,
    )
    try:
        if not runs:
            await server.start()
    except ConfigError:  # most likely the peer itself
        runs = True
    edges.open(offers=not runs, probe=True)
    tester = _Tester(graph, edges, peer_id, None if runs else place)
    try:
        return list(await asyncio.gather(*map(tester.test, edges.links)))
    finally:
        await edges.close()
        await server.stop(0)


class _Tester:
    """Tests edges at the same time, and measures one at a time, so that transfers share no link with each other.

    Args:
        graph: of the run.
        edges: of the peer.
        peer_id: of the peer.
        place: listens instead of the peer; None: the peer runs.
    """

    def __init__(self, graph: Graph, edges: Edges, peer_id: int, place: _Place | None) -> None:
        self._graph, self._edges, self._peer_id, self._place = graph, edges, peer_id, place
        timeouts = graph.manifest.timeouts
        self._patience_s = timeouts.suspicion_s + timeouts.heartbeat_s
        self._measuring = asyncio.Semaphore(1)

    async def test(self, neighbor: int) -> EdgeTest:
        """Test one edge."""
        edges, place = self._edges, self._place
        link, route = edges.links[neighbor], edges.route(neighbor)
        if place is None and route == "tunnel":
            return EdgeTest(neighbor, route, HELD, "unknown for the same reason")
        status, outgoing = await _reach(link, self._patience_s)
        if status is None:
            return EdgeTest(neighbor, route, outgoing, "unknown, since it does not answer")
        reached = (
            _seen_by(status, self._peer_id) if place is None else await place.called_by(neighbor, self._patience_s)
        )
        incoming = (
            f"{reached}; no tunnel: {printable(why)}" if reached and (why := edges.not_offered(neighbor)) else reached
        )
        try:
            async with self._measuring:
                return replace(await self._measured(link, status, neighbor), route=route, incoming=incoming)
        except (NeighborUnavailable, RemoteProtocolError) as error:
            return EdgeTest(neighbor, route, f"it answered, then failed: {printable(str(error))}", incoming)

    async def _measured(self, link: NeighborLink, status: dict[str, object], neighbor: int) -> EdgeTest:
        trip_s = statistics.median([await _seconds(link.status) for _ in range(CALLS)])

        async def send(size_bytes: int) -> bool:
            await link.exchange_padding(size_bytes, 0)
            return True

        async def receive(size_bytes: int) -> bool:
            return await link.exchange_padding(0, size_bytes) >= size_bytes

        upload = await _rate(send, trip_s, declared_rate(self._graph, self._peer_id, neighbor))
        download = await _rate(receive, trip_s, declared_rate(self._graph, neighbor, self._peer_id))
        return EdgeTest(neighbor, "", "", "", trip_s, upload, download, await _round_s(link, status))


async def _rate(transfer: Callable[[int], Awaitable[bool]], trip_s: float, declared: float | None) -> float | None:
    """Return the measured bytes per second, of transfers that grow as far as the link and its declared limits allow.

    Args:
        transfer: moves a number of bytes; returns whether it succeeded.
        trip_s: a round trip, which the seconds of a transfer contain.
        declared: bytes per second of the limits; None: there are none.
    """
    most = int(min(PADDING_BYTES, max(FIRST_BYTES / 8, TRANSFER_S * declared))) if declared else PADDING_BYTES
    size_bytes = min(FIRST_BYTES, most)
    while True:
        began = asyncio.get_running_loop().time()
        if not await transfer(size_bytes):
            return None
        seconds = max(1e-6, asyncio.get_running_loop().time() - began - trip_s)
        rate = size_bytes / seconds
        larger = min(most, 8 * size_bytes, int(rate * TRANSFER_S))
        if larger < 2 * size_bytes:
            return min(rate, declared) if declared else rate
        size_bytes = larger


async def _reach(link: NeighborLink, patience_s: float) -> tuple[dict[str, object] | None, str]:
    """Return the neighbor's status, or None and why there is none; a tunnel may need some seconds until it is open."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    while True:
        try:
            return await link.status(), ""
        except RemoteProtocolError as error:
            return None, printable(str(error))
        except NeighborUnavailable as error:
            if loop.time() >= end:
                return None, printable(str(error).rpartition(": Status: ")[2])
        await asyncio.sleep(PAUSE_S)


async def _round_s(link: NeighborLink, status: dict[str, object]) -> float | None:
    """Return the median seconds of a neighbor's last rounds; None if it reports none."""
    done = status.get("round_index")
    if not isinstance(done, int) or done < 1:
        return None
    async with aclosing(link.watch_status(INTERVAL_S, max(0, done - CALLS))) as watched:
        async for _, batch in watched:
            records = [loads(record) for record in batch.records]
            phases = [found for record in records if isinstance(found := record.get("seconds"), dict)]
            seconds = [sum(spent for spent in phase.values() if isinstance(spent, float)) for phase in phases]
            return statistics.median(seconds) if seconds else None
    return None


def _seen_by(status: dict[str, object], peer_id: int) -> str:
    states = status.get("neighbors")
    state = states.get(str(peer_id)) if isinstance(states, dict) else None
    return "" if state == "alive" else f"it says that this peer is {printable(str(state or 'unknown'))}"


async def _seconds(call: Callable[[], Awaitable[Any]]) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    await call()
    return clock() - began


class _Place:
    """Implements `RequestHandler` in place of a peer that does not run: notes the callers and refuses every message."""

    def __init__(self) -> None:
        self.rounds = RoundRing()
        self._callers: dict[int, asyncio.Event] = {}

    async def called_by(self, neighbor: int, patience_s: float) -> str:
        """Wait for a hello of a neighbor; return "" or that there was none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._event(neighbor).wait()
                return ""
        return (
            f"it has not called in {patience_s:g} s; it may have another address of this peer, or a firewall is between"
        )

    def _event(self, neighbor: int) -> asyncio.Event:
        return self._callers.setdefault(neighbor, asyncio.Event())

    async def hello(self, hello: Hello) -> HelloReply:
        """Note the caller; refuse, so that no neighbor waits for this peer."""
        self._event(hello.sender).set()
        raise RemoteProtocolError(TESTING.code, TESTING.reason)

    async def heartbeat(self, heartbeat: Heartbeat) -> Refusal:
        """Note the caller and refuse."""
        self._event(heartbeat.sender).set()
        return TESTING

    async def control(self, message: Control) -> Refusal:
        """Refuse."""
        return TESTING

    async def offered(self, header: ModelHeader) -> Refusal:
        """Refuse."""
        return TESTING

    def frame(self, arrival: Arrival) -> None:
        """Nothing comes: no model is accepted."""

    async def complete(self, arrival: Arrival) -> Refusal:
        """Refuse; no model is accepted, so none becomes complete."""
        return TESTING

    def lost(self, arrival: Arrival, refusal: Refusal | None) -> None:
        """Forget nothing: no model is accepted."""

    async def pull(self, request: PullRequest) -> Refusal:
        """Refuse."""
        return TESTING

    def status(self) -> dict[str, object]:
        """Return that nothing runs here."""
        return {"phase": "starting"}

    def refused(self, caller: int | None, refusal: Refusal) -> None:
        """Do not count."""
