"""What a process adds to the status for observers: how it calls its neighbors, and how its run ended."""

from __future__ import annotations

import asyncio

from peer.host import PeerHost
from peer.runtime.edges import Edges
from peer.runtime.results import exit_code_of, main_cluster, outcome_of
from peer.store.records import ProcessStatus


def about(host: PeerHost, edges: Edges, ended: asyncio.Future[str] | None, *, clusters: bool) -> ProcessStatus:
    """Return the keys that the process adds to a status.

    Args:
        host: the peer.
        edges: of the peer.
        ended: how it ended; None before its start.
        clusters: whether its true cluster is included.
    """
    status: ProcessStatus = {"routes": {str(neighbor): edges.kind(neighbor) for neighbor in host.state.neighbors}}
    if ended is not None and ended.done() and not (ended.exception() is None and ended.result() == "changed"):
        error = ended.exception()
        outcome = ended.result() if error is None else outcome_of(error)
        status["outcome"], status["exit_code"] = outcome, exit_code_of(error or outcome)
    if clusters:
        status["true_cluster"] = main_cluster(host.workspace.true_cluster)
    return status
