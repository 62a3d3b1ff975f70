"""Local sockets that stand for what cannot be dialed: a neighbor behind its tunnel, and this peer's own service.

All are unix sockets in one folder that only this user may enter, so that no other user of the machine reaches a neighbor
through this peer. A program that does still needs this peer's key: the neighbor requires TLS.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from coordinator_free_bootstrap.errors import NeighborUnavailable, RemoteProtocolError, StorageError
from peer.store.scratch import ScratchFolder
from peer.wire.pipe import BROKEN

BACKLOG = 4  # gRPC makes one connection at a time
FOLDER_BYTES_MAX = 96  # the kernel allows 107 for a socket, whose own name is the id of a peer


class SocketFolder:
    """A folder of unix sockets, mode 0700, in the system's folder for temporary files.

    Raises:
        StorageError: there is no folder for temporary files, or its name is too long for a socket.
    """

    def __init__(self) -> None:
        self._folder = ScratchFolder("sockets")
        self._path = self._folder.path
        if len(os.fsencode(self._path)) > FOLDER_BYTES_MAX:
            self.remove()
            raise StorageError(
                f"TMPDIR: expected a path of at most {FOLDER_BYTES_MAX - len(self._path.name) - 1} bytes, since unix sockets "
                f"are made in it, got {self._path.parent}. Set a shorter one, such as /tmp."
            )

    @property
    def service(self) -> Path:
        """The socket of this peer's own service."""
        return self._path / "service"

    def neighbor(self, peer_id: int) -> Path:
        """Return the socket that stands for a neighbor."""
        return self._path / str(peer_id)

    def remove(self) -> None:
        """Delete the folder."""
        self._folder.remove()


def target_of(path: Path) -> str:
    """Return gRPC's name of a unix socket."""
    return f"unix:{path}"


class Endpoint:
    """A unix socket; each connection to it is carried by ``carry``, and closed if that is not possible.

    Args:
        path: of the socket.
        carry: carries one connection to its end.
    """

    def __init__(self, path: Path, carry: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._carry = carry
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(BACKLOG)
        self._carrying: set[asyncio.Future[None]] = set()
        self._accepting = asyncio.ensure_future(self._accept())

    async def close(self) -> None:
        """Close the socket and its connections."""
        tasks = [self._accepting, *self._carrying]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            local, _ = await loop.sock_accept(self._listener)
            task = asyncio.ensure_future(self._one(local))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _one(self, local: socket.socket) -> None:
        with local, suppress(NeighborUnavailable, RemoteProtocolError, *BROKEN):
            await self._carry(local)
