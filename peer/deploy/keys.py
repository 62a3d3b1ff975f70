"""Keys for all peers of a graph at once: for a machine or cluster under one hand. Devices of many hands use `peer keygen`."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap import Graph
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyFiles, keygen, read_file
from peer.identity.pinning import pin

log = logging.getLogger("peer")


def deal_keys(graph: Graph, folder: Path) -> Graph:
    """Make the missing ones of ``folder/peer-<id>/peer-<id>.key`` and ``.pem``, and return the graph with all pinned.

    A peer without a place for its key (a folder that exists and cannot be written) is pinned to a key that nobody has.

    Raises:
        IdentityError: a file that is there cannot be used, or a new one cannot be written.
    """
    return pin(graph, [_certificate(graph.manifest.federation, peer_id, folder) for peer_id in graph.ids])


def key_files(folder: Path, peer_id: int) -> KeyFiles:
    """Return where `deal_keys` puts a peer's pair."""
    return KeyFiles.of(folder / f"peer-{peer_id}", peer_id)


def at_addresses(graph: Graph, template: str) -> Graph:
    """Return the graph with each peer at ``template``, in which ``{id}`` is its id. The graph's digest stays the same."""
    return replace(
        graph, nodes=tuple(replace(node, address=template.replace("{id}", str(node.id))) for node in graph.nodes)
    )


def _certificate(federation: str, peer_id: int, folder: Path) -> Certificate:
    files = key_files(folder, peer_id)
    place = files.key.parent
    if not files.exist():
        if place.is_dir() and not os.access(place, os.W_OK):
            log.warning(
                "peer %d of the graph has no place for a key in %s: it cannot take part; its neighbors start without it",
                peer_id,
                folder,
            )
            return make_certificate(federation, peer_id)[1]
        keygen(place, federation, peer_id)
    return Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate))
