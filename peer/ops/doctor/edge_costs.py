"""The results of edge tests as checks, and what a round costs over the edges: seconds, and megabytes a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.rates import round_s
from coordinator_free_bootstrap.validation import counted
from peer.ops.doctor.doctor import Check
from peer.ops.doctor.edge_tests import HELD, EdgeTest

DAY_S = 86_400.0


@dataclass(frozen=True)
class RoundCost:
    """What a round with one model to and from each neighbor costs a peer; with ``run.edges`` "one" the mean of a cycle of rounds.

    Attributes:
        sent_bytes: to all neighbors; as many come from them.
        transfer_s: seconds of the transfers alone, one after the other, at the measured rates and within the declared limits.
        round_s: seconds of a whole round, those of the slowest neighbor's last rounds; None if no neighbor reports them.
        run_bytes: sent and received in all rounds of the run.
        day_bytes: sent and received in a day of such rounds; None without `round_s`.
    """

    sent_bytes: int
    transfer_s: float
    round_s: float | None
    run_bytes: float
    day_bytes: float | None


def round_cost(tests: Sequence[EdgeTest], graph: Graph, peer_id: int, model_bytes: int) -> RoundCost | None:
    """Return the cost of a round; None if no edge was measured. Edges without a measurement count as the mean of the others.

    Args:
        tests: of all edges of the peer.
        graph: with declared limits.
        peer_id: of the peer.
        model_bytes: of one encoded model.
    """
    share = (
        1 / len(graph.matchings) if graph.manifest.edges == "one" else 1.0
    )  # of the rounds in which an edge carries models
    ways = [[rate for test in tests if (rate := getattr(test, way))] for way in ("upload", "download")]
    seconds = [share * len(tests) / len(rates) * sum(model_bytes / rate for rate in rates) for rates in ways if rates]
    if not seconds:
        return None
    transfer_s = max(*seconds, round_s(graph, peer_id, model_bytes))
    measured = [test.round_s for test in tests if test.round_s]
    # without training, transfers alone would say far too many rounds
    whole_s = max(transfer_s, *measured) if measured else None
    sent = round(share * model_bytes * len(tests))
    day_bytes = 2 * sent * DAY_S / whole_s if whole_s else None
    return RoundCost(sent, transfer_s, whole_s, 2.0 * sent * graph.manifest.rounds, day_bytes)


def edge_check(test: EdgeTest) -> Check:
    """Return the check of one edge."""
    name = f"edge to peer {test.neighbor}"
    if test.outgoing:
        fix = "start that peer, or check its address, the firewalls and the proxy"
        fix = "ask the peer itself with peer status, or stop it and repeat" if test.outgoing == HELD else fix
        return Check(name, "warn", f"{test.route}; out: {test.outgoing}; in: {test.incoming}", fix)
    trip = f"{1000 * test.round_trip_s:.1f} ms round trip" if test.round_trip_s is not None else "round trip unknown"
    rates = ", ".join(_rate(way, rate) for way, rate in (("up", test.upload), ("down", test.download)))
    found = f"{test.route}; out: answers, {trip}, {rates}; in: {test.incoming or 'it reaches this peer'}"
    fix = (
        "check the own address in that peer's graph file, and that the own port is open to it" if test.incoming else ""
    )
    return Check(name, "warn" if test.incoming else "ok", found, fix)


def cost_check(cost: RoundCost | None, graph: Graph, peer_id: int) -> Check:
    """Return the check of a round's cost against the round deadline."""
    if cost is None:
        return Check("cost of a round", "warn", "unknown, since no neighbor answered", "start a neighbor, then repeat")
    found = (
        f"{cost.sent_bytes / 1e6:.2f} MB to {counted(graph.degree(peer_id), 'neighbor')} and as much from them, one model each; "
        f"{cost.transfer_s:.1f} s of transfers; {cost.run_bytes / 1e6:.0f} MB for the {graph.manifest.rounds} rounds of the run"
    )
    if cost.day_bytes is not None and cost.day_bytes < cost.run_bytes:  # else the run is over before
        found += f", {cost.day_bytes / 1e6:.0f} MB a day at {cost.round_s:.1f} s a round"
    deadline_s = graph.manifest.timeouts.round_deadline_s
    if cost.transfer_s > deadline_s:
        fix = f"raise run.timeouts.round_deadline_s ({deadline_s:g}), or choose a smaller run.encoding"
        return Check("cost of a round", "warn", found, fix)
    return Check("cost of a round", "ok", found)


def _rate(way: str, rate: float | None) -> str:
    return f"{way} {rate / 1e6:.2f} MB/s" if rate else f"{way} unknown"
