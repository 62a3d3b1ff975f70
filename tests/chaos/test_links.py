"""Goal: slow, cut and half-open links change no result, and no healthy neighbor is marked dead.

Method: real peers behind fault proxies. Each test asserts its invariant from the histories; counters of the proxies or log
lines of failpoints prove that the fault fired. Faults: delay, cut after n bytes, lost acknowledgment, black hole, partition,
one-way partition, bandwidth limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tools import invariants
from tools.beds import Bed, Models, same_models
from tools.warm_parent import WarmParent

from coordinator_free_bootstrap import Graph, make_graph, parse_manifest

pytestmark = pytest.mark.chaos

Make = Callable[..., Bed]
Half = tuple[int, int, int]
ROUNDS = 6
QUICK = {"suspicion_s": 6.0}  # on a busy machine a healthy neighbor may be silent for seconds
HOLD = {0: "train.begin=pause@2"}  # no peer ends before peer 0, which waits for the fault


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Models]:
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), rounds=ROUNDS) as run:
        run.finish()
        return run.models()


def _total(last: dict, name: str) -> int:
    return sum(counters[name] for counters in last["counters"].values())


def _no_neighbor_was_marked_dead(run: Bed) -> None:
    """L5: no healthy, connected peer is marked dead."""
    for peer_id in run.graph.ids:
        states = [(line["neighbor"], line["state"]) for line in run.history(peer_id, "neighbor")]
        assert "dead" not in [state for _, state in states], f"peer {peer_id}: {states}"


def _both_ways(run: Bed) -> list[tuple[int, int]]:
    return [pair for a, b in run.graph.edges for pair in ((a, b), (b, a))]


@pytest.mark.parametrize(
    "toxics",
    [
        {"latency_ms": 40, "jitter_ms": 40},
        {"slice_bytes": 1500, "latency_ms": 1},
        {"bandwidth_kb_s": 400},
    ],
    ids=["latency", "slices", "bandwidth"],
)
def test_slow_links_change_no_bit_and_mark_no_neighbor_dead(
    bed: Make, undisturbed: dict[int, Models], toxics: dict[str, float]
) -> None:
    run = bed(rounds=ROUNDS, proxy=True, late=(1, 2, 3))
    run.do("slow", edges=run.graph.edges, toxics=toxics)
    run.do("join", 1, 2, 3)
    last = run.finish()
    proof = {"latency_ms": "delayed", "slice_bytes": "sliced", "bandwidth_kb_s": "throttled"}[next(iter(toxics))]
    assert all(counters[proof] > 0 for counters in last["counters"].values())
    _no_neighbor_was_marked_dead(run)
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_a_transfer_longer_than_the_suspicion_time_does_not_fail_while_bytes_arrive(bed: Make) -> None:
    """A model of 300 kB at 25 kB/s takes 12 s, more than the idle time of 10 s; frames become small."""
    suspicion_s = 5.0
    run = bed(
        rounds=1,
        model_options={"hidden": 1000},
        proxy=True,
        late=(1, 2, 3),
        timeouts={"suspicion_s": suspicion_s},
    )
    run.do("slow", edges=[(0, 1)], toxics={"bandwidth_kb_s": 25})
    run.do("join", 1, 2, 3)
    last = run.finish()
    assert last["counters"]["0->1"]["throttled"] > 0
    assert max(line["seconds"]["wait"] for line in run.history(1, "round")) > 2 * suspicion_s
    _no_neighbor_was_marked_dead(run)
    for peer_id in run.graph.ids:
        assert all(line["missing"] == [] for line in run.history(peer_id, "round"))
    invariants.completed(run)
    invariants.check(run)


SLOW = {"bandwidth_kb_s": 8}  # 64 kbit/s


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [{}, {"upload_limit": 7_000, "download_limit": 7_000}], ids=["undeclared", "declared"]
)
def test_a_link_of_64_kbit_per_s_is_learned_and_costs_no_neighbor(bed: Make, limits: dict[str, int]) -> None:
    """A model of 300 kB takes 40 s, eight default suspicion times; it lay in buffers, and the heartbeats behind it."""
    graph = slow_pair(limits, rounds=1)
    run = bed(graph=graph, proxy=True, late=(1,))
    run.do("slow", edges=graph.edges, toxics=SLOW)
    run.do("join", 1)
    last = run.finish()
    assert all(counters["throttled"] > 0 for counters in last["counters"].values())
    _no_neighbor_was_marked_dead(run)
    for peer_id in run.graph.ids:
        lines = run.history(peer_id, "round")
        assert [len(line["folded"]) for line in lines] == [1] and all(line["missing"] == [] for line in lines)
    invariants.completed(run)
    invariants.check(run)


@pytest.mark.slow
def test_a_link_too_slow_for_the_round_deadline_is_named_with_its_rate(bed: Make) -> None:
    graph = slow_pair({}, rounds=1, timeouts={"round_deadline_s": 15})
    run = bed(graph=graph, proxy=True, late=(1,))
    run.do("slow", edges=graph.edges, toxics=SLOW)
    run.do("join", 1)
    last = run.finish()
    assert all(counters["throttled"] > 0 for counters in last["counters"].values())
    _no_neighbor_was_marked_dead(run)
    assert any("bytes/s, at which" in run.log(p) and "round_deadline_s is 15: raise it" in run.log(p) for p in (0, 1))


def slow_pair(limits: dict[str, int], **run: Any) -> Graph:
    """Return two peers with a model of 300 kB and the default time-outs; peer 1 has limits."""
    graph = make_graph("complete", 2, seed=1)
    nodes = (graph.nodes[0], replace(graph.nodes[1], **limits))
    return replace(graph, nodes=nodes, manifest=parse_manifest({"model_options": {"hidden": 1000}, **run}, "test"))


@pytest.mark.parametrize("count", [0, 30, 40_000, 78_500])
def test_a_connection_cut_at_any_byte_changes_no_bit(bed: Make, undisturbed: dict[int, Models], count: int) -> None:
    run = bed(rounds=ROUNDS, proxy=True, failpoints=HOLD)
    run.until(lambda: run.fired(0), "peer 0 is paused")
    run.do("slow", edges=run.graph.edges, toxics={"cut_after_bytes": count})
    run.do("continue", 0)
    last = run.finish()
    assert _total(last, "cuts") >= 4
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_after_a_lost_acknowledgment_the_model_is_sent_again_and_folded_once(
    bed: Make, undisturbed: dict[int, Models]
) -> None:
    """Peer 1 has read a whole model when it is paused and its link is reset: it folds the model, and its reply is lost.

    Peer 2, paused before it trains, keeps peer 1 in that round: a neighbor in a later round would need no second copy.
    """
    run = bed(rounds=ROUNDS, proxy=True, failpoints={1: "receive.end=pause@5", 2: "train.begin=pause@3"})
    run.until(lambda: run.fired(1) and run.fired(2), "peer 1 has read the third model of 0, and not answered it")
    run.do("cut", edges=[(0, 1)], mode="reset")
    run.do("heal")
    run.do("continue", 1)
    run.until_round(3, 0)  # peer 0 needs an answer of peer 1 for it
    run.do("continue", 2)
    last = run.finish()
    assert last["counters"]["0->1"]["resets"]
    assert run.last_rounds(1)[2]["duplicates_dropped"], "the sender got its answer: the acknowledgment was not lost"
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


def test_a_black_hole_is_detected_and_delays_a_peer_once(bed: Make) -> None:
    run = bed(rounds=100_000, proxy=True, timeouts=QUICK)
    run.until_round(4)
    run.do("cut", edges=[(0, 1)])
    run.until(lambda: run.saw(0, 1, "dead") and run.saw(1, 0, "dead"), "each marks the other dead")
    run.until_round(25 + max(map(run.rounds, run.graph.ids)))
    run.stop()
    last = run.finish()
    assert last["counters"]["0->1"]["held"] > 0 and last["counters"]["1->0"]["held"] > 0
    for one, other in ((0, 1), (1, 0)):
        invariants.marked_dead_once(run, one, other)
    invariants.check(run)


def test_peers_reconnect_after_a_reset(bed: Make, undisturbed: dict[int, Models]) -> None:
    run = bed(rounds=ROUNDS, proxy=True, failpoints=HOLD)
    run.until(lambda: run.fired(0), "peer 0 is paused")
    run.do("cut", edges=[(0, 1), (2, 3)], mode="reset")
    run.do("continue", 0)
    run.until(lambda: _total(run.state(), "refused"), "a peer dials again")
    run.do("heal")
    last = run.finish()
    assert _total(last, "resets") >= 2 and _total(last, "refused") >= 1
    invariants.completed(run)
    invariants.check(run)
    same_models(undisturbed, run.models())


def _gap(run: Bed, halves: tuple[Half, Half]) -> float:
    """Return the largest distance over slots between the mean models of the two halves."""
    left, right = ([run.persisted(p) for p in half] for half in halves)
    slots = [name for name in left[0] if name.startswith("slot/")]
    means = ((np.mean([each[slot] for each in half], axis=0) for half in (left, right)) for slot in slots)
    return max(float(np.linalg.norm(one - other)) for one, other in means)


def test_both_sides_of_a_partition_continue_and_rejoin(bed: Make) -> None:
    halves: tuple[Half, Half] = ((0, 1, 2), (3, 4, 5))
    run = bed(rounds=80, peers=6, kind="complete", proxy=True, timeouts=QUICK)
    across = [pair for a in halves[0] for b in halves[1] for pair in ((a, b), (b, a))]
    run.until_round(4)
    run.do("partition", groups=halves)
    run.until(lambda: all(run.saw(a, b, "dead") for a, b in across), "the halves mark each other dead")
    cut_at = {p: run.rounds(p) for p in run.graph.ids}
    run.until(lambda: all(run.rounds(p) > cut_at[p] + 5 for p in cut_at), "both halves continue")
    gap = _gap(run, halves)
    healed_at = {p: run.rounds(p) for p in run.graph.ids}
    run.do("heal")
    last = run.finish()
    assert all(last["counters"][f"{a}->{b}"]["held"] > 0 for a, b in across)
    invariants.completed(run)
    invariants.check(run)
    for half in halves:
        for peer_id in half:
            folded = {r: {sender for sender, *_ in line["folded"]} for r, line in run.last_rounds(peer_id).items()}
            for round_index in range(cut_at[peer_id] + 1, healed_at[peer_id]):
                assert folded[round_index] == {*half} - {peer_id}, f"peer {peer_id} in round {round_index} of the cut"
            assert folded[79] == set(run.graph.neighbors(peer_id))
    assert _gap(run, halves) < gap / 10  # L2


def test_in_a_one_way_partition_each_side_marks_the_other_dead_once(bed: Make) -> None:
    """Bytes from 0 to 1 stop, those from 1 to 0 pass: each marks the other dead once, and alive again after the heal."""
    run = bed(rounds=100_000, proxy=True, timeouts=QUICK)
    run.until_round(4)
    run.do("one_way", edges=[(0, 1)])
    for one, other in ((0, 1), (1, 0)):
        run.until(lambda a=one, b=other: run.saw(a, b, "dead"), "both mark the other dead")
    before = run.rounds(2)
    run.until(lambda: run.rounds(2) >= before + 25, "the others continue")
    for one, other in ((0, 1), (1, 0)):
        assert _states(run, one, other)[-1] == "dead"
        invariants.marked_dead_once(run, one, other)
    run.do("heal")
    for one, other in ((0, 1), (1, 0)):
        run.until(lambda a=one, b=other: _states(run, a, b)[-1] == "alive", "each is alive again for the other")
    run.stop()
    assert run.finish()["counters"]["0->1"]["held"] > 0
    for one, other in ((0, 1), (1, 0)):
        states = _states(run, one, other)
        assert states[states.index("dead") + 1] == "alive"
        invariants.marked_dead_once(run, one, other)
    invariants.check(run)


def _states(run: Bed, peer_id: int, neighbor: int) -> list[str]:
    """Return the states of a neighbor for a peer, in their order."""
    return [line["state"] for line in run.history(peer_id, "neighbor") if line["neighbor"] == neighbor]
