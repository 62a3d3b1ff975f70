"""What a forked child of a peer must not hold: the lock of its state directory, its port, and connections to its neighbors.

The workers of a data loader are such children. They outlive a peer that is killed by up to 5 s (torch's watchdog): with the lock
and the port, a restarted peer could not begin, and neighbors would not see that their connections are closed.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress

FOLDER = "/dev/fd"  # of the open files of a process

_handles: set[int] = set()
_ports: set[int] = set()


def close_in_children(handle: int) -> None:
    """Close a file in each child that is forked from now on."""
    _handles.add(handle)


def keep_in_children(handle: int) -> None:
    """Undo `close_in_children`: the file is closed here, and its number may be used again."""
    _handles.discard(handle)


def close_connections_in_children(ports: Iterable[int]) -> None:
    """Close in each child that is forked from now on what listens at these TCP ports, or is connected from or to one of them."""
    _ports.update(port for port in ports if port)


def _in_child() -> None:
    if not _handles and not _ports:
        return
    gc.freeze()  # to free a channel would call gRPC, whose threads a child has not
    for handle in _handles:
        with suppress(OSError):
            os.close(handle)
    if _ports:
        for name in os.listdir(FOLDER):
            with suppress(OSError):
                _close_connection(int(name))
    _handles.clear()
    _ports.clear()


def _close_connection(handle: int) -> None:
    if not stat.S_ISSOCK(os.fstat(handle).st_mode):
        return
    connection = socket.socket(fileno=handle)
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and _ports & _ends(connection):
            os.close(handle)
    finally:
        connection.detach()


def _ends(connection: socket.socket) -> set[int]:
    """Return the ports of both ends; one that listens has one."""
    ports = {connection.getsockname()[1]}
    with suppress(OSError):
        ports.add(connection.getpeername()[1])
    return ports


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
