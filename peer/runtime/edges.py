"""The edges of one running peer: a link to each neighbor, and the tunnels that those edges need which cannot be dialed."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from pathlib import Path

from coordinator_free_bootstrap import Graph, split_address
from coordinator_free_bootstrap.errors import NeighborUnavailable
from coordinator_free_bootstrap.routes import offered_at, offers, relayed_by
from peer.core.messages import Hello, HelloReply
from peer.wire import convert
from peer.wire.client import NeighborLink
from peer.wire.endpoint import Endpoint, SocketFolder, target_of
from peer.wire.frames import OnSent
from peer.wire.limits import WireLimits
from peer.wire.offering import Offering
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.pipe import join_socket
from peer.wire.proxy import HttpProxy
from peer.wire.security import MutualTls
from peer.wire.switchboard import Switchboard, until

log = logging.getLogger("peer")
UNDIALED_HELLOS = 2  # unanswered in a row: then a neighbor cannot be dialed, or its tunnel cannot be used


class Edges:
    """Links by neighbor, and the switchboard that the peer's server needs.

    Args:
        peer_id: of this peer.
        graph: of the run.
        tls: None is plaintext.
        proxy: dials the addresses of neighbors; default: they are dialed directly.
        pacing: of this peer.
        on_sent: told of each model that a link has sent.
    """

    def __init__(
        self,
        peer_id: int,
        graph: Graph,
        tls: MutualTls | None,
        proxy: HttpProxy | None = None,
        pacing: Pacing = UNLIMITED,
        on_sent: OnSent = lambda _sent: None,
    ) -> None:
        self._on_sent = on_sent
        self.links: dict[int, NeighborLink] = {}
        self._peer_id, self._graph, self._tls, self._proxy = peer_id, graph, tls, proxy
        self._pacing = pacing
        self._held_at = {n: offered_at(graph, peer_id, n) for n in graph.neighbors(peer_id)}
        self._offers = offers(graph, peer_id)
        self._folder = SocketFolder()
        self._endpoints: dict[int, Endpoint] = {}
        self._offering: dict[tuple[int, int], tuple[Offering, asyncio.Future[None]]] = {}
        self._incarnations: dict[int, int] = {}  # of the neighbors, as far as they said hello
        self._heard: set[int] = set()  # neighbors that have said hello since they stopped answering
        self._redirected: set[int] = set()  # neighbors that are called over their tunnel because dialing fails
        self.switchboard = Switchboard(
            peer_id,
            owners=graph.neighbors(peer_id),
            relayed=relayed_by(graph, peer_id),
            limits=graph.node(peer_id).relay,
            offered=self._offered,
            pacing=pacing,
        )

    @property
    def service(self) -> Path:
        """The unix socket on which the peer must serve too: neighbors that call it over tunnels come in there."""
        return self._folder.service

    @property
    def ports(self) -> set[int]:
        """The TCP ports at which neighbors are dialed."""
        addresses = (self._graph.node(neighbor).address for neighbor in self._graph.neighbors(self._peer_id))
        return {split_address(address)[1] for address in addresses if address}

    def route(self, neighbor: int) -> str:
        """Return how a neighbor is called: ``direct``, ``proxy HOST:PORT``, ``tunnel`` or ``via peer N``."""
        holder = self._held_at[neighbor]
        if holder is not None:
            return "tunnel" if holder == self._peer_id else f"via peer {holder}"
        proxied = self._proxy is not None and self._proxy.serves(self._graph.node(neighbor).address)
        return f"proxy {self._proxy}" if proxied else "direct"

    def kind(self, neighbor: int) -> str:
        """Return how a neighbor is called now: ``direct``, ``proxy``, ``tunnel`` or ``relay``."""
        if neighbor in self._redirected:
            return "tunnel"
        return {"via": "relay"}.get(word := self.route(neighbor).partition(" ")[0], word)

    def open(self, *, offers: bool = True, probe: bool = False) -> None:
        """Make the links and start the tunnels; the server must be up.

        Args:
            offers: whether to start those that this peer opens.
            probe: whether they are tests, see `Offering`.
        """
        for neighbor, holder in self._held_at.items():
            self.links[neighbor] = self._link(neighbor, holder)
        for holder, user in self._offers if offers else ():
            self._offer(holder, user, probe)

    def not_offered(self, neighbor: int) -> str:
        """Return why the last offer to a neighbor ended unused, or ""."""
        return next((offering.problem for (_, user), (offering, _) in self._offering.items() if user == neighbor), "")

    def reached(self, neighbor: int, incarnation: int) -> bool:
        """Note an accepted hello: reconnect to the neighbor; return whether it should offer a tunnel, since dialing it fails."""
        link = self.links.get(neighbor)
        if link is None:  # its message may come before the links are open
            return False
        if incarnation != self._incarnations.get(neighbor):
            self._incarnations[neighbor] = incarnation
            self._heard.discard(neighbor)
            self._dial_again(neighbor)  # it may have become reachable
        if link.unanswered_hellos and neighbor not in self._heard:
            self._heard.add(neighbor)
            link.unanswered_hellos = 0  # those before were lost with its own, as in a cut
        link.reconnect()
        return self._cannot_dial(neighbor) and not self._redirect(neighbor)

    async def hello(self, neighbor: int, hello: Hello) -> HelloReply:
        """Send a hello and return the reply; offer a tunnel to a neighbor that says that it cannot dial this peer.

        A neighbor that does not answer over its tunnel is dialed again. Otherwise two that could not dial each other for a while
        would call each other over tunnels that run over these calls, and no connection would come back.

        Raises:
            NeighborUnavailable, RemoteProtocolError: as `NeighborLink.hello` does.
        """
        link = self.links[neighbor]
        try:
            reply = await link.hello(hello)
        except NeighborUnavailable:
            if link.unanswered_hellos >= UNDIALED_HELLOS:
                self._dial_again(neighbor)
            raise
        self._heard.discard(neighbor)
        if reply.cannot_dial:
            self._offer_to(neighbor)
        return reply

    def _dial_again(self, neighbor: int) -> None:
        """Dial a neighbor that is called over its tunnel."""
        if neighbor in self._redirected:
            self._redirected.remove(neighbor)
            self.links[neighbor].redirect(self._graph.node(neighbor).address)

    def _offer_to(self, neighbor: int) -> None:
        if self._held_at[neighbor] is None and (neighbor, neighbor) not in self._offering:
            log.info(
                "peer %d cannot dial this peer, which opens a tunnel to it; write dials_only at this peer in the graph file",
                neighbor,
                extra={"neighbor": neighbor, "message_kind": "tunnel"},
            )
            self._offer(neighbor, neighbor)

    def _offer(self, holder: int, user: int, probe: bool = False) -> None:
        retry_s = self._graph.manifest.timeouts.heartbeat_s
        offering = Offering(self.links[holder], user, self._peer_id, self.service, retry_s, probe=probe)
        self._offering[holder, user] = offering, asyncio.ensure_future(offering.run())

    def _offered(self, neighbor: int) -> None:
        """Use a new offer of a neighbor where it is needed."""
        if neighbor in self.links and not self._redirect(neighbor):
            self.links[neighbor].reconnect()

    def _cannot_dial(self, neighbor: int) -> bool:
        dialed = self._held_at[neighbor] is None and neighbor not in self._redirected
        return dialed and self.links[neighbor].unanswered_hellos >= UNDIALED_HELLOS

    def _redirect(self, neighbor: int) -> bool:
        """Call a neighbor that cannot be dialed over its offer, if there is one; return whether that was done now."""
        if not (self._cannot_dial(neighbor) and self.switchboard.holds(neighbor, self._peer_id)):
            return False
        self._redirected.add(neighbor)
        if neighbor not in self._endpoints:
            self._listen(neighbor, self._peer_id)
        self.links[neighbor].redirect(
            target_of(self._folder.neighbor(neighbor)), _called_at(self._peer_id, self._peer_id)
        )
        return True

    async def close(self) -> None:
        """End the tunnels and close the links."""
        tasks = [task for _, task in self._offering.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for link in self.links.values():
            await link.close()
        for endpoint in self._endpoints.values():
            await endpoint.close()
        self._folder.remove()

    def _link(self, neighbor: int, holder: int | None) -> NeighborLink:
        address = self._graph.node(neighbor).address
        if holder is not None:
            address = target_of(self._folder.neighbor(neighbor))
            self._listen(neighbor, holder)
        return NeighborLink(
            neighbor,
            address,
            limits=WireLimits.of(self._graph.manifest),
            timeouts=self._graph.manifest.timeouts,
            security=self._tls.channel(neighbor) if self._tls else None,
            proxy=self._proxy if holder is None else None,
            called_at=_called_at(self._peer_id, holder),
            keeps_tunnels=any(at == neighbor for at, _user in self._offers),
            pacing=self._pacing,
            on_sent=self._on_sent,
        )

    def _listen(self, neighbor: int, holder: int) -> None:
        """Make the local socket that stands for a neighbor whose offer is held here or at a relay."""
        carry = self._over_offer if holder == self._peer_id else partial(self._over_relay, holder)
        self._endpoints[neighbor] = Endpoint(self._folder.neighbor(neighbor), partial(carry, neighbor))

    async def _over_offer(self, neighbor: int, local: socket.socket) -> None:
        async with self.switchboard.connection(neighbor, self._peer_id) as (stream, lost):
            await until(lost, join_socket(local, stream))

    async def _over_relay(self, relay: int, neighbor: int, local: socket.socket) -> None:
        call = await self.links[relay].open_tunnel("UseTunnel", convert.pack_tunnel_ends(self._peer_id, neighbor))
        try:
            await join_socket(local, call)
        finally:
            call.cancel()


def _called_at(peer_id: int, holder: int | None) -> str:
    """Return where a neighbor is called, for messages; "" means its address."""
    if holder is None:
        return ""
    return "over the tunnel that it opens" if holder == peer_id else f"over peer {holder}, its relay"
