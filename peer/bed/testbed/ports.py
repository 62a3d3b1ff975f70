"""Loopback ports that are free now, for peers that are processes of one machine."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap.graph import Graph

PORTS = range(15_000, 65_536)
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


_drawn: set[int] = set()  # a free port may belong to a peer of this process that has not bound it yet, or is down


def free_ports(count: int) -> list[int]:
    """Return different loopback ports that are free now, and that this process has not drawn before while there are others.

    Ports of the kernel's range for outgoing connections come last: such a connection could occupy the port of a peer that
    has not started yet or is down.
    """
    first, last = (
        (int(text) for text in EPHEMERAL_PORTS.read_text().split()) if EPHEMERAL_PORTS.exists() else (32_768, 60_999)
    )
    outgoing = set(range(first, last + 1))
    candidates = random.sample(PORTS, len(PORTS))
    candidates.sort(key=lambda port: (port in outgoing, port in _drawn), reverse=True)  # the last one is taken first
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            each, port = stack.enter_context(socket.socket()), candidates.pop()
            try:
                each.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    _drawn.update(ports)
    return ports


def on_free_ports(graph: Graph) -> Graph:
    """Return the graph with its peers on loopback ports that are free now."""
    ports = free_ports(len(graph.nodes))
    nodes = (replace(node, address=f"127.0.0.1:{port}") for node, port in zip(graph.nodes, ports, strict=True))
    return replace(graph, nodes=tuple(nodes))
