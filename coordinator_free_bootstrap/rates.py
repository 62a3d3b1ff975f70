"""Limits in bytes per second: how fast transfers between neighbors must be, and how large their frames are.

A limit holds for all neighbors of a peer together. Limits in the graph file are known to all peers; a neighbor expects less of a
peer that declares one, and sends it smaller frames. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coordinator_free_bootstrap.errors import ConfigError, Option
from coordinator_free_bootstrap.graph import RATE_MIN, Graph, Node
from coordinator_free_bootstrap.routes import relay_of, relayed_by
from coordinator_free_bootstrap.validation import counted

RATE_EXPECTED = 32 << 10  # bytes/s of one transfer, 0.26 Mbit/s: a slower one is cancelled, unless a limit is declared
FRAME_BYTES_MIN, FRAME_BYTES_MAX = 4 << 10, 1 << 20  # payload; throughput stops growing at the upper one
TLS_RECORD_BYTES = 16 << 10  # what crosses a relay cannot be read before the whole record is there
UNDECLARED_FRAMES = (
    4  # frames of full size per second; at fewer, the pace would vary by more than a tenth in ten seconds
)
BUFFERED_BYTES = 4 << 20  # at most, between a sender that is not slowed itself and its relay
FRAME_S = 0.1  # how long a frame takes at the limit
_UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMG]i?B|B|)")


def parse_rate(text: str, option: str) -> int:
    """Return the bytes per second of ``2MB``, ``250kB`` or ``500000``.

    Raises:
        ConfigError: another form, or less than `RATE_MIN`.
    """
    match = _RATE.fullmatch(text.strip())
    rate = round(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if rate < RATE_MIN:
        raise ConfigError(
            f"{option}: expected bytes per second such as 2MB or 250kB, at least {RATE_MIN}, got {text!r}"
        )
    return rate


def expected_rate(graph: Graph, sender: int, receiver: int) -> float:
    """Return the bytes per second below which a transfer is cancelled; half of a declared limit's share is enough."""
    return min([RATE_EXPECTED, *(limit / (2 * sharing) for limit, sharing in _limits(graph, sender, receiver))])


def declared_rate(graph: Graph, sender: int, receiver: int) -> float | None:
    """Return the share of the declared limits that a transfer has at least, bytes per second; None without limits."""
    return min((limit / sharing for limit, sharing in _limits(graph, sender, receiver)), default=None)


def _limits(graph: Graph, sender: int, receiver: int, upload: int | None = None) -> list[tuple[int, int]]:
    """Return the limits that a transfer is subject to, each with the number of transfers that share it at most."""
    limits = [
        (upload or graph.node(sender).upload_limit, graph.degree(sender)),
        (graph.node(receiver).download_limit, graph.degree(receiver)),
    ]
    relay = relay_of(graph, sender, receiver)
    if relay is not None and (terms := graph.node(relay).relay):
        limits.append((terms.bytes_per_second, len(relayed_by(graph, relay))))
    return [(limit, sharing) for limit, sharing in limits if limit]


def frame_bytes(graph: Graph, sender: int, receiver: int, upload: int | None = None) -> int:
    """Return the payload bytes of one frame, a multiple of 4: at a low limit small, so that it never stops for long.

    Args:
        graph: of the run.
        sender: of the frames.
        receiver: of the frames.
        upload: the sender's own limit, if it is not that of the graph file.
    """
    timeouts = graph.manifest.timeouts
    limits = _limits(graph, sender, receiver, upload)
    patience_s = timeouts.suspicion_s / 4
    sizes = [limit * min(FRAME_S, patience_s / sharing) for limit, sharing in limits]
    return max(FRAME_BYTES_MIN, min([FRAME_BYTES_MAX, *map(int, sizes)])) & ~3


def bytes_ahead(graph: Graph, relay: int | None) -> int | None:
    """Return the payload bytes that each sender may have on the way over a slow relay; None: there is none, or it is fast.

    The messages of a relayed edge are one stream of bytes to the relay, so a heartbeat waits for all that was written before it:
    with all edges of the relay busy, for a quarter of the suspicion time at most.
    """
    if relay is None or (terms := graph.node(relay).relay) is None:
        return None
    passing = terms.bytes_per_second / len(relayed_by(graph, relay)) * graph.manifest.timeouts.suspicion_s / 4
    return None if passing >= BUFFERED_BYTES else max(FRAME_BYTES_MIN, int(passing)) & ~3


