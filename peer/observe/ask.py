"""Query running peers as an observer, read what finished peers left, and describe the state of each in one line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph, Manifest, load_graph
from coordinator_free_bootstrap.errors import (
    IdentityError,
    NeighborUnavailable,
    Refusal,
    RemoteProtocolError,
    UsageError,
)
from coordinator_free_bootstrap.graph import split_address
from coordinator_free_bootstrap.strict_json import printable, shown
from peer.identity.files import OBSERVER, KeyFiles, identity_files
from peer.observe.peer_status import PeerStatus, read_status
from peer.observe.places import state_directories
from peer.observe.run_files import PeerRun
from peer.observe.waits import reasons
from peer.wire.client import NeighborLink
from peer.wire.security import MutualTls, SecureChannel, load_tls

ENDED = ("completed", "left", "diverged", "refused")


@dataclass(frozen=True)
class Ended:
    """A peer that does not answer because its run is over, from the files in its state directory."""

    run: PeerRun


@dataclass(frozen=True)
class Silent:
    """A peer without a usable answer; `run` has its files, if they are on this machine."""

    reason: str
    run: PeerRun | None = None


Answer = PeerStatus | Ended | Silent


async def status_of(
    peer_id: int | None, address: str, manifest: Manifest, security: SecureChannel | None = None
) -> PeerStatus:
    """Return the validated status of one peer; None: of any id.

    Raises:
        NeighborUnavailable: the peer does not answer.
        RemoteProtocolError: the peer refuses, for example because its graph file does not list this observer, or its answer is
            not a valid status.
    """
    timeouts = manifest.timeouts
    link = NeighborLink(
        -1 if peer_id is None else peer_id, address, limits=manifest.limits, timeouts=timeouts, security=security
    )
    try:
        return read_status(await link.status(), peer_id)
    finally:
        await link.close()


async def statuses(graph: Graph, tls: MutualTls | None, directory: Path | None = None) -> dict[int, Answer]:
    """Return the answer of each peer of a graph, or what its state directory in ``directory`` says."""
    places = state_directories(directory) if directory is not None else {}

    async def one(peer_id: int) -> Answer:
        address = graph.node(peer_id).address
        try:
            if not address:
                raise NeighborUnavailable("it only dials, so nobody can ask it; its neighbors say whether it is alive")
            channel = tls.channel(peer_id) if tls else None
            return await status_of(peer_id, address, graph.manifest, channel)
        except NeighborUnavailable as error:
            reason = _reason(error)
        except RemoteProtocolError as error:
            reason = _refusal(error)
        run = PeerRun.of(peer_id, places[peer_id]) if peer_id in places else None
        return Ended(run) if run is not None and run.status in ENDED else Silent(reason, run)

    return dict(zip(graph.ids, await asyncio.gather(*map(one, graph.ids)), strict=True))


def _reason(error: NeighborUnavailable) -> str:
    """Return the reason alone: the peer and its address are told beside it."""
    return printable(str(error).partition(": Status: ")[2] or str(error))


def _refusal(error: RemoteProtocolError) -> str:
    sentence = printable(error.sentence)
    if error.code is not Refusal.MALFORMED:
        return f"refused: {error.code}: {sentence}"
    return sentence if sentence.startswith("not a valid status") else f"not a valid status: {sentence}"


def answers(where: str, certs: Path | None = None) -> dict[int, Answer]:
    """Return the answers of the peers of a graph file or a testbed directory, or of the plaintext peer at ``host:port``.

    Raises:
        UsageError: ``where`` is none of these.
        GraphError, IdentityError, NeighborUnavailable, RemoteProtocolError: see `graph_statuses` and `plaintext_status`.
    """
    if Path(where).is_dir():
        return testbed_statuses(Path(where))
    if Path(where).is_file():
        return graph_statuses(Path(where), certs)
    try:
        split_address(where)
    except ValueError as error:
        allowed = "a graph file, the --out directory of a testbed, or host:port of a plaintext peer"
        raise UsageError(f"{shown(where)}: found no such file or directory; allowed: {allowed}") from error
    status = plaintext_status(where)
    return {status.peer_id: status}


def testbed_statuses(directory: Path) -> dict[int, Answer]:
    """Return the status of each peer of a testbed directory, using the observer key in it.

    Raises:
        GraphError: the graph file is missing or not valid.
        IdentityError: the observer's key cannot be used.
    """
    graph = load_graph(Path(directory) / "graph.json")
    files: KeyFiles = identity_files(directory, OBSERVER)
    tls = load_tls(graph, OBSERVER, files) if graph.observers and files.exist() else None
    return asyncio.run(statuses(graph, tls, Path(directory)))


def graph_statuses(path: Path, certs: Path | None) -> dict[int, Answer]:
    """Return the status of each peer of a graph file; see `observer_of`."""
    graph, tls = observer_of(path, certs)
    return asyncio.run(statuses(graph, tls, path.parent))


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
            f"{folder}: found no key of an observer; the graph file lists {', '.join(names) or 'no observers'}; generate a "
            f"key with `peer keygen --observer me --out {folder}`, pin it with `peer graph pin {path} {folder}/me.pem`, and "
            "copy the new graph file to all peers"
        )
    return graph, load_tls(graph, name, KeyFiles.of(folder, name), certs=folder)


def plaintext_status(address: str) -> PeerStatus:
    """Return the status of the peer at ``host:port``.

    Raises:
        NeighborUnavailable: the peer does not answer in plaintext.
        RemoteProtocolError: its answer is not a valid status.
    """
    try:
        return asyncio.run(status_of(None, address, Manifest()))
    except NeighborUnavailable as error:
        raise NeighborUnavailable(
            f"{address}: no answer in plaintext ({_reason(error)}); if the peer uses TLS, name its graph file: "
            "peer status graph.json"
        ) from error
    except RemoteProtocolError as error:
        raise NeighborUnavailable(f"{address}: {_refusal(error)}") from error


def in_json(answer: Answer) -> Any:
    """Return an answer as a JSON value: the status, the summary of a peer that has ended, or a sentence."""
    if isinstance(answer, PeerStatus):
        return answer.model_dump()
    return answer.run.summary if isinstance(answer, Ended) else answer.reason


def sentence(answer: Answer) -> str:
    """Return a peer's round, stage and neighbors, what it waits for, and when that wait ends; or how it ended."""
    if isinstance(answer, Ended):
        return f"{answer.run.status} after {answer.run.rounds_completed} rounds"
    if isinstance(answer, Silent):
        return f"{answer.reason}{files_of(answer)}"
    line = f"round {answer.round_index} of {answer.rounds_total}, {answer.stage.replace('_', ' ')}"
    neighbors = answer.neighbors
    line += f"; {sum(state == 'alive' for state in neighbors.values())} of {len(neighbors)} neighbors alive"
    others = [f"{n} {state}" for n, state in neighbors.items() if state != "alive"]
    line += f" ({', '.join(others)})" if others else ""
    if waits := reasons(answer):
        line += f"; has waited {answer.waiting_s:.1f} s for {'; for '.join(waits)}"
    if answer.storage_error:
        line += f"; {printable(answer.storage_error)}"
    return line


def files_of(answer: Silent) -> str:
    """Return what the files of a silent peer say, or "" if they are not on this machine."""
    if answer.run is None:
        return ""
    place, rounds = answer.run.place.root, answer.run.rounds_completed
    held = "its process runs" if answer.run.held else f"no {answer.run.place.summary.name} in {place}"
    return f" ({held}; its history has {rounds} rounds)"
