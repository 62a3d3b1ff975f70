"""The offers that neighbors hold open at this peer, and the connections that run over them.

An *offer* is a stream that its owner, a peer that cannot be dialed, has opened here, for one user: this peer itself, or, where
this peer is their relay, another neighbor. The user of an offer gets one connection to the owner's service; the owner then
makes the next offer. The owner is the authenticated caller, so no peer can make an offer in another's name. The bytes are those
of a TLS connection between owner and user, so a relay can drop them but neither read nor change them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coordinator_free_bootstrap import Relay
from coordinator_free_bootstrap.errors import NeighborUnavailable, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.rates import FRAME_BYTES_MIN, FRAME_S
from peer.wire.calls import Context, Stream
from peer.wire.pacing import UNLIMITED, Pacing, TokenBucket
from peer.wire.pipe import PIPE_BYTES_MAX, join_streams

CONNECTIONS_PER_OFFER = 4  # open at a time between one owner and one user: one in use, and those that it replaces

Ends = tuple[int, int]  # owner and user


@dataclass(eq=False)
class _Offer:
    stream: Context
    origin: str  # the network connection over which the owner made it
    probe: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Switchboard:
    """Offers by owner and user.

    Args:
        peer_id: of this peer.
        owners: the neighbors that may offer connections to this peer.
        relayed: (owner, user) pairs that may connect through this peer.
        limits: of what this peer relays; None: nothing.
        offered: called with the owner of each new offer to this peer.
        pacing: of this peer; what it relays counts as received and as sent. (The bytes of its own tunnels count once, as the
            messages in them.)
    """

    def __init__(
        self,
        peer_id: int = -1,
        *,
        owners: Collection[int] = (),
        relayed: Collection[Ends] = (),
        limits: Relay | None = None,
        offered: Callable[[int], None] = lambda owner: None,
        pacing: Pacing = UNLIMITED,
    ) -> None:
        self._peer_id = peer_id
        self._relayed = frozenset(relayed)
        self._allowed = {(owner, peer_id) for owner in owners} | self._relayed
        self._limits = limits or Relay(0, 0)
        self._paid = (TokenBucket(self._limits.bytes_per_second), pacing.download, pacing.upload)
        passing = min(bucket.bytes_in(FRAME_S) for bucket in self._paid)
        self._frame_bytes = int(min(PIPE_BYTES_MAX, max(FRAME_BYTES_MIN, passing)))
        self._offered = offered
        self._waiting: dict[Ends, _Offer] = {}
        self._in_use: dict[Ends, set[_Offer]] = {}
        self._relaying: Counter[Ends] = Counter()
        self.bytes_relayed = 0

    async def offer(self, owner: int, user: int, stream: Context, *, probe: bool = False) -> None:
        """Hold an offer until it is used and its connection has ended, or a newer offer replaces it.

        A probe, an offer of `peer doctor`, replaces nothing but probes: its peer may run.

        Raises:
            RemoteProtocolError: NOT_A_NEIGHBOR for a pair that has no such tunnel in the graph file, TOO_MANY_STREAMS.
        """
        ends = owner, user
        made = _Offer(stream, stream.peer(), probe)
        if probe and self._is_served(ends):
            sentence = (
                f"expected no tunnel of peer {owner}, got one of the running peer, which a probe does not replace"
            )
            raise RemoteProtocolError(RefusalCode.TOO_MANY_STREAMS, sentence)
        for older in self._in_use.get(ends, ()):
            if older.origin != made.origin:  # the owner has a new connection, so that the old one is lost
                older.ended.set()
        self._check(owner, user)
        replaced = self._waiting.pop(ends, None)
        if replaced is not None:
            replaced.ended.set()
        self._waiting[ends] = made
        if user == self._peer_id:
            self._offered(owner)
        try:
            await made.ended.wait()
        finally:
            made.ended.set()
            if self._waiting.get(ends) is made:
                del self._waiting[ends]

    def _is_served(self, ends: Ends) -> bool:
        """Return whether the owner has a tunnel that is no probe."""
        offers = {*self._in_use.get(ends, ()), *filter(None, [self._waiting.get(ends)])}
        return any(not (each.probe or each.ended.is_set()) for each in offers)

    def holds(self, owner: int, user: int) -> bool:
        """Return whether there is an offer that can be used."""
        return (owner, user) in self._waiting

    @asynccontextmanager
    async def connection(self, owner: int, user: int) -> AsyncIterator[tuple[Stream, asyncio.Event]]:
        """Use an offer; yield its stream, and an event that is set when the owner has lost it.

        Raises:
            NeighborUnavailable: there is no offer.
        """
        ends = owner, user
        used = self._waiting.pop(ends, None)
        if used is None:
            raise NeighborUnavailable(f"peer {owner} has opened no tunnel for peer {user}")
        self._in_use.setdefault(ends, set()).add(used)
        try:
            yield used.stream, used.ended
        finally:
            used.ended.set()
            self._in_use[ends].discard(used)

    async def relay(self, user: int, owner: int, stream: Stream) -> None:
        """Connect a neighbor's stream to another neighbor's offer, and carry their bytes until either ends.

        Raises:
            RemoteProtocolError: NOT_A_NEIGHBOR for a pair that this peer does not relay, TOO_MANY_STREAMS beyond the limits.
            NeighborUnavailable: there is no offer.
        """
        if self._peer_id in (user, owner):
            raise _not_allowed(owner, user)
        self._check(owner, user)
        ends = owner, user
        self._check_share(ends)
        self._relaying[ends] += 1
        try:
            async with self.connection(owner, user) as (offered, lost):
                await until(lost, join_streams(stream, offered, self._carry, self._frame_bytes))
        finally:
            self._relaying[ends] -= 1

    def _check_share(self, ends: Ends) -> None:
        """Refuse a connection beyond the limit, where one is kept for each agreed pair that has none."""
        open_now, most = self._relaying.total(), self._limits.connections
        kept = sum(not self._relaying[pair] for pair in self._relayed - {ends}) if self._relaying[ends] else 0
        if open_now + kept >= most:
            in_use = f"{open_now}{f' and {kept} kept for other pairs' if kept else ''}"
            sentence = f"expected fewer than {most} relayed connections (relay.connections), got {in_use}. Connect again later."
            raise RemoteProtocolError(RefusalCode.TOO_MANY_STREAMS, sentence)

    async def _carry(self, size_bytes: int) -> None:
        self.bytes_relayed += size_bytes
        for bucket in self._paid:
            await bucket.take(size_bytes)

    def _check(self, owner: int, user: int) -> None:
        if (owner, user) not in self._allowed:
            raise _not_allowed(owner, user)
        if sum(not used.ended.is_set() for used in self._in_use.get((owner, user), ())) >= CONNECTIONS_PER_OFFER:
            sentence = (
                f"expected fewer than {CONNECTIONS_PER_OFFER} connections between peers {owner} and {user}, got that many. "
                "Connect again later."
            )
            raise RemoteProtocolError(RefusalCode.TOO_MANY_STREAMS, sentence)


async def until(event: asyncio.Event, work: Awaitable[object]) -> None:
    """Await work, or cancel it once an event is set."""
    working, ended = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        ended.cancel()
        await asyncio.wait((working, ended))


def _not_allowed(owner: int, user: int) -> RemoteProtocolError:
    sentence = f"the graph file has no tunnel from peer {owner} to peer {user} at this peer"
    return RemoteProtocolError(RefusalCode.NOT_A_NEIGHBOR, sentence)
