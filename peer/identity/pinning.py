"""Pins: write certificates and key fingerprints into a graph, at the peers and observers that they name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from coordinator_free_bootstrap import Graph, Node, Observer, spiffe_id
from coordinator_free_bootstrap.errors import ConfigProblem, IdentityError
from peer.identity.certificates import Certificate

S = TypeVar("S", Node, Observer)


def pin(graph: Graph, certificates: Iterable[Certificate], *, rotate: bool = False) -> Graph:
    """Return the graph with each certificate and its key's fingerprint at the node or observer that it names.

    An observer that is not in the graph is added; a peer is not.

    Args:
        graph: of the federation that the certificates name.
        certificates: any number; several of one subject are all pinned.
        rotate: also keep the pins that the graph has, while old and new keys are both in use.

    Raises:
        IdentityError: a certificate of another federation or of an unknown peer, or one that may sign others.
        GraphError: more pins than a node may have.
    """
    new: dict[int | str, list[Certificate]] = {}
    for certificate in certificates:
        federation, subject = certificate.name
        where = f"certificate {spiffe_id(federation, subject)}"
        if federation != graph.manifest.federation:
            raise IdentityError(
                f"{where}: expected federation {graph.manifest.federation}, the graph's, got {federation}. Make the "
                f"certificate with --federation {graph.manifest.federation}, or set run.federation."
            )
        if isinstance(subject, int) and subject not in graph.ids:
            raise IdentityError(ConfigProblem(where, "a peer of the graph", f"peer {subject}", "Pin its peers only."))
        if certificate.may_sign_others:
            raise IdentityError(
                f"{where}: expected a key usage without keyCertSign, got one that allows signing certificates"
            )
        new.setdefault(subject, []).append(certificate)
    for name in new:
        if isinstance(name, str) and name not in {observer.name for observer in graph.observers}:
            graph = replace(graph, observers=(*graph.observers, Observer(name)))
    return replace(
        graph,
        nodes=tuple(_pinned(node, new.get(node.id, []), rotate) for node in graph.nodes),
        observers=tuple(_pinned(observer, new.get(observer.name, []), rotate) for observer in graph.observers),
        signature="",
    )


def _pinned(subject: S, new: list[Certificate], rotate: bool) -> S:
    if not new:
        return subject
    pins: list[str] = [each.fingerprint for each in new]
    texts: list[str] = [each.text() for each in new]
    if rotate:
        pins, texts = [*subject.pins, *pins], [*subject.certificates, *texts]
    return replace(subject, pins=tuple(dict.fromkeys(pins)), certificates=tuple(dict.fromkeys(texts)))
