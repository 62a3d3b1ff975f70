"""Prometheus metrics: updated from history records, exported from the start, listed in docs/metrics.md."""

import urllib.request

import pytest
from prometheus_client import generate_latest
from tools.fake_run import round_fields

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.metric import Metric
from peer.observe.metrics import PeerMetrics

MAE = Metric("mae", higher_is_better=False, share=False)


def value(metrics: PeerMetrics, name: str, **labels) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_rounds_are_counted():
    metrics = PeerMetrics(3)
    for round_index in (2, 4):
        metrics.observe_round({**round_fields(2, round_index), "incarnation": 7 << 32 | 5})
    assert value(metrics, "peer_rounds_completed_total") == 2 and value(metrics, "peer_round_index") == 5
    assert value(metrics, "peer_models_sent_total") == 4 and value(metrics, "peer_duplicates_dropped_total") == 1
    assert value(metrics, "peer_phase_seconds_total", phase="train") == pytest.approx(0.8)
    assert value(metrics, "peer_missing_deliveries_total") == 1 and value(metrics, "peer_restart_count") == 5
    assert metrics.registry.get_sample_value("peer_metric", {"name": "accuracy"}) == round_fields(2, 4)["metric_value"]


def test_a_round_without_evaluation_keeps_the_last_accuracy():
    metrics = PeerMetrics(3)
    metrics.observe_round(round_fields(0, 1))
    metrics.observe_round({"round_index": 2, "metric_value": None})
    assert metrics.registry.get_sample_value("peer_metric", {"name": "accuracy"}) == round_fields(0, 1)["metric_value"]
    assert value(metrics, "peer_round_index") == 3


def test_another_metric_is_exported_by_its_name_and_not_as_an_accuracy():
    metrics = PeerMetrics(3, metric=MAE)
    metrics.observe_round(round_fields(0, 1))
    assert metrics.registry.get_sample_value("peer_metric", {"name": "mae"}) == round_fields(0, 1)["metric_value"]
    assert "accuracy" not in generate_latest(metrics.registry).decode()


def test_further_metrics_are_exported_by_name_beside_the_accuracy():
    metrics = PeerMetrics(3, more=(MAE, Metric("f1")))
    metrics.observe_round(round_fields(0, 1) | {"metrics": {"mae": 2.5, "f1": None}})
    assert metrics.registry.get_sample_value("peer_metric", {"name": "accuracy"}) == round_fields(0, 1)["metric_value"]
    found = [metrics.registry.get_sample_value("peer_metric", {"name": name}) for name in ("mae", "f1")]
    assert found == [2.5, 0.0]


def test_neighbors_refusals_and_checkpoints():
    metrics = PeerMetrics(3)
    metrics.observe_neighbor_states({1: "alive", 2: "alive", 4: "dead"})
    metrics.observe_neighbor_states({1: "alive", 2: "suspect", 4: "dead"})
    assert [value(metrics, "peer_neighbors", state=s) for s in ("alive", "suspect", "dead", "left")] == [1, 1, 1, 0]
    metrics.observe_refusal(RefusalCode.NON_FINITE)
    assert value(metrics, "peer_refusals_total", code="non_finite") == 1
    assert value(metrics, "peer_refusals_total", code="norm_bound") == 0
    with pytest.raises(ValueError, match="nonsense"):
        metrics.observe_refusal("nonsense")
    metrics.observe_checkpoint(written=False)
    metrics.observe_checkpoint(written=True)
    assert value(metrics, "peer_checkpoints_total") == value(metrics, "peer_checkpoint_failures_total") == 1


def test_metrics_are_served_over_http_from_a_registry_of_their_own():
    metrics, other = PeerMetrics(3, {"task": "digits"}), PeerMetrics(4)
    metrics.observe_round(round_fields(0, 1))
    server, thread = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
        body = answer.read().decode()
    server.shutdown()
    server.server_close()
    thread.join(10)
    assert 'peer_info{peer_id="3",task="digits"} 1.0' in body and "peer_rounds_completed_total 1.0" in body
    assert value(other, "peer_rounds_completed_total") == 0
