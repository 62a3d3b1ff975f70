"""Ask running peers as an observer: their answers are events, which the one reducer folds with what finished peers left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coordinator_free_bootstrap import Graph, Manifest, load_graph
from coordinator_free_bootstrap.errors import (
    IdentityError,
    NeighborUnavailable,
    Option,
    RefusalCode,
    RemoteProtocolError,
    UsageError,
)
from coordinator_free_bootstrap.graph import split_address
from coordinator_free_bootstrap.strict_json import printable, shown
from peer.identity.files import OBSERVER, KeyFiles, identity_files
from peer.store.records import STATES, PeerStatus
from peer.store.state_dir import StateDir
from peer.view.state.events import LoggedEvent, merged
from peer.view.state.hearsay import with_endings
from peer.view.state.peer_state import PeerState
from peer.view.state.peer_status import read_status
from peer.view.state.places import state_directories
from peer.view.state.reducer import EventLog
from peer.view.state.tail import PeerTail
from peer.view.state.view import View
from peer.wire.client import NeighborLink
from peer.wire.failures import CLOSED
from peer.wire.limits import WireLimits
from peer.wire.proxy import HttpProxy
from peer.wire.security import MutualTls, SecureChannel, load_tls

ENDED = tuple(state for state, each in STATES.items() if each.ends)


async def status_of(
    peer_id: int | None,
    address: str,
    manifest: Manifest,
    security: SecureChannel | None = None,
    proxy: HttpProxy | None = None,
) -> PeerStatus:
    """Return the validated status of one peer; None: of any id.

    Raises:
        NeighborUnavailable: the peer does not answer.
        RemoteProtocolError: the peer refuses, for example because its graph file does not list this observer, or its answer is
            not a valid status.
    """
    link = NeighborLink(
        -1 if peer_id is None else peer_id,
        address,
        limits=WireLimits.of(manifest),
        timeouts=manifest.timeouts,
        security=security,
        proxy=proxy,
    )
    try:
        return read_status(await link.status(), peer_id)
    finally:
        await link.close()


NO_PINS = "; this graph file pins no certificates, so it was asked without TLS; name the graph file that was deployed"


async def answers(graph: Graph, tls: MutualTls | None, proxy: HttpProxy | None = None) -> list[LoggedEvent]:
    """Ask each peer of a graph once; return an event ``status`` or ``silent`` for each."""

    async def one(peer_id: int) -> LoggedEvent:
        address = graph.node(peer_id).address
        try:
            if not address:
                raise NeighborUnavailable("it only dials, so it cannot be asked; its neighbors say whether it is alive")
            channel = tls.channel(peer_id) if tls else None
            return answered(await status_of(peer_id, address, graph.manifest, channel, proxy))
        except NeighborUnavailable as error:
            reason = _reason(error)
            return _silent(peer_id, reason + NO_PINS if tls is None and reason == CLOSED else reason)
        except RemoteProtocolError as error:
            return _silent(peer_id, why_unusable(error))

    return list(await asyncio.gather(*map(one, graph.ids)))


def answered(status: PeerStatus) -> LoggedEvent:
    """Return the event of an answer."""
    return LoggedEvent(time.time(), status["peer_id"], {"kind": "status", "status": status})


def _silent(peer_id: int, reason: str) -> LoggedEvent:
    return LoggedEvent(time.time(), peer_id, {"kind": "silent", "reason": reason})


def view_of(graph: Graph | None, news: list[LoggedEvent], places: Mapping[int, StateDir]) -> View:
    """Return the state of peers that were asked; a peer that gave no answer is read from its state directory, if it has one.

    Args:
        graph: of the run; None: not known.
        news: what the peers answered.
        places: state directories on this machine, by peer id.
    """
    log = EventLog(graph.ids if graph else ())
    completed = with_endings(news)
    news = [before if before.peer in places else after for before, after in zip(news, completed, strict=True)]
    silent = [event.peer for event in news if event.kind == "silent" and event.peer in places]
    tails = [PeerTail(peer_id, places[peer_id]) for peer_id in silent if peer_id is not None]
    log.append(merged(list(tail.read()) for tail in tails))
    log.problems = [problem for tail in tails for problem in tail.problems]
    log.append(news)
    return View(log, graph)


def has_no_answer(peer: PeerState) -> bool:
    """Return whether a peer neither answers nor has ended."""
    return bool(peer.silent) and peer.status not in ENDED


def _reason(error: NeighborUnavailable) -> str:
    """Return the reason alone: the peer and its address are shown beside it."""
    return printable(str(error).partition(": Status: ")[2] or str(error))


def why_unusable(error: RemoteProtocolError) -> str:
    """Return why a peer gives no usable answer: its refusal, or what is wrong with the answer."""
    refusal = replace(error.refusal, reason=printable(error.refusal.reason))
    if refusal.code is not RefusalCode.MALFORMED:
        return f"refused: {refusal}"
    return refusal.reason if refusal.reason.startswith("not a valid ") else f"not a valid status: {refusal.reason}"


def ask(where: str, certs: Path | None = None, proxy: HttpProxy | None = None) -> View:
    """Ask the peers of a graph file or a testbed directory, or the plaintext peer at ``host:port``; return their state.

    Args:
        where: one of these.
        certs: see `observer_of`.
        proxy: dials the addresses of peers; default: they are dialed directly. Those of a testbed are on this machine.

    Raises:
        UsageError: ``where`` is none of these.
        GraphError: the graph file is missing or not valid.
        IdentityError: the observer's key cannot be used; see `observer_of`.
        StorageError: a file exists and cannot be read.
        NeighborUnavailable: the plaintext peer does not answer.
    """
    path = Path(where)
    if path.is_dir():
        graph = load_graph(path / "graph.json")
        files: KeyFiles = identity_files(path, OBSERVER)
        tls = load_tls(graph, OBSERVER, files) if graph.observers and files.exist() else None
        return view_of(graph, asyncio.run(answers(graph, tls)), state_directories(path))
    if path.is_file():
        graph, tls = observer_of(path, certs)
        return view_of(graph, asyncio.run(answers(graph, tls, proxy)), state_directories(path.parent))
    try:
        split_address(where)
    except ValueError as error:
        allowed = f"a graph file, the {Option('out')} directory of a testbed, or host:port of a plaintext peer"
        raise UsageError(f"{shown(where)}: expected {allowed}, got no such file or directory") from error
    return view_of(None, [answered(plaintext_status(where, proxy))], {})


def observer_of(path: Path, certs: Path | None) -> tuple[Graph, MutualTls | None]:
    """Return a graph file and the identity with which an observer asks its peers.

    Args:
        path: the graph file of the run.
        certs: the folder with an observer's certificate and key; None: ``certs`` beside the graph file. Not used if the peers
            use plaintext.

    Raises:
        GraphError: the graph file is missing or not valid.
        IdentityError: the peers have keys, and the folder has no key of an observer in the graph file.
    """
    graph = load_graph(path)
    if not any(node.pins for node in graph.nodes):
        return graph, None
    folder = certs or path.parent / "certs"
    names = [observer.name for observer in graph.observers]
    name = next((name for name in names if KeyFiles.of(folder, name).exist()), None)
    if name is None:
        raise IdentityError(
            f"{folder}: expected the key of an observer that the graph file lists ({', '.join(names) or 'none'}), got none. "
            f"Generate one with `peer keygen --observer me --out {folder}`, pin it with `peer graph pin {path} {folder}/me.pem`, "
            "and copy the new graph file to all peers."
        )
    return graph, load_tls(graph, name, KeyFiles.of(folder, name), certs=folder)


def plaintext_status(address: str, proxy: HttpProxy | None = None) -> PeerStatus:
    """Return the status of the peer at ``host:port``.

    Raises:
        NeighborUnavailable: the peer does not answer in plaintext.
        RemoteProtocolError: its answer is not a valid status.
    """
    try:
        return asyncio.run(status_of(None, address, Manifest(), proxy=proxy))
    except NeighborUnavailable as error:
        raise NeighborUnavailable(
            f"{address}: no answer in plaintext ({_reason(error)}); if the peer uses TLS, name its graph file: "
            "peer status graph.json (docs/trouble.md#no-answer)"
        ) from error
    except RemoteProtocolError as error:
        raise NeighborUnavailable(f"{address}: {why_unusable(error)}") from error


def in_json(peer: PeerState) -> object:
    """Return what is known of a peer as a JSON value: its status, the summary of a peer that has ended, or why it is silent."""
    if not peer.silent:
        return peer.summary if peer.answer is None else peer.answer
    return peer.silent if has_no_answer(peer) else peer.summary
