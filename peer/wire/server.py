"""A peer's gRPC server: bind, start and stop the handlers of `service` and `standard`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from coordinator_free_bootstrap.manifest import Timeouts
from peer.wire import security
from peer.wire.access import AccessControl, Identify
from peer.wire.endpoint import target_of
from peer.wire.frames import OnSent
from peer.wire.handler import RequestHandler
from peer.wire.limits import WireLimits
from peer.wire.memory import keep_frame_memory
from peer.wire.options import SERVICE, server_options
from peer.wire.pacing import UNLIMITED, Pacing
from peer.wire.service import PeerServicer
from peer.wire.standard import StandardServices
from peer.wire.switchboard import Switchboard


class PeerServer:
    """Serve one peer to its neighbors and observers.

    Args:
        handler: the peer.
        listen: ``host:port``; port 0 takes any free one; "" listens on ``local`` alone.
        limits: of messages and models.
        timeouts: of the manifest.
        credentials: gRPC server credentials; None serves plaintext (see `security.require_loopback_or`).
        identify: returns the authenticated peer id or observer's name of a call's context, or raises RemoteProtocolError
            (see `security.MutualTls.identify`); without it every caller is None.
        switchboard: holds the offers of neighbors; default: one that refuses all.
        local: a unix socket on which the peer serves too; connections over its own offers come in there.
        pacing: of this peer.
        on_served: told of each model that a neighbor pulls, before its first byte and after its last one.
    """

    def __init__(
        self,
        handler: RequestHandler,
        listen: str,
        *,
        limits: WireLimits,
        timeouts: Timeouts,
        credentials: grpc.ServerCredentials | None = None,
        identify: Identify | None = None,
        switchboard: Switchboard | None = None,
        local: Path | None = None,
        pacing: Pacing = UNLIMITED,
        on_served: OnSent = lambda _sent: None,
    ) -> None:
        self._pacing, self._on_served = pacing, on_served
        self._switchboard = switchboard or Switchboard()
        self._local = local
        self._handler = handler
        self._listen = listen
        self._limits = limits
        self._timeouts = timeouts
        self._credentials = credentials
        self._identify = identify
        self._health = health.aio.HealthServicer()
        self._stopping = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Bind, serve and set the health status SERVING; return the bound port, 0 without ``listen``.

        Raises:
            ConfigError: the address cannot be bound.
        """
        keep_frame_memory()
        options = [*server_options(self._timeouts, self._limits), *self._pacing.options()]
        server = grpc.aio.server(options=options)
        access = AccessControl(self._limits, self._timeouts, self._identify, self._handler.refused)
        service = PeerServicer(
            self._handler,
            access=access,
            limits=self._limits,
            timeouts=self._timeouts,
            stopping=self._stopping,
            switchboard=self._switchboard,
            pacing=self._pacing,
            on_served=self._on_served,
        )
        standard = StandardServices(access, self._timeouts, self._health)
        server.add_generic_rpc_handlers((service.handlers(), *standard.handlers()))
        port = security.bind(server, self._listen, self._credentials) if self._listen else 0
        if self._local is not None:
            security.bind_target(server, target_of(self._local), self._credentials)
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace_s: float) -> None:
        """Set NOT_SERVING, accept no new calls, wait ``grace_s`` seconds for open ones, then cancel them."""
        self._stopping.set()
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
