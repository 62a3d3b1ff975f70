"""Goal: peers that can only dial take full part, over tunnels that they open and over a relay.

Method: real processes with TLS on loopback, where a dials-only peer listens on no port at all. The models of a run are equal,
bit for bit, to those of the same graph in which every peer can be dialed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import invariants
from tools.beds import Bed, final_models, same_models
from tools.running import behind_nat

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest
from peer.algorithms.registry import algorithms
from peer.lab.simulated import simulate

pytestmark = [pytest.mark.process, pytest.mark.slow]

Make = Callable[..., Bed]
SMALL: dict[str, Any] = {
    "rounds": 4,
    "model_options": {"hidden": 16},
    "split_options": {"samples_per_peer": 90, "test_per_peer": 40},
    "start": {"wait_for": "all", "deadline_s": 60.0},
    "timeouts": {"suspicion_s": 60.0, "round_deadline_s": 120.0},
}


def graph_of(kind: str, peers: int, **run: Any) -> Graph:
    return make_graph(kind, peers, manifest=parse_manifest({**SMALL, **run}, "test"))


STAR = graph_of("star", 6)
RING = graph_of("ring", 6)
TRIANGLE = graph_of("complete", 3)


@pytest.mark.parametrize(
    ("graph", "natted"),
    [
        pytest.param(RING, behind_nat(RING, 1, 3), id="ring"),
        pytest.param(STAR, behind_nat(STAR, 2, 5), id="star-leaves"),
        pytest.param(STAR, behind_nat(STAR, 0), id="star-center"),
        pytest.param(TRIANGLE, behind_nat(TRIANGLE, 1, 2, via=((1, 2, 0),)), id="relay"),
        pytest.param(TRIANGLE, behind_nat(TRIANGLE, 1, 2, network="b"), id="network"),
    ],
)
def test_models_are_those_of_the_same_graph_without_tunnels(bed: Make, graph: Graph, natted: Graph) -> None:
    runs = {}
    for name, each in (("dialed", graph), ("tunneled", natted)):
        runs[name] = bed(name, graph=each, insecure=False)
        assert runs[name].finish()["failed"] == {}
    same_models(runs["dialed"].models(), runs["tunneled"].models())
    for peer_id in natted.ids:
        rounds = runs["tunneled"].history(peer_id, "round")
        assert [line["missing"] for line in rounds] == [[]] * SMALL["rounds"], "a model came late or not"
        listens = not natted.node(peer_id).dials_only or bool(natted.node(peer_id).network)
        assert bool(runs["tunneled"].history(peer_id, "start")[0]["port"]) is listens


# Noise differs in every run; this epsilon puts it below the resolution of float32.
DP = {"min_cluster_samples": 10, "dp_epsilon": 1e30, "dp_clip": 0.02}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted(algorithms()) if name != "local"),
    ("fedspd", {"options": DP}),
    ("dfedavg", {"options": {"partners": 1}}),
    ("dfedavg", {"encoding": "delta_int8"}),
]


@pytest.mark.parametrize(("algorithm", "run"), CASES, ids=[f"{name}-{'-'.join(run) or 'plain'}" for name, run in CASES])
def test_every_algorithm_computes_over_tunnels_and_a_relay_what_it_computes_without_a_network(
    bed: Make, tmp_path: Path, algorithm: str, run: dict[str, Any]
) -> None:
    """Requests to chosen neighbors, models that travel in part, private updates and changes against a base go this way too."""
    four = graph_of("complete", 4, algorithm=algorithm, **run)
    real = bed(graph=behind_nat(four, 1, 2, via=((1, 2, 0),)), insecure=False)
    assert real.finish()["failed"] == {}
    simulate(four, tmp_path / "simulated")
    same_models(real.models(), final_models(tmp_path / "simulated", four))


QUICK = {"suspicion_s": 2.0}
FOUR = behind_nat(graph_of("ring", 4, rounds=100_000, timeouts=QUICK), 1)
RELAYED = behind_nat(graph_of("complete", 3, rounds=100_000, timeouts=QUICK), 1, 2, via=((1, 2, 0),))


def folds(run: Bed, peer_id: int, neighbor: int, since: int) -> bool:
    """Return whether a peer has folded a model of a neighbor after a round."""
    rounds = run.history(peer_id, "round")
    return any(line["round_index"] > since and neighbor in {row[0] for row in line["folded"]} for line in rounds)


@pytest.mark.parametrize(
    ("graph", "killed"),
    [
        pytest.param(FOUR, 1, id="dialing-end"),
        pytest.param(FOUR, 0, id="listening-end"),
        pytest.param(RELAYED, 0, id="relay"),
        pytest.param(RELAYED, 1, id="end-of-a-relayed-edge"),
    ],
)
def test_killed_peer_resumes_and_every_edge_carries_models_again(bed: Make, graph: Graph, killed: int) -> None:
    run = bed(graph=graph, insecure=False, failpoints={killed: "train.begin=kill@5"})
    assert run.until_ended(killed) == -9
    before = {p: run.rounds(p) for p in graph.ids}
    run.arm(killed, "")
    run.do("restart", killed)
    for a, b in graph.edges:
        for one, other in ((a, b), (b, a)):
            run.until(lambda i=one, n=other: folds(run, i, n, before[i]), f"{one} folds {other} after the restart")
    run.stop()
    assert run.finish()["failed"] == {}
    invariants.check(run)
    assert run.fired(killed) == 1


def test_lost_connections_of_a_tunnel_change_no_bit(bed: Make) -> None:
    """Resets of the only connection between the two ends: each is a cut link, the tunnel comes back, models are sent again."""
    plain = bed("plain", graph=graph_of("ring", 4, rounds=8))
    graph = behind_nat(plain.graph, 1)
    where = {"edges": [[1, 0], [1, 2]], "mode": "reset", "for_s": 0.3}
    cuts = [{"do": "cut", "at_round": number, **where} for number in (1, 3, 5)]
    run = bed("cut", graph=graph, insecure=False, proxy=True, script=cuts)
    last = run.finish()
    assert plain.finish()["failed"] == last["failed"] == {}
    assert sum(counters["resets"] for counters in last["counters"].values()) >= 3, "no connection was reset"
    same_models(plain.models(), run.models())
