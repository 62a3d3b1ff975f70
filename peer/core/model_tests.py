"""After the last round each peer tests the models that its neighbors delivered in it: why one has no test. Pure.

With the rows of all peers this is a matrix: the model of peer i on the test samples of peer j.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator_free_bootstrap.seeds import generator
from peer.core.state import State

TESTED_MAX = 100  # neighbors of one peer: a complete graph of 1,000 peers would take 1,000,000 tests

REASONS: Mapping[str, str] = {  # word in records -> sentence about the peer whose model is missing
    "not_drawn": f"the tester has more neighbors than it tests, {TESTED_MAX}",
    "sat_out": "did not train in the last round (run.participation)",
    "edge_down": "its edge was down in the last round (run.edges, run.dynamic_edges)",
    "not_taken": "the tester sat the last round out and took no models",
    "not_asked": "the tester did not ask for its model",
    "unknown": "was never met",
    "dead": "was marked dead when the last round closed",
    "left": "had left when the last round closed",
    "late": "delivered no model before the last round closed",
    "none": "sent no model in the last round, or none that was accepted",
    "skipped": "the tester skipped the last round",
    "new": "became a neighbor after the tests, by another graph file",
    "summed": "it came inside a secure sum, and no peer sees it alone (run.secure_sum)",
    "not_kept": "its model could not be kept on disk until the tests",
}
Absent = tuple[tuple[int, str], ...]  # neighbor and word, ascending; () in all rounds but the last


def drawn(seed: int, peer_id: int, neighbors: Iterable[int]) -> frozenset[int]:
    """Return the neighbors whose models a peer tests: all, or of more than `TESTED_MAX` as many, drawn at random."""
    known = sorted(neighbors)
    if len(known) <= TESTED_MAX:
        return frozenset(known)
    order = generator(seed, "model_tests", peer_id).permutation(len(known))[:TESTED_MAX]
    return frozenset(known[int(at)] for at in order)


def absent(state: State) -> Absent:
    """Return every neighbor with the reason that counts if it has delivered no model, at the close of the last round.

    () in earlier rounds, and where the last round exchanges nothing.
    """
    if state.round.index + 1 != state.manifest.rounds or not state.plan.steps:
        return ()
    tested = drawn(state.manifest.seed, state.peer_id, state.neighbors)
    return tuple((n, _reason(state, n) if n in tested else "not_drawn") for n in state.neighbors)


def all_skipped(state: State) -> Absent:
    """Return every neighbor with the reason of a peer that was not in the last round; () as `absent`."""
    last = state.planner.plan(state.manifest.rounds - 1)
    return tuple((n, "skipped") for n in state.neighbors) if last.steps else ()


def _reason(state: State, n: int) -> str:
    """Return what the schedule says, which is the same in every run with this seed; else what became of the neighbor."""
    plan, liveness = state.plan, state.neighbors[n].liveness
    if state.sums is not None:
        return "summed"
    if n not in plan.up:
        return "edge_down"
    if n not in plan.senders:
        return "sat_out"
    if not plan.receives:
        return "not_taken"
    if plan.declines(n):
        return "not_asked"
    if not liveness.is_live:
        return str(liveness.state)
    return "late" if n in (state.round.notes.missing or ()) else "none"
