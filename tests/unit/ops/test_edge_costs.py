"""What a round costs over measured edges, and the sentences of the checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.ops.doctor.edge_costs import cost_check, edge_check, round_cost
from peer.ops.doctor.edge_tests import EdgeTest

GRAPH = make_graph("complete", 3, manifest=parse_manifest({"timeouts": {"round_deadline_s": 100.0}}, "test"))
FAST = EdgeTest(1, "direct", "", "", 0.010, 2e6, 4e6, 6.0)
SLOW = EdgeTest(2, "via peer 1", "", "", 0.100, 1e6, 4e6, 8.0)
DEAD = EdgeTest(2, "direct", "connection refused", "unknown, since it does not answer")


def test_cost_is_that_of_the_slower_direction_and_of_the_slowest_round() -> None:
    cost = round_cost([FAST, SLOW], GRAPH, 0, 2_000_000)
    assert cost is not None
    assert (cost.sent_bytes, cost.transfer_s, cost.round_s) == (4_000_000, 3.0, 8.0)
    assert cost.day_bytes == pytest.approx(2 * 4e6 * 86_400 / 8.0)


def test_cost_on_one_edge_is_the_mean_of_a_cycle() -> None:
    one = replace(GRAPH, manifest=parse_manifest({"edges": "one"}, "test"))
    every, cost = round_cost([FAST, SLOW], GRAPH, 0, 2_000_000), round_cost([FAST, SLOW], one, 0, 2_000_000)
    assert every is not None and cost is not None and len(one.matchings) > 1
    assert cost.sent_bytes == round(every.sent_bytes / len(one.matchings))
    assert cost.transfer_s == pytest.approx(every.transfer_s / len(one.matchings))


def test_a_day_is_told_only_of_rounds_that_a_neighbor_has_timed_and_of_a_run_that_lasts_one() -> None:
    """Before, transfers alone counted as whole rounds: terabytes a day for a run that ends within a minute."""
    untimed = round_cost([replace(FAST, round_s=None)], GRAPH, 0, 2_000_000)
    assert untimed is not None and untimed.round_s is None and untimed.day_bytes is None
    check = cost_check(untimed, GRAPH, 0)
    assert check.level == "ok" and "a day" not in check.found
    assert "240 MB for the 60 rounds of the run" in check.found
    short = round_cost([replace(FAST, round_s=0.5)], GRAPH, 0, 2_000_000)
    assert "a day" not in cost_check(short, GRAPH, 0).found
    long = replace(GRAPH, manifest=parse_manifest({"rounds": 100_000}, "test"))
    found = cost_check(round_cost([FAST], long, 0, 2_000_000), long, 0).found
    assert "400000 MB for the 100000 rounds of the run, 57600 MB a day at 6.0 s a round" in found


def test_an_edge_without_a_measurement_counts_as_the_others() -> None:
    cost = round_cost([FAST, DEAD], GRAPH, 0, 2_000_000)
    assert cost is not None and cost.transfer_s == 2.0 and cost.round_s == 6.0
    assert round_cost([DEAD], GRAPH, 0, 2_000_000) is None


def test_a_declared_limit_is_part_of_the_cost() -> None:
    limited = replace(GRAPH, nodes=(replace(GRAPH.nodes[0], upload_limit=50_000), *GRAPH.nodes[1:]))
    cost = round_cost([FAST, SLOW], limited, 0, 5_000_000)
    assert cost is not None and cost.transfer_s == cost.round_s == 200.0
    check = cost_check(cost, limited, 0)
    assert check.level == "warn" and "round_deadline_s" in check.fix and "200.0 s of transfers" in check.found


def test_checks_say_how_a_neighbor_is_reached_and_what_to_do() -> None:
    assert edge_check(SLOW).level == "ok"
    assert edge_check(SLOW).found.startswith(
        "via peer 1; out: answers, 100.0 ms round trip, up 1.00 MB/s, down 4.00 MB/s; in: it"
    )
    dead = edge_check(DEAD)
    assert dead.level == "warn" and "connection refused" in dead.found and "start that peer" in dead.fix
    deaf = edge_check(replace(FAST, incoming="it has not called in 5.5 s"))
    assert deaf.level == "warn" and "in: it has not called" in deaf.found and "own port" in deaf.fix
    assert cost_check(None, GRAPH, 0).level == "warn"
