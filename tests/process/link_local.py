"""A server and a link at link-local addresses of each interface, by name and number; run in a network namespace of its own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

from wire_support import LIMITS, TIMEOUTS, Recorder, hello_of

from peer.wire.client import NeighborLink
from peer.wire.server import PeerServer

LINK_LOCAL = "fe80::a1"


def ip(*words: str) -> None:
    """Run the program ip."""
    subprocess.run(["ip", *words], check=True)


async def reached(scope: str) -> bool:
    """Return whether a peer at a scope answers a hello."""
    server = PeerServer(Recorder(), f"[{LINK_LOCAL}%{scope}]:0", limits=LIMITS, timeouts=TIMEOUTS)
    link = NeighborLink(1, f"[{LINK_LOCAL}%{scope}]:{await server.start()}", limits=LIMITS, timeouts=TIMEOUTS)
    try:
        return (await link.hello(hello_of(2))).refusal is None
    finally:
        await link.close()
        await server.stop(0)


def main(names: list[str]) -> None:
    """Make an interface of each name with a link-local address, and print each scope that is reached."""
    ip("link", "set", "lo", "up")
    for number, name in enumerate(names):
        ip("link", "add", name, "type", "veth", "peer", "name", f"other{number}")
        ip("link", "set", name, "up")
        ip("link", "set", f"other{number}", "up")
        ip("address", "add", f"{LINK_LOCAL}/64", "dev", name, "nodad")
        for scope in (name, str(socket.if_nametoindex(name))):
            if asyncio.run(reached(scope)):
                print(scope)


if __name__ == "__main__":
    main(sys.argv[1:])
