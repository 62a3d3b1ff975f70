"""The dialing end of a tunnel: hold one offer open at its holder, and serve each connection that comes over it.

A connection reaches this peer's own service and nothing else: no address comes from outside. The service requires TLS with a
pinned key of a neighbor, as it does for every caller.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.core.backoff import WARNED_AT, backoff_s
from peer.wire import convert
from peer.wire.calls import Call
from peer.wire.client import NeighborLink
from peer.wire.failures import in_words
from peer.wire.pipe import BROKEN, join_socket
from peer.wire.switchboard import CONNECTIONS_PER_OFFER

log = logging.getLogger("peer")


class Offering:
    """Offers of one peer to one user, held by one neighbor: the user itself, or a relay.

    Args:
        link: to the holder; its connection carries the tunnel, so that there is one connection to be kept open.
        user: the neighbor that may connect.
        own: this peer's id.
        service: unix socket of this peer's service.
        retry_s: longest pause between two attempts, in seconds, before its jitter; a connection that lasts less counts as a
            failure, so that a holder that uses and drops each offer does not keep this peer busy.
        probe: whether this is a test, which takes no tunnel from a running peer of the same id.

    Attributes:
        problem: why the last offer ended unused, or "".
    """

    def __init__(
        self, link: NeighborLink, user: int, own: int, service: Path, retry_s: float, *, probe: bool = False
    ) -> None:
        self._link, self._user, self._own = link, user, own
        self._service, self._retry_s, self._probe = service, retry_s, probe
        self.problem = ""
        self._free = asyncio.Semaphore(CONNECTIONS_PER_OFFER)
        self._serving: set[asyncio.Future[None]] = set()
        self._dropped = 0  # connections in a row that ended at once
        self.connections = 0  # that ran over offers so far

    async def run(self) -> None:
        """Make one offer after the other, until cancelled."""
        failures = 0
        try:
            while True:
                await self._free.acquire()
                await self._pause(self._dropped, "each connection over the tunnel ended at once")
                self.problem = await self._offer()
                _leave_if_cancelled()
                failures = failures + 1 if self.problem else 0
                if self.problem:
                    self._free.release()
                    await self._pause(failures, self.problem)
        finally:
            for task in self._serving:
                task.cancel()

    async def _pause(self, failures: int, problem: str) -> None:
        """Back off with jitter: peers that lost the same connection do not all come back at once."""
        if not failures:
            return
        if failures in WARNED_AT:
            about = f"peer {self._link.peer_id} holds no tunnel for peer {self._user}, attempt {failures}"
            log.warning("%s: %s", about, problem, extra={"neighbor": self._user, "message_kind": "tunnel"})
        await asyncio.sleep(backoff_s(failures, random.random(), self._retry_s))

    async def _offer(self) -> str:
        """Make one offer and wait until it is used; return why it ended unused, or ""."""
        call: Call | None = None
        try:
            ends = convert.pack_tunnel_ends(self._own, self._user, probe=self._probe)
            call = await self._link.open_tunnel("OfferTunnel", ends)
            first = await call.read()
            if first is grpc.aio.EOF:
                return in_words(await call.code(), await call.details() or "", 0.0)
        except asyncio.CancelledError:
            if call is not None:
                call.cancel()
            return "the link was closed"  # by `NeighborLink.reconnect`; `run` raises the cancellation of the own task
        except grpc.aio.AioRpcError as error:
            return in_words(error.code(), error.details() or "", 0.0)
        except (*BROKEN, NeighborUnavailable) as error:
            return str(error) or type(error).__name__
        task = asyncio.ensure_future(self._serve(call, first))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return ""

    async def _serve(self, call: Call, first: bytes) -> None:
        self.connections += 1
        clock = asyncio.get_running_loop().time
        began = clock()
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.setblocking(False)
        try:
            with local, suppress(*BROKEN):
                await asyncio.get_running_loop().sock_connect(local, str(self._service))
                await join_socket(local, call, first)
        finally:
            call.cancel()
            self._dropped = self._dropped + 1 if clock() - began < self._retry_s else 0
            self._free.release()


def _leave_if_cancelled() -> None:
    """Raise the cancellation of this task, also where a call failed at that moment and gRPC raised the failure in its place."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
