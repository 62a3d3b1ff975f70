"""Some peers of a graph in one cluster: the commands of docs/two-clusters.md, Services for callers from outside, and refusals."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from manifest_walk import problems
from tools.pages import code_blocks
from tools.warm_parent import executed

from coordinator_free_bootstrap import make_graph, parse_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.routes import kind_of
from peer.ops.deploy.elsewhere import id_range
from peer.ops.deploy.kubernetes import Cluster, write_kubernetes

PAGE = Path(__file__).parents[3] / "docs" / "two-clusters.md"


def commands():
    """Return the commands of the page that write files, in their order."""
    lines = [line for block in code_blocks(PAGE.read_text()) for _, line in block.commands()]
    return [line for line in lines if line.startswith(("peer ", "for "))]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder in which the commands of the page ran."""
    folder = tmp_path_factory.mktemp("clusters")
    program, calls = folder / "peer", folder / "calls"
    program.write_text('#!/bin/sh\nfor word; do printf "%s\\t" "$word"; done >> calls\necho >> calls\n')
    program.chmod(0o755)
    for line in commands():  # the shell expands a line and says what it calls
        calls.write_text("")
        subprocess.run(["sh", "-ec", line], check=True, cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"})
        for call in calls.read_text().splitlines():
            done = executed(*call.rstrip("\t").split("\t"), cwd=folder)
            assert done.returncode == 0, done.stderr + done.stdout
    return folder


def documents(folder):
    return [d for path in sorted(folder.glob("*.yaml")) for d in yaml.safe_load_all(path.read_text())]


def of(found, kind):
    return [each for each in found if each["kind"] == kind]


def graph_in(found):
    return parse_graph(of(found, "ConfigMap")[0]["data"]["graph.json"])


def test_the_page_has_all_steps():
    assert [line.split()[:3] for line in commands() if line.startswith("peer ")] == [
        ["peer", "graph", "make"],
        ["peer", "graph", "check"],
        ["peer", "graph", "pin"],
        ["peer", "deploy", "kubernetes"],
        ["peer", "deploy", "kubernetes"],
    ]


def test_the_address_templates_of_all_pages_are_templates():
    """Before, {id+30400} of this page was refused."""
    found = [
        text
        for page in PAGE.parent.glob("*.md")
        for text in re.findall("--address-template\\s+'(.*?)'", page.read_text())
    ]
    assert "node.a.example:{id+30400}" in found
    for template in found:
        make_graph("ring", 3, address_template=template)


def test_both_clusters_can_run_the_manifests(written):
    for side in ("a", "b"):
        assert problems(documents(written / side)) == []
        for document in documents(written / side):
            kubernetes_validate.validate(document, "1.28", strict=True)


def test_a_service_of_a_pod_that_does_not_exist_is_found(written):
    broken = documents(written / "a")
    of(broken, "Service")[1]["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] = "fed-4"
    assert "Service fed-0-outside: the pod fed-4 does not exist" in problems(broken)


def test_each_cluster_has_the_keys_of_its_own_peers(written):
    for side, ids in (("a", range(4)), ("b", range(4, 8))):
        (secret,) = of(documents(written / side), "Secret")
        assert set(secret["data"]) == {f"peer-{i}.{kind}" for i in ids for kind in ("key", "pem")}
        (found,) = of(documents(written / side), "StatefulSet")
        assert (found["spec"].get("ordinals", {"start": 0})["start"], found["spec"]["replicas"]) == (ids[0], 4)


def test_the_two_graph_files_have_one_digest_and_the_same_routes(written):
    a, b = (graph_in(documents(written / side)) for side in ("a", "b"))
    assert a.digest == b.digest
    for one, other in a.edges:
        kind = kind_of(a, one, other)
        assert kind == kind_of(b, one, other) == ("tunnel" if (one < 4) != (other < 4) else "direct")
    assert a.node(0).address == "fed-0.fed.lab-a.svc.cluster.local:7400"
    assert b.node(0).address == "peer-0.a.example:7400"
    assert all(a.node(i) == b.node(i) for i in range(4, 8))
    assert all(len(a.node(i).pins) == 1 and a.node(i).pins == b.node(i).pins for i in range(8))


def test_only_peers_with_neighbors_outside_get_a_service(written):
    services = {each["metadata"]["name"]: each["spec"] for each in of(documents(written / "a"), "Service")}
    assert set(services) == {"fed", "fed-0-outside", "fed-3-outside"}
    assert services["fed-3-outside"]["type"] == "LoadBalancer"
    assert services["fed-3-outside"]["selector"]["statefulset.kubernetes.io/pod-name"] == "fed-3"
    assert services["fed-3-outside"]["ports"] == [{"name": "wire", "port": 7400, "targetPort": "wire"}]
    assert [each["metadata"]["name"] for each in of(documents(written / "b"), "Service")] == ["fed"]


def test_the_network_policy_opens_the_port_only_where_callers_come_from_outside(written):
    rules = {side: of(documents(written / side), "NetworkPolicy")[0]["spec"]["ingress"][0] for side in ("a", "b")}
    assert "from" not in rules["a"] and "from" in rules["b"]


def pinned(*addresses):
    """A ring of peers at addresses, with pins."""
    graph = make_graph("ring", len(addresses))
    pins = ("sha256:" + "0" * 64,)
    nodes = (replace(node, address=place, pins=pins) for node, place in zip(graph.nodes, addresses, strict=True))
    return replace(graph, nodes=tuple(nodes))


def test_node_ports_are_those_of_the_graph_file(tmp_path):
    graph = pinned("n:30400", "n:30401", "b:7400", "c:7400")
    paths = write_kubernetes(graph, tmp_path, Cluster(peers=(0, 1), expose="NodePort"))
    found = [d for path in paths if path.suffix == ".yaml" for d in yaml.safe_load_all(path.read_text())]
    assert problems(found) == []
    ports = [each["spec"]["ports"][0].get("nodePort") for each in of(found, "Service")]
    assert ports == [None, 30400, 30401]


@pytest.mark.parametrize(
    ("addresses", "peers", "words"),
    [
        (
            ("n:30400", "n:30401", "b:7400"),
            (1, 3),
            "--peers: expected ids of the graph, got 1-3. It has no peer 3.",
        ),
        (
            ("n:30400", "n:29999", "b:7400"),
            (0, 1),
            "peer 1: expected a port from 30000 to 32767 with --expose NodePort, got 29999",
        ),
        (
            ("n:30400", "n:30401", "127.0.0.1:1"),
            (0, 1),
            "peer 2, which --peers leaves out: expected an address that pods can reach, got 127.0.0.1:1",
        ),
    ],
)
def test_what_the_other_side_cannot_reach_is_refused(tmp_path, addresses, peers, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        write_kubernetes(pinned(*addresses), tmp_path, Cluster(peers=peers, expose="NodePort"))


def test_a_peer_elsewhere_without_a_pin_is_refused(tmp_path):
    graph = pinned("a:1", "b:1", "c:1")
    graph = replace(graph, nodes=(*graph.nodes[:2], replace(graph.nodes[2], pins=())))
    with pytest.raises(
        UsageError, match=r"peer 2, which --peers leaves out: expected the pin of its key, got none.*peer keygen --id 2"
    ):
        write_kubernetes(graph, tmp_path, Cluster(peers=(0, 1)))


@pytest.mark.parametrize(("text", "found"), [("4-7", (4, 7)), ("4", (4, 4))])
def test_a_range_of_ids(text, found):
    assert id_range(text) == found


@pytest.mark.parametrize("text", ["7-4", "a", "1-2-3", "-1"])
def test_a_wrong_range_of_ids_is_refused(text):
    with pytest.raises(UsageError, match=r"--peers: expected FIRST-LAST, such as 4-7, got"):
        id_range(text)
