"""The growth benchmark measures what it says, at small sizes."""

import pytest
from growth import (
    COSTS,
    KINDS,
    Averages,
    averaging_graph,
    consensus_distance,
    function_calls,
    graph_of,
    in_one_process,
    plot,
    rounds_measured,
    slopes,
    starts,
    table,
)
from stub_learner import StubLearner

from coordinator_free_bootstrap.mixing import rounds_to_agree, spectral_gap
from peer.host import build_host
from peer.lab.network import VirtualNetwork


@pytest.mark.parametrize(("tensors", "bytes_sent"), [(True, 4 * 4 * 11), (False, 4 * 4)])
def test_a_run_in_one_process_is_measured(tensors, bytes_sent):
    found = in_one_process(12, tensors=tensors)
    assert found["messages"] == 4  # degree 4: one model to each neighbor
    assert found["bytes"] == bytes_sent
    assert found["death"] == pytest.approx(1, abs=0.3)  # suspicion times, on the virtual clock
    assert min(found["start_ms"], found["round_ms"]) > 0


def test_a_peer_of_many_makes_as_many_function_calls_as_one_of_few():
    few, many = (function_calls(graph_of(peers, 3), tensors=False) / peers for peers in (20, 100))
    assert many == pytest.approx(few, rel=0.02)


def measurements(exponent):
    return [
        {"backend": "protocol", "peers": n, "load": 1.0} | {k: 7.0 * n**exponent for k in COSTS} for n in (10, 1000)
    ]


def test_the_table_has_the_slope_of_each_cost():
    assert slopes(measurements(0.5)) == pytest.approx(dict.fromkeys(COSTS, 0.5))
    assert slopes(measurements(0.5)[:1]) == {}
    rows = table(measurements(0.0))
    assert [row[:2] for row in rows] == [["protocol", "10"], ["protocol", "1000"], ["protocol", "slope"]]
    assert float(rows[-1][3]) == pytest.approx(0, abs=1e-9)


def test_the_plot_is_drawn(tmp_path):
    plot(measurements(0.1), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["small-world", "erdos-renyi"])
def test_averages_of_all_peers_at_once_are_the_bits_of_the_simulated_backend(kind):
    rounds = 4
    graph = averaging_graph(kind, 16, rounds)
    values = starts(graph)
    network = VirtualNetwork()
    for peer in graph.ids:
        network.add(build_host(peer, graph, StubLearner(values[peer].tolist()), 1, clock=lambda: 0.0))
    network.run()
    models, averages = values, Averages(graph)
    for _ in range(rounds):
        models = averages.round(models)
    for peer, simulated in network.peers.items():
        assert simulated.status == "completed"
        assert simulated.host.workspace.models.model(0).tolist() == models[peer].tolist()
    assert (consensus_distance(models) < 0.9 * consensus_distance(values)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_peers_agree_within_the_predicted_rounds(kind):
    graph = averaging_graph(kind, 16)
    predicted = rounds_to_agree(spectral_gap(graph))
    assert predicted is not None
    measured = rounds_measured(graph)
    assert all(rounds is not None and predicted / 4 <= rounds <= predicted for rounds in measured)
    assert rounds_measured(graph, rounds_max=1) == [None, None]
