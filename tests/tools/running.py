"""Processes of tests: graphs on free ports, peers and other programs, and waiting for conditions."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.warm_parent import Forked

from coordinator_free_bootstrap import Graph, Relay
from peer.bed.testbed.ports import free_ports
from peer.store.state_dir import StateDir

PATIENCE_S = 120  # without any progress; a wait that is over in a second on an idle machine: only a hang reaches it


def on_loopback(graph: Graph, ports: Sequence[int] = (), host: str = "127.0.0.1") -> Graph:
    """Return a graph whose peers have these loopback ports (default: free ones) of a host; peers that nobody dials have none."""
    places = [f"{host}:{port}" for port in ports or free_ports(len(graph.nodes))]
    nodes = (
        replace(node, address="" if node.dials_only and not node.network else place)
        for node, place in zip(graph.nodes, places, strict=True)
    )
    return replace(graph, nodes=tuple(nodes))


def behind_nat(graph: Graph, *dialers: int, via: Sequence[tuple[int, int, int]] = (), network: str = "") -> Graph:
    """Return a graph of which some peers only dial, except in their network, and some edges have a relay: (end, end, relay)."""
    limits = {relay: Relay(bytes_per_second=50_000_000, connections=8) for _, _, relay in via}
    nodes = (
        replace(node, address=network and node.address, dials_only=True, network=network)
        if node.id in dialers
        else replace(node, relay=limits.get(node.id))
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes), via=tuple(via))


@contextmanager
def running(*command: object, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with a log file; SIGTERM ends it with the block."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (
        log.open("wb") as file,
        subprocess.Popen([*map(str, command)], env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def running_command(*words: object, log: Path, **options: Any) -> Iterator[Forked]:
    """Run the command `peer`, forked, with a log file and options of `Forked`; SIGTERM ends it with the block."""
    with _ended(Forked(*words, log=log, **options)) as process:
        yield process


@contextmanager
def _ended(process: Forked) -> Iterator[Forked]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def forked_peer(peer_id: int, home: Path, *options: object, graph: str = "graph.json", **place: Any) -> Forked:
    """Start a peer of a graph file in `home`, with its state below `home` as in a testbed; `place`: options of `Forked`."""
    state = StateDir.of_peer(home, peer_id).root
    words = ("run", "--id", peer_id, "--neighbors", home / graph, "--state-dir", state)
    return Forked(*words, *options, **place)


def running_peer(
    peer_id: int,
    home: Path,
    *options: object,
    namespace: str = "",
    environment: dict[str, str] | None = None,
    goodbye_s: float | None = None,
) -> AbstractContextManager[Forked]:
    """Run a peer of `home`/graph.json, with its state below `home` as in a testbed, and its log in `home`/ID.log.

    Args:
        peer_id: the peer.
        home: the directory.
        options: further options of `peer run`.
        namespace: the network namespace in which it runs.
        environment: variables beside those of the tests.
        goodbye_s: as of `Forked`.
    """
    place = {"namespace": namespace, "environment": environment, "goodbye_s": goodbye_s}
    return _ended(forked_peer(peer_id, home, *options, log=home / f"{peer_id}.log", **place))


def until(
    holds: Callable[[], Any],
    what: str,
    *,
    logs: Iterable[Path] = (),
    evidence: Callable[[], str] | None = None,
    not_yet: tuple[type[Exception], ...] = (),
    progress: Callable[[], Any] = lambda: None,
    patience_s: float = PATIENCE_S,
    poll_s: float = 0.1,
) -> Any:
    """Poll until a function returns a true value, and return it; fail with the evidence when the patience is over.

    Args:
        holds: the function.
        what: what is waited for.
        logs: the files whose ends are the evidence.
        evidence: returns other evidence.
        not_yet: exceptions of the function that mean the same as a false value.
        progress: returns another value after each step towards it, at which the patience begins again.
        patience_s: only a hang lasts so long.
        poll_s: between two calls.
    """
    deadline, reached = time.monotonic() + patience_s, progress()
    while True:
        last = None
        try:
            if found := holds():
                return found
        except not_yet as error:
            last = error
        if time.monotonic() > deadline:
            before, reached = reached, progress()
            if reached == before:
                raise AssertionError(
                    f"not within {patience_s} s: {what}\n{evidence() if evidence else ends(logs)}"
                ) from last
            deadline = time.monotonic() + patience_s
        time.sleep(poll_s)


def ends(logs: Iterable[Path]) -> str:
    """Return the end of each log, for error messages."""
    parts = []
    for path in logs:
        text = path.read_text(errors="replace")[-1500:] if path.exists() else "(no log)"
        parts.append(f"---- {path.parent.name}/{path.name}\n{text}")
    return "\n".join(parts)
