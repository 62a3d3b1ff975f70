"""Reasons why an address cannot be bound, and the process that listens on a port."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
_COMMAND_MAX = 60  # characters of a command line


def why_not_bound(host: str, port: int) -> str:
    """Return why ``host:port`` cannot be bound, as the rest of a sentence; empty if it can be bound now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC: a closed connection is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"is in use by {listener(port)}" if error.errno == errno.EADDRINUSE else f"({error.strerror})"
    return ""


def listener(port: int) -> str:
    """Return ``process 4711 (python -m peer ...)``, or ``another process`` where Linux does not show it to this user."""
    sockets = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(PROC / "net" / name, port)}
    processes = PROC.glob("[0-9]*") if sockets else ()
    holder = next((process for process in processes if _holds(process, sockets)), None)
    if holder is None:
        return "another process"
    if holder.name == str(os.getpid()):
        return f"this process ({holder.name})"
    try:
        words = (holder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return f"process {holder.name}"
    command = " ".join(word.decode(errors="replace") for word in words if word)
    return f"process {holder.name} ({''.join(c if c.isprintable() else '?' for c in command[:_COMMAND_MAX])})"


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        handles = list((process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to another user
        return False
    for handle in handles:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(handle) in sockets:
                return True
    return False


def _listening(table: Path, port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port: column 1 is address:port, 3 the state, 9 the inode."""
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
