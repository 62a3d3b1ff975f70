"""Whom a peer waits for: as it says, else the neighbors in an earlier round; edges and endings as observers hear them."""

from dataclasses import replace

import pytest
from tools.fake_run import STATUS

from coordinator_free_bootstrap import Relay, make_graph, parse_manifest
from coordinator_free_bootstrap.graph import Graph
from peer.view.state.events import LoggedEvent
from peer.view.state.peer_status import read_status
from peer.view.state.reducer import EventLog
from peer.view.state.view import View

SAID = STATUS | {
    "stage": "exchanging", "round_index": 4, "waiting_for": [1], "owed_to": [], "suspicion_s": 5.0, "deadline_s": 80.0,
    "neighbors": {"1": "alive"}, "neighbor_rounds": {"1": 3}, "silent_s": {"1": 0.1},
}  # fmt: skip
SUSPECT = {"neighbors": {"1": "suspect"}, "silent_s": {"1": 3.5}}


def ring(**run) -> Graph:
    return replace(make_graph("ring", 4), manifest=parse_manifest({"rounds": 9} | run, "test"))


def view_of(*events: tuple[float, int, str, dict], graph: Graph | None = None) -> View:
    graph = graph or ring()
    log = EventLog(graph.ids)
    log.append(
        [
            LoggedEvent(0.5, i, data)
            for i in graph.ids
            for data in ({"kind": "start"}, {"kind": "process", "held": True})
        ]
    )
    log.append(LoggedEvent(at, peer, {"kind": kind} | data) for at, peer, kind, data in events)
    return View(log, graph)


def row(view: View, peer_id: int = 0) -> dict:
    return view.everything()["peers"][peer_id]


def rounds(*completed: int) -> list[tuple[float, int, str, dict]]:
    return [(1.0 + t, i, "round", {"round_index": t}) for i, count in enumerate(completed) for t in range(count)]


@pytest.mark.parametrize(
    ("changes", "why", "until_s"),
    [
        ({}, ["models of 1, in round 3"], 80.0),
        (SUSPECT, ["models of 1, silent for 3.5 s and marked dead after 5 s"], 1.5),
        (SUSPECT | {"deadline_s": 1.0}, ["models of 1, silent for 3.5 s and marked dead after 5 s"], 1.0),
        (SUSPECT | {"owed_to": [3]}, ["models of 1, silent for 3.5 s and marked dead after 5 s", "3 to accept our models"], 80.0),
        ({"deadline_s": None}, ["models of 1, in round 3"], None),
        (
            {"stage": "joining", "waiting_for": [1, 3], "neighbors": {"1": "left", "3": "unknown"}},
            ["peer 1 to start, now left", "peer 3 to start, now unknown"],
            80.0,
        ),
    ],
)  # fmt: skip
def test_an_answer_says_whom_a_peer_waits_for_and_until_when(changes, why, until_s):
    found = row(view_of(*rounds(4, 3, 4, 4), (9.0, 0, "status", {"status": read_status(SAID | changes)})))
    assert (found["stage"], found["why"], found["until_s"]) == ({**SAID, **changes}["stage"], why, until_s)
    after = (10.0, 0, "round", {"round_index": 4})  # the answer is about an earlier round
    assert (
        row(view_of(*rounds(4, 3, 4, 4), (9.0, 0, "status", {"status": read_status(SAID | changes)}), after))["why"]
        == []
    )


def test_without_answers_a_peer_needs_its_neighbors_in_earlier_rounds():
    found = row(view_of(*rounds(4, 3, 0, 4)))
    assert (found["waits_for"], found["why"], found["stage"]) == ([1], ["models of 1, in round 3"], "")
    assert found["until_s"] == ring().manifest.timeouts.round_deadline_s
    assert row(view_of(*rounds(4, 3, 0, 4)), 1)["why"] == ["models of 2, in round 0"]


@pytest.mark.parametrize(
    "events",
    [
        [(5.0, 0, "neighbor", {"neighbor": 1, "state": "dead"})],
        [(5.0, 1, "leave", {})],
        [(5.0, 1, "round", {"round_index": 3})],
        [(5.0, 0, "end", {"rounds_completed": 4})],
    ],
)
def test_nobody_waits_for_a_neighbor_that_is_gone_or_has_caught_up(events):
    assert row(view_of(*rounds(4, 3, 4, 4), *events))["why"] == []


def test_a_suspect_neighbor_is_waited_for_until_it_is_marked_dead():
    found = row(view_of(*rounds(4, 3, 4, 4), (5.0, 0, "neighbor", {"neighbor": 1, "state": "suspect"})))
    assert (found["why"], found["until_s"]) == (["models of 1, silent and marked dead after 5 s"], 5.0)


def test_in_async_pace_a_peer_waits_for_nobody():
    assert row(view_of(*rounds(4, 3, 4, 4), graph=ring(pace="async")))["why"] == []


def test_an_edge_is_of_the_kind_that_its_ends_say_else_of_the_graph_file():
    graph = ring()
    nodes = [replace(node, address="", dials_only=True) if node.id == 2 else node for node in graph.nodes]
    nodes[1] = replace(nodes[1], relay=Relay(bytes_per_second=1_000_000, connections=2))
    graph = replace(graph, nodes=tuple(nodes))
    view = view_of(
        (5.0, 3, "status", {"status": read_status(SAID | {"routes": {"0": "tunnel", "2": "direct"}})}), graph=graph
    )
    kinds = {(edge["a"], edge["b"]): edge["kind"] for edge in view.everything()["edges"]}
    assert kinds == {(0, 1): "direct", (1, 2): "tunnel", (0, 3): "tunnel", (2, 3): "direct"}


def test_a_peer_that_an_error_ended_has_its_exit_code():
    summary = {"summary": {"status": "diverged", "exit_code": 50, "incarnation": 7}}
    view = view_of((2.0, 0, "start", {"incarnation": 7}), (3.0, 0, "summary", summary), (3.0, 1, "summary", summary))
    assert [(row(view, i)["status"], row(view, i)["exit_code"]) for i in (0, 1)] == [
        ("diverged", 50),
        ("running", None),
    ]


def test_a_peer_that_no_observer_asks_is_alone_by_its_files():
    left = [(4.0, 0, "neighbor", {"neighbor": n, "state": "left"}) for n in (1, 3)]
    lonely = [(5.0 + t, 0, "round", {"round_index": 2 + t, "rounds_alone": 1}) for t in range(2)]
    assert (
        row(view_of(*rounds(2, 2, 2, 2), *left, *lonely))["alone"] == "no neighbor is live; 2 of 4 rounds alone so far"
    )
    back = (8.0, 0, "neighbor", {"neighbor": 1, "state": "alive"})
    for later in ([back], [(8.0, 0, "round", {"round_index": 4})], [(8.0, 0, "end", {"rounds_completed": 4})]):
        assert row(view_of(*rounds(2, 2, 2, 2), *left, *lonely, *later))["alone"] == ""
