"""A cluster that runs only some peers of a graph: which, how the others reach them, and what the graph must say of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph import split_address
from peer.ops.deploy.text import fill
from peer.wire.security import is_loopback

NODE_PORTS = (30_000, 32_767)  # default range of the Kubernetes API


def id_range(text: str) -> tuple[int, int]:
    """Return first and last id of a text such as ``4-7`` or ``4``.

    Raises:
        UsageError: another form.
    """
    found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(f"--peers: expected FIRST-LAST, such as 4-7, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def own_ids(graph: Graph, peers: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the ids of the peers in a cluster, the ordinals of its StatefulSet: from the first to the last, or all.

    Raises:
        UsageError: the graph lacks one of them.
    """
    first, last = peers or (0, len(graph.ids) - 1)
    ids = tuple(range(first, last + 1))
    if peers is None and graph.ids != ids:
        raise UsageError(
            "graph: expected peer ids from 0 to N - 1, the ordinals of a StatefulSet, got ids with gaps. Use --peers for a "
            "part of them."
        )
    if missing := sorted(set(ids) - set(graph.ids)):
        raise UsageError(f"--peers: expected ids of the graph, got {first}-{last}. It has no peer {missing[0]}.")
    return ids


def check_elsewhere(graph: Graph, ids: tuple[int, ...]) -> None:
    """Check that the graph says where the neighbors outside of the cluster are, and who they are.

    Raises:
        UsageError: one has a loopback address, or no pin.
    """
    outside = {n for peer_id in ids for n in graph.neighbors(peer_id)} - set(ids)
    for peer_id in sorted(outside):
        node = graph.node(peer_id)
        if not node.dials_only and is_loopback(node.address):
            raise UsageError(
                f"graph: peer {peer_id}, which --peers leaves out: expected an address that pods can reach, got "
                f'{node.address}. Set "dials_only": true, if it cannot be reached.'
            )
        if not node.pins:
            raise UsageError(
                f"graph: peer {peer_id}, which --peers leaves out: expected the pin of its key, got none. Make one with "
                f"peer keygen --id {peer_id} where it runs, and pin its certificate here with peer graph pin."
            )


def outside_services(graph: Graph, ids: tuple[int, ...], kind: str, values: Mapping[str, str]) -> str:
    """Return a Service for each peer of the cluster that peers outside dial, at the port of its address in the graph file.

    Raises:
        UsageError: a NodePort cannot have this port.
    """
    found = []
    for peer_id in ids:
        node = graph.node(peer_id)
        if node.dials_only or set(graph.neighbors(peer_id)) <= set(ids):
            continue
        port = split_address(node.address)[1]
        if kind == "NodePort" and not NODE_PORTS[0] <= port <= NODE_PORTS[1]:
            raise UsageError(
                f"graph: peer {peer_id}: expected a port from {NODE_PORTS[0]} to {NODE_PORTS[1]} with --expose NodePort, got "
                f"{port}. Change its address in the graph file to NODE:PORT."
            )
        ports = f"port: 7400, nodePort: {port}" if kind == "NodePort" else f"port: {port}"
        found.append(fill("outside.yaml", id=peer_id, type=kind, port=ports, **values))
    return "".join(found)
