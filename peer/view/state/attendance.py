"""In how many rounds of a run each peer took part, of the histories; `peer.core.participation` says how few are a warning."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator_free_bootstrap.graph import Graph
from coordinator_free_bootstrap.schedule import is_active, neighbors_in_round
from peer.core.participation import sentence, was_hardly_there
from peer.view.state.reducer import EventLog, RoundCell

WITHOUT_EXCHANGE = "local"  # the algorithm whose peers fold nothing


def hardly_there(log: EventLog, graph: Graph | None) -> list[str]:
    """Return a sentence on each peer that took part in few of the rounds of the run so far.

    Its neighbors say it where they wait for models (`missing`, in lockstep): it was away in a round in which every neighbor
    that closed it expected its models in vain. Otherwise its own history says it, once it does not run any more: it was there in
    the rounds that it has.

    Args:
        log: of the histories.
        graph: of the run, where it is known.
    """
    found, closed = [], len(log.rounds)
    for peer_id, peer in sorted(log.peers.items()):
        seen = _seen(peer_id, log.rounds, graph)
        own = sum(peer_id in cells for cells in log.rounds.values())
        if not seen and peer.status == "running":
            continue
        took_part, rounds = (sum(seen.values()), len(seen)) if seen else (own, closed)
        if was_hardly_there(took_part, rounds):
            found.append(sentence(peer_id, took_part, rounds))
    return found


def _seen(peer_id: int, rounds: Mapping[int, Mapping[int, RoundCell]], graph: Graph | None) -> dict[int, bool]:
    """Return for each round that a neighbor waited in whether the peer took part; {} if its neighbors do not say it."""
    if graph is None or graph.manifest.pace != "lockstep" or graph.manifest.algorithm == WITHOUT_EXCHANGE:
        return {}
    m, found = graph.manifest, {}
    for t, cells in rounds.items():
        missing = {n: cells[n].line.get("missing") or () for n in graph.neighbors(peer_id) if n in cells}
        if not missing:
            continue
        sends = m.participation == 1 or is_active(m.seed, t, peer_id, m.participation)
        up = [n for n in neighbors_in_round(graph, t, peer_id) if n in missing]
        found[t] = not (sends and up) or any(peer_id not in missing[n] for n in up)
    return found
