"""Hellos while a federation changes: peers one revision apart exchange, others learn why they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator_free_bootstrap import Graph, canonical_json, check_hello, digest, dump_graph, make_graph, parse_graph
from coordinator_free_bootstrap.errors import GraphError, RefusalCode
from coordinator_free_bootstrap.graph import REMOVED_MAX, REVISIONS_MAX, Removed
from coordinator_free_bootstrap.handshake import REVISIONS_TOLD, seen_from_here, told
from coordinator_free_bootstrap.revision import changes, next_graph, require_next, with_changes
from peer.core.messages import Hello, Phase
from tests.simulation.options import manifest

FIRST = make_graph("complete", 4, manifest=manifest(rounds=9))


def changed(before: Graph, *, run: dict[str, Any] | None = None, **how: Any) -> Graph:
    now = with_changes(before, manifest=before.manifest.model_copy(update=run or {}), **how)
    return next_graph(before, now)


SECOND = changed(FIRST, run={"learning_rate": 0.5}, remove_edges=[(0, 1)])
THIRD = changed(SECOND, run={"rounds": 12}, remove=[3])


def hello(sender: int, graph: Graph) -> Hello:
    run = graph.manifest
    return Hello(
        sender=sender,
        incarnation=1,
        wire_version=5,
        manifest_digest=digest(run),
        graph_digest=graph.digest,
        schema_digest="",
        manifest=canonical_json(run),
        continues=told(graph),
        round_index=0,
        phase=Phase.RUNNING,
    )


def verdict(of: tuple[int, Graph], about: tuple[int, Graph], *, one_graph: bool = False) -> RefusalCode | None:
    """Return the code with which one peer refuses another one, each with its graph file."""
    (me, mine), (other, theirs) = of, about
    removed = {each.id for each in mine.removed}
    refusal = check_hello(
        hello(me, mine), hello(other, theirs), neighbors=mine.neighbors(me), removed=removed, one_graph=one_graph
    )
    return refusal and refusal.code


def test_one_revision_apart_both_ends_accept_an_edge_of_both():
    for one, other in ((FIRST, SECOND), (SECOND, FIRST), (SECOND, SECOND), (SECOND, THIRD)):
        assert verdict((0, one), (2, other)) is None


def test_two_revisions_apart_the_older_is_behind_and_the_newer_ahead():
    assert verdict((0, THIRD), (2, FIRST)) is RefusalCode.REVISION_BEHIND
    assert verdict((2, FIRST), (0, THIRD)) is RefusalCode.REVISION_AHEAD
    refusal = check_hello(hello(0, THIRD), hello(2, FIRST), neighbors=(2,))
    assert refusal is not None
    for part in (
        FIRST.run_digest,
        THIRD.run_digest,
        "2 revisions before",
        "Copy the later file to peer 2",
        "kill -HUP",
    ):
        assert part in refusal.reason
    assert seen_from_here(refusal).code is RefusalCode.REVISION_AHEAD, "a neighbor that is behind excludes only itself"


def test_an_edge_of_one_file_waits_for_the_other_end():
    assert verdict((0, SECOND), (1, FIRST)) is RefusalCode.REVISION_BEHIND
    assert verdict((1, FIRST), (0, SECOND)) is None, "it has the edge; the other end refuses"
    joined = changed(SECOND, add_edges=[(0, 1)])
    assert verdict((0, SECOND), (1, joined)) is RefusalCode.REVISION_AHEAD


def test_a_former_peer_is_refused_as_removed_by_its_neighbors_and_others():
    assert THIRD.removed == (Removed(3),)
    for by in (0, 1, 2):
        assert verdict((by, THIRD), (3, SECOND)) is RefusalCode.REMOVED
    assert verdict((0, SECOND), (3, SECOND)) is None


@pytest.mark.parametrize(
    ("run", "key"),
    [({"participation": 0.5}, "participation"), ({"dynamic_edges": 0.2}, "dynamic_edges"), ({"pace": "async"}, "pace")],
)
def test_keys_of_both_ends_of_an_edge_must_be_equal_at_both(run, key):
    now = changed(FIRST, run=run)
    refusal = check_hello(hello(0, now), hello(2, FIRST), neighbors=(2,))
    assert refusal is not None and refusal.code is RefusalCode.REVISION_BEHIND
    assert f"run.{key} must be equal at both ends" in refusal.reason
    assert any(f"since run.{key} must be equal" in said for said in changes(FIRST, now))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"algorithm": "local"}'])
def test_a_manifest_that_is_none_and_one_of_another_run_are_refused_whatever_their_chain_claims(text):
    theirs = replace(hello(2, SECOND), manifest=text)
    refusal = check_hello(hello(0, FIRST), theirs, neighbors=(2,))
    assert refusal is not None and refusal.code is RefusalCode.REVISION_AHEAD
    assert "must be equal at both ends" in refusal.reason


def test_algorithms_of_the_whole_graph_wait_for_the_same_graph():
    assert verdict((0, SECOND), (2, FIRST), one_graph=True) is RefusalCode.REVISION_BEHIND
    other_run = changed(FIRST, run={"learning_rate": 0.5})
    assert verdict((0, other_run), (2, FIRST), one_graph=True) is None


def test_going_back_to_an_earlier_file_is_a_later_revision():
    back = next_graph(SECOND, replace(FIRST, continues=()))
    assert back.run_digest == FIRST.run_digest
    assert verdict((0, back), (2, SECOND)) is None and verdict((2, SECOND), (0, back)) is None
    require_next(SECOND, back)


def test_no_file_of_another_run_is_accepted_and_no_chain_grows_without_end():
    other = make_graph("complete", 4, manifest=manifest(rounds=10))
    assert verdict((0, FIRST), (2, other)) is RefusalCode.MANIFEST_MISMATCH
    many = replace(FIRST, continues=tuple(f"{i:064x}" for i in range(REVISIONS_MAX)))
    assert len(changed(many, run={"rounds": 10}).continues) == REVISIONS_MAX
    assert len(told(many)) == REVISIONS_TOLD
    with pytest.raises(GraphError, match=f"continues: expected at most {REVISIONS_MAX} files"):
        replace(FIRST, continues=("0" * 64,) * (REVISIONS_MAX + 1))


def test_a_running_peer_takes_later_files_only():
    require_next(FIRST, SECOND), require_next(FIRST, THIRD), require_next(FIRST, FIRST)
    with pytest.raises(
        GraphError, match=f"continues the present one, {SECOND.run_digest}, got {FIRST.run_digest}, an earlier one"
    ):
        require_next(SECOND, FIRST)
    with pytest.raises(GraphError, match=r"which does not name it\. Make it with peer graph next"):
        require_next(FIRST, make_graph("ring", 4, manifest=FIRST.manifest))


def test_the_file_keeps_the_round_of_the_change_and_former_peers():
    pinned = replace(FIRST, nodes=tuple(replace(n, pins=(f"sha256:{n.id:064x}",)) for n in FIRST.nodes))
    now = changed(pinned, remove=[3], from_round=5)
    assert now.removed == (Removed(3, pinned.node(3).pins),)
    assert parse_graph(dump_graph(now)) == now
    assert "a running peer that has it before changes with round 5" in list(changes(pinned, now))
    again = changed(now, add=[(3, "127.0.0.1:9")], add_edges=[(0, 3)])
    assert (again.removed, again.from_round) == ((), 0), (
        "a new peer takes the id; the round was that of the change before"
    )


def test_wrong_revisions_name_the_field():
    for wrong, match in (
        ({"from_round": 9}, "from_round: expected a round of the run, 0 to 8, got 9"),
        ({"from_round": -1}, "from_round: expected a round of the run"),
        ({"removed": (Removed(2),)}, "removed: expected peers that are no nodes, each once, got 2: a node has this id"),
        ({"removed": (Removed(7), Removed(7))}, "got 7: it is there 2 times"),
        ({"removed": (Removed(7, ("sha256:x",)),)}, "removed: peer 7: pins: expected sha256:"),
        ({"removed": tuple(Removed(10 + i) for i in range(REMOVED_MAX + 1))}, f"at most {REMOVED_MAX} peers"),
    ):
        with pytest.raises(GraphError, match=match):
            replace(FIRST, **wrong)
