"""The learning rate of each round stands in history and report: of peers, after a restore, and of clients of a server."""

import pytest

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.lab.algorithm_server import run_algorithm_server
from peer.lab.ifca_server import run_ifca_server
from peer.lab.simulated import simulate
from peer.view.report.report import build_report
from tests.tools.simulated import run

RATES = [0.1, 0.2, 0.1, 0.05]


def graph_of(**changes):
    small = {
        **{"rounds": 4, "model_options": {"hidden": 8}, "split_options": {"samples_per_peer": 40, "test_per_peer": 20}},
        **{"learning_rate": 0.2, "learning_rate_schedule": "step:factor=0.5,warm_up=1"},
    }
    return make_graph("complete", 3, manifest=parse_manifest(small | changes, "test"))


@pytest.mark.parametrize("algorithm", ["dfca", "pfedme", "local"])
def test_the_history_has_the_rate_of_each_round(algorithm):
    for peer in run(graph_of(algorithm=algorithm)):
        assert [row["learning_rate"] for row in peer.history] == pytest.approx(RATES)
        assert peer.final["learning_rate"] == pytest.approx(RATES[-1])


def test_a_peer_that_sits_a_round_out_has_no_rate_in_it():
    rows = [row for peer in run(graph_of(algorithm="dfedavg", participation=0.5)) for row in peer.history]
    assert {row["active"] for row in rows} == {True, False}
    assert all(("learning_rate" in row) == row["active"] for row in rows)


def test_a_restore_halves_the_rate_of_the_rounds_after_it():
    """Every round diverges, so that each has half the rate that its schedule gives it after the one before."""
    peer = run(graph_of(algorithm="local", learning_rate=1e30, diverged_restores=100, rounds=3))[0]
    first, second, third = (row["learning_rate"] for row in peer.history)
    restored = [row.get("restores") for row in peer.history]
    assert restored == [1, 2, 3], "every round diverges"
    assert [first, second, third] == pytest.approx([0.5e30, 0.5e30, 0.125e30])


def test_the_report_has_the_last_rate_of_each_peer(tmp_path):
    simulate(graph_of(), tmp_path)
    assert [row["learning_rate"] for row in build_report(tmp_path).values["peers"]] == pytest.approx([RATES[-1]] * 3)


@pytest.mark.parametrize(("server", "algorithm"), [(run_algorithm_server, "dfedavg"), (run_ifca_server, "ifca")])
def test_clients_of_a_server_have_it_too(tmp_path, server, algorithm):
    server(graph_of(algorithm=algorithm, evaluate_every=4), tmp_path)
    found = build_report(tmp_path)
    for peer in found.run.peers:
        assert [line["learning_rate"] for line in peer.round_lines] == pytest.approx(RATES)
