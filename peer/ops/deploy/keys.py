"""Keys of all peers of a graph at once, for one machine or cluster. Separate owners use `peer keygen` on each device."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.identity import Subject
from peer.identity.certificates import Certificate, make_certificate
from peer.identity.files import KeyFiles, keygen, read_file
from peer.identity.pinning import pin

log = logging.getLogger("peer")


def create_keys(graph: Graph, folder: Path, ids: Sequence[int] | None = None) -> Graph:
    """Generate the missing ``folder/peer-<id>/peer-<id>.key`` and ``.pem``, and return the graph with these keys pinned.

    If a peer's folder exists and cannot be written, a key that is not stored anywhere is pinned for it.

    Args:
        graph: of the peers.
        folder: of the keys.
        ids: of the peers that need keys; None: all.

    Raises:
        IdentityError: an existing file cannot be used, or a new one cannot be written.
    """
    return pin(graph, [_certificate(graph.manifest.federation, peer_id, folder) for peer_id in ids or graph.ids])


def create_and_list_keys(graph: Graph, folder: Path, ids: Sequence[int] | None = None) -> tuple[Graph, list[Path]]:
    """Do as `create_keys`, and also return the paths of the files that were written."""
    files = [key_files(folder, peer_id) for peer_id in ids or graph.ids]
    missing = [path for each in files for path in (each.key, each.certificate) if not path.exists()]
    pinned = create_keys(graph, folder, ids)
    return pinned, [path for path in missing if path.exists()]


def create_observer_key(graph: Graph, folder: Path, name: str) -> tuple[Graph, list[Path]]:
    """Generate ``folder/<name>/<name>.key`` and ``.pem`` of an observer if missing; return the graph with it, and the new files.

    Raises:
        IdentityError: an existing file cannot be used, or a new one cannot be written.
    """
    files = key_files(folder, name)
    written = [] if files.exist() else [files.key, files.certificate]
    if written:
        keygen(files.key.parent, graph.manifest.federation, name)
    certificate = Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate))
    return pin(graph, [certificate]), written


def key_files(folder: Path, subject: Subject) -> KeyFiles:
    """Return the paths of the key and certificate of a peer or an observer."""
    return KeyFiles.of(folder / (f"peer-{subject}" if isinstance(subject, int) else subject), subject)


def at_addresses(graph: Graph, template: str, ids: Sequence[int] | None = None) -> Graph:
    """Return the graph with peers (default: all) at address ``template``, ``{id}`` replaced by theirs; its digest stays."""
    of = {peer_id: template.replace("{id}", str(peer_id)) for peer_id in ids or graph.ids}
    return replace(graph, nodes=tuple(replace(node, address=of.get(node.id, node.address)) for node in graph.nodes))


def _certificate(federation: str, peer_id: int, folder: Path) -> Certificate:
    files = key_files(folder, peer_id)
    place = files.key.parent
    if not files.exist():
        if place.is_dir() and not os.access(place, os.W_OK):
            log.warning(
                "no key for peer %d: %s cannot be written; the peer cannot take part, and its neighbors start without it",
                peer_id,
                place,
            )
            return make_certificate(federation, peer_id)[1]
        keygen(place, federation, peer_id)
    return Certificate.from_pem(read_file(files.certificate, "certificate"), str(files.certificate))
