"""The edges of one running peer: a link to each neighbor, and the tunnels that those edges need which cannot be dialed."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.routes import offered_at, offers, relayed_by
from peer.wire import convert
from peer.wire.client import NeighborLink
from peer.wire.endpoint import Endpoint, SocketFolder, target_of
from peer.wire.offering import Offering
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.pipe import join_socket
from peer.wire.proxy import HttpProxy
from peer.wire.security import MutualTls
from peer.wire.switchboard import Switchboard, until


class Edges:
    """Links by neighbor, and the switchboard that the peer's server needs.

    Args:
        peer_id: of this peer.
        graph: of the run.
        tls: None is plaintext.
        proxy: dials the addresses of neighbors; default: they are dialed directly.
        pacing: of this peer.
    """

    def __init__(
        self,
        peer_id: int,
        graph: Graph,
        tls: MutualTls | None,
        proxy: HttpProxy | None = None,
        pacing: Pacing = UNLIMITED,
    ) -> None:
        self._pacing = pacing
        self.links: dict[int, NeighborLink] = {}
        self._peer_id, self._graph, self._tls, self._proxy = peer_id, graph, tls, proxy
        self._held_at = {n: offered_at(graph, peer_id, n) for n in graph.neighbors(peer_id)}
        self._offers = offers(graph, peer_id)
        self._folder = SocketFolder() if self._offers or any(at is not None for at in self._held_at.values()) else None
        self._endpoints: list[Endpoint] = []
        self._offering: list[asyncio.Future[None]] = []
        self.switchboard = Switchboard(
            peer_id,
            owners=[n for n, at in self._held_at.items() if at == peer_id],
            relayed=relayed_by(graph, peer_id),
            limits=graph.node(peer_id).relay,
            offered=self.reached,
        )

    @property
    def service(self) -> Path | None:
        """The unix socket on which the peer must serve too, because neighbors call it over tunnels."""
        return self._folder.service if self._folder and self._offers else None

    def open(self) -> None:
        """Make the links and start the tunnels; the server must be up."""
        for neighbor, holder in self._held_at.items():
            self.links[neighbor] = self._link(neighbor, holder)
        for holder, user in self._offers:
            link = self.links[holder]
            offering = Offering(
                link, user, self._peer_id, self._socket(None), self._graph.manifest.timeouts.heartbeat_s
            )
            self._offering.append(asyncio.ensure_future(offering.run()))

    def reached(self, neighbor: int) -> None:
        """Reconnect to a neighbor that has just shown that it can be reached."""
        if neighbor in self.links:  # its message may come before the links are open
            self.links[neighbor].reconnect()

    async def close(self) -> None:
        """End the tunnels and close the links."""
        for task in self._offering:
            task.cancel()
        if self._offering:
            await asyncio.wait(self._offering)
        for link in self.links.values():
            await link.close()
        for endpoint in self._endpoints:
            await endpoint.close()
        if self._folder is not None:
            self._folder.remove()

    def _link(self, neighbor: int, holder: int | None) -> NeighborLink:
        address = self._graph.node(neighbor).address
        if holder is not None:
            address = target_of(self._socket(neighbor))
            carry = self._over_offer if holder == self._peer_id else partial(self._over_relay, holder)
            self._endpoints.append(Endpoint(self._socket(neighbor), partial(carry, neighbor)))
        return NeighborLink(
            neighbor,
            address,
            limits=self._graph.manifest.limits,
            timeouts=self._graph.manifest.timeouts,
            security=self._tls.channel(neighbor) if self._tls else None,
            proxy=self._proxy if holder is None else None,
            place=_place(self._peer_id, holder),
            keeps_tunnels=any(at == neighbor for at, _user in self._offers),
            pacing=self._pacing,
        )

    def _socket(self, neighbor: int | None) -> Path:
        assert self._folder is not None, "there is a tunnel"
        return self._folder.service if neighbor is None else self._folder.neighbor(neighbor)

    async def _over_offer(self, neighbor: int, local: socket.socket) -> None:
        async with self.switchboard.connection(neighbor, self._peer_id) as (stream, lost):
            await until(lost, join_socket(local, stream))

    async def _over_relay(self, relay: int, neighbor: int, local: socket.socket) -> None:
        call = self.links[relay].tunnel("UseTunnel")
        try:
            await call.write(convert.pack_tunnel_ends(self._peer_id, neighbor))
            await join_socket(local, call)
        finally:
            call.cancel()


def _place(peer_id: int, holder: int | None) -> str:
    """Return where a neighbor is called, for messages; "" means its address."""
    if holder is None:
        return ""
    return "over the tunnel that it opens" if holder == peer_id else f"over peer {holder}, its relay"
