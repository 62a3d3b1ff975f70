"""Each xdist worker draws ports of its own.

`free_ports` releases a port before a peer binds it, and a killed peer has none until it restarts: another worker could draw it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from peer.bed.testbed import ports


def part_of(every: range, environment: Mapping[str, str]) -> range:
    """Return the ports of the worker that has this environment; all of them without workers."""
    worker = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return every[worker :: int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))]


def keep_to_own_ports() -> None:
    """Let `free_ports` of this process, and of those forked from it, draw from the worker's part only."""
    ports.PORTS = part_of(ports.PORTS, os.environ)
