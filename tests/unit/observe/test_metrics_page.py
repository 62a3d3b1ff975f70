"""The page /metrics of a process: one path, from start to end, with the state of the run; the alerts that use it."""

import urllib.error
import urllib.request

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tools.fake_run import round_fields

from coordinator_free_bootstrap.errors import ConfigError
from peer.observe.metrics import STATES_SAID, PeerMetrics
from peer.observe.metrics_http import serve
from peer.observe.metrics_page import MetricsPage, metrics_page
from peer.ops.deploy.text import verbatim


@pytest.fixture
def page():
    """A page and a function that asks it: (status, body)."""
    found = MetricsPage()
    server, thread = serve(found.registry, 0, "127.0.0.1")

    def ask(path="/metrics", method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield found, ask
    server.shutdown()
    server.server_close()
    thread.join()


def samples(text):
    """Return the samples of a page: (name, label values) -> value."""
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_only_metrics_are_found(page):
    """Before, every path answered 200 with the metrics."""
    _, ask = page
    assert ask()[0] == 200 and ask("/metrics?name[]=peer_run_state")[0] == 200
    for path in ("/", "/metrics/", "/favicon.ico", "/status", "/..%2fmetrics", "/METRICS"):
        assert ask(path) == (404, "expected /metrics, got another path\n"), path
    assert [ask(method=method)[0] for method in ("POST", "PUT", "DELETE")] == [405] * 3
    assert ask(method="HEAD") == (200, "")


def test_the_state_of_the_run_is_there_before_the_task_is_known_and_after_the_end(page):
    found, ask = page
    states = {("peer_run_state", (state,)): float(state == "starting") for state in STATES_SAID}
    assert samples(ask()[1]).items() >= states.items()
    peer = found.show(lambda: PeerMetrics(3))
    peer.plan(60, 2e9, 1.9e9, revision=3)
    peer.observe_round(round_fields(0, 1))
    found.set_state("running")
    assert found.show(lambda: PeerMetrics(3)) is peer, "in the next window of work the counters continue"
    found.set_state("completed")
    shown = samples(ask()[1])
    assert shown["peer_run_state", ("completed",)] == 1 and shown["peer_run_state", ("running",)] == 0
    assert shown["peer_revision", ()] == 3
    assert shown["peer_rounds_planned", ()] == 60 and shown["peer_rounds_completed_total", ()] == 1
    assert shown["peer_certificate_end_timestamp_seconds", ("own",)] == 2e9
    assert shown["peer_certificate_end_timestamp_seconds", ("neighbors",)] == 1.9e9
    assert shown["process_resident_memory_bytes", ()] > 1e6
    with pytest.raises(ValueError, match="nonsense"):
        found.set_state("nonsense")


def test_a_port_in_use_is_one_sentence(page):
    found, _ = page
    server, thread = serve(found.registry, 0, "127.0.0.1")
    port = server.server_port
    with (
        pytest.raises(
            ConfigError, match=rf"--metrics: expected a free port .* 127\.0\.0\.1:{port}: the address is in use"
        ),
        metrics_page(port),
    ):
        pass
    server.shutdown()
    server.server_close()
    thread.join()


def test_no_alert_fires_for_a_peer_that_has_finished():
    """Before, `PeerUnreachable`, `PeerIsolated` and `PeerStalled` fired for each peer that had completed its run."""
    rules = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(verbatim("alerts.yml"))["groups"][0]["rules"]}
    assert (
        'unless on (instance) last_over_time(peer_run_state{state=~"completed|left"}[7d]) == 1'
        in rules["PeerUnreachable"]
    )
    for alert in ("PeerIsolated", "PeerStalled"):
        assert rules[alert].endswith('and on (instance) peer_run_state{state="running"} == 1')
