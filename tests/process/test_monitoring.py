"""promtool checks our Prometheus files, and a Prometheus server scrapes running peers."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.packages import unpacked
from tools.running import on_loopback, running, running_peer, until

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from peer.bed.testbed.ports import free_ports
from peer.ops.deploy.keys import create_keys
from peer.ops.deploy.text import verbatim

pytestmark = [pytest.mark.process, pytest.mark.slow]

PEERS = 3


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return the folder of prometheus and promtool: the installed ones, or those of Debian's package, unpacked."""
    installed = shutil.which("prometheus")
    if installed and shutil.which("promtool"):
        return Path(installed).parent
    return unpacked("prometheus", tmp_path_factory.mktemp("prometheus"), "prometheus") / "usr" / "bin"


def promtool(programs, *arguments):
    return subprocess.run([programs / "promtool", "check", *arguments], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_promtool_accepts_configuration_and_rules(programs, arguments, tmp_path):
    kind, name = arguments
    for each in ("prometheus.yml", "alerts.yml"):  # the configuration names the rules
        (tmp_path / each).write_text(verbatim(each))
    (tmp_path / "peers.json").write_text("[]")
    found = promtool(programs, kind, tmp_path / name)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "SUCCESS" in found.stdout
    assert "warning" not in (found.stdout + found.stderr).lower()


def test_promtool_refuses_a_wrong_rule(programs, tmp_path):
    rules = tmp_path / "alerts.yml"
    rules.write_text(verbatim("alerts.yml").replace("sum by (instance, code) (", "sum by instance ("))
    assert promtool(programs, "rules", rules).returncode != 0


@pytest.fixture(scope="module")
def ask(programs, tmp_path_factory):
    """Return a function that queries a Prometheus server; it scrapes three running peers with our configuration and rules."""
    home, ports = tmp_path_factory.mktemp("scraped"), free_ports(2 * PEERS + 1)
    manifest = parse_manifest({"rounds": 100_000, "options": {"warmup_rounds": 4}}, "test")
    graph = on_loopback(make_graph("complete", PEERS, manifest=manifest), ports[:PEERS])
    save_graph(create_keys(graph, home / "keys"), home / "graph.json")
    targets = [{"targets": [f"127.0.0.1:{ports[PEERS + i]}"], "labels": {"peer_id": str(i)}} for i in range(PEERS)]
    (home / "peers.json").write_text(json.dumps(targets))
    (home / "alerts.yml").write_text(verbatim("alerts.yml"))
    (home / "prometheus.yml").write_text(verbatim("prometheus.yml").replace("5s", "1s"))
    with ExitStack() as stack:
        for i in range(PEERS):
            place = ("--certs", home / f"keys/peer-{i}", "--metrics", ports[PEERS + i])
            stack.enter_context(running_peer(i, home, *place))
        options = {"config.file": "prometheus.yml", "storage.tsdb.path": "tsdb"}
        server = [programs / "prometheus", *(f"--{name}={home / value}" for name, value in options.items())]
        address = f"127.0.0.1:{ports[-1]}"
        stack.enter_context(running(*server, f"--web.listen-address={address}", log=home / "prometheus.log"))
        yield lambda path, **query: answer(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}")


def answer(url):
    """Return the data of an API call; None while Prometheus does not answer yet, or if it refuses."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return json.load(reply)["data"]
    except OSError:
        return None


def values(ask, expression):
    data = ask("query", query=expression)
    return {row["metric"]["peer_id"]: float(row["value"][1]) for row in data["result"]} if data else {}


def test_prometheus_scrapes_running_peers(ask):
    all_peers = {str(i) for i in range(PEERS)}
    for condition in ("up == 1", "peer_rounds_completed_total > 2", 'peer_neighbors{state="alive"} == 2'):
        until(lambda expression=condition: values(ask, expression).keys() == all_peers, f"scraped: {condition}")
    assert set(values(ask, "sum by (peer_id) (peer_refusals_total)").values()) == {0.0}
    assert all(0 < accuracy <= 1 for accuracy in values(ask, "peer_metric").values())
    assert all(count > 0 for count in values(ask, "peer_wire_bytes_sent_total").values())


def test_dashboard_and_rules_name_existing_metrics(ask):
    until(lambda: len(values(ask, "peer_rounds_completed_total > 5")) == PEERS, "scraped: six rounds")
    names = set(ask("label/__name__/values"))
    dashboard = json.loads(verbatim("dashboard.json"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert (len(panels), len(rules)) == (8, 8)
    for expression in (*panels, *(rule["query"] for rule in rules)):
        assert ask("query", query=expression) is not None, f"Prometheus refuses {expression}"
        assert any(name in expression for name in names), expression
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