def check_limits(graph: Graph, peer_id: int, upload: int | None, download: int | None) -> None:
    """Refuse limits of ``--limit`` at which neighbors would cancel transfers.

    Raises:
        ConfigError: a limit is too low for what the graph file lets neighbors expect.
    """
    node, degree = graph.node(peer_id), max(1, graph.degree(peer_id))
    least = 2 * degree * RATE_EXPECTED
    for name, rate, declared, lowest in (
        ("upload_limit", upload, node.upload_limit, least),
        ("download_limit", download, node.download_limit, max(least, UNDECLARED_FRAMES * FRAME_BYTES_MAX)),
    ):
        least_rate = min(lowest, declared or lowest)
        if rate is not None and rate < least_rate:
            raise ConfigError(
                f'{Option("limit")}: expected at least {least_rate}, or less with "{name}": {rate} at node {peer_id} in '
                f"the graph file of all peers, got {name} {rate} bytes/s for {counted(degree, 'neighbor')}. Neighbors "
                "cancel slower transfers."
            )


def round_s(
    graph: Graph, peer_id: int, model_bytes: int, upload: int | None = None, download: int | None = None
) -> float:
    """Return the seconds that a model to and from each neighbor of a round takes at a peer's limits; 0 without limits."""
    node, sharing = graph.node(peer_id), _in_a_round(graph, peer_id)
    limits = (upload or node.upload_limit, download or node.download_limit)
    return max(model_bytes * sharing / limit if limit else 0.0 for limit in limits)


def _in_a_round(graph: Graph, peer_id: int) -> int:
    """Return with how many neighbors a peer exchanges models in a round, at most."""
    return min(graph.degree(peer_id), 1 if graph.manifest.edges == "one" else len(graph.nodes))


def problems(graph: Graph, model_bytes: int) -> Iterator[str]:
    """Yield a sentence for each peer whose declared limits do not fit the round deadline or the suspicion time."""
    for node in graph.nodes:
        yield from problems_of(graph, node.id, model_bytes)
        yield from _relay_problems(graph, node, model_bytes)


def _relay_problems(graph: Graph, node: Node, model_bytes: int) -> Iterator[str]:
    """Yield a sentence for each limit of a relay that does not fit the edges that run through it."""
    pairs, deadline_s = len(relayed_by(graph, node.id)), graph.manifest.timeouts.round_deadline_s
    if node.relay is None or not pairs:
        return
    if (seconds := pairs * model_bytes / node.relay.bytes_per_second) > deadline_s:
        yield (
            f"peer {node.id}: one model of {model_bytes} bytes in each direction over {counted(pairs // 2, 'relayed edge')} "
            f"takes {seconds:.0f} s at relay.bytes_per_second; run.timeouts.round_deadline_s is {deadline_s:g}. Raise one of "
            "them, or choose a smaller run.encoding."
        )
    waiting = max(TLS_RECORD_BYTES, min(model_bytes, bytes_ahead(graph, node.id) or BUFFERED_BYTES))
    if (wait_s := pairs * waiting / node.relay.bytes_per_second) > graph.manifest.timeouts.suspicion_s / 2:
        yield _heartbeats_wait(node, wait_s, "relay.bytes_per_second", graph)
    if node.relay.connections < pairs:
        yield (
            f"peer {node.id}: relay.connections: expected {pairs} or more, two for each of "
            f"{counted(pairs // 2, 'relayed edge')}, got {node.relay.connections}"
        )


def problems_of(
    graph: Graph, peer_id: int, model_bytes: int, upload: int | None = None, download: int | None = None
) -> Iterator[str]:
    """Yield a sentence for each timeout that one peer's limits do not fit."""
    timeouts, node, degree = graph.manifest.timeouts, graph.node(peer_id), graph.degree(peer_id)
    seconds, sharing = round_s(graph, peer_id, model_bytes, upload, download), _in_a_round(graph, peer_id)
    if seconds > timeouts.round_deadline_s:
        yield (
            f"peer {peer_id}: one model of {model_bytes} bytes to and from {counted(sharing, 'neighbor')} takes {seconds:.0f} s "
            f"at its limits; run.timeouts.round_deadline_s is {timeouts.round_deadline_s:g}. Raise it, choose a smaller "
            "run.encoding, or raise the limits."
        )
    lowest = min(filter(None, (upload or node.upload_limit, download or node.download_limit)), default=None)
    wait_s = degree * FRAME_BYTES_MIN / lowest if lowest else 0.0
    if wait_s > timeouts.suspicion_s / 2:
        yield _heartbeats_wait(node, wait_s, "its limits", graph)


def _heartbeats_wait(node: Node, wait_s: float, limits: str, graph: Graph) -> str:
    """Return the sentence about frames that take so long that their silence looks like a death."""
    return (
        f"peer {node.id}: a heartbeat may wait {wait_s:.1f} s behind models at {limits}; run.timeouts.suspicion_s is "
        f"{graph.manifest.timeouts.suspicion_s:g}. Raise it to {2 * wait_s:.0f} or more."
    )
