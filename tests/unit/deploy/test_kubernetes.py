"""`peer deploy kubernetes`: manifests that the API schemas accept, and each peer's own key.

The package kubernetes-validate has the JSON schemas of Kubernetes' OpenAPI documents; the strict ones refuse unknown keys.
"""

import base64
import json
import stat

import kubernetes_validate
import pytest
import yaml

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph_file import parse_graph
from peer.deploy.kubernetes import Cluster, write_kubernetes
from peer.identity.files import KeyFiles, load_key_pair

OLDEST, NEWEST = "1.28", "1.34"


def manifests(out, cluster, graph=None):
    paths = write_kubernetes(graph or make_graph("ring", 3), out, cluster)
    return [document for path in paths for document in yaml.safe_load_all(path.read_text())]


def of_kind(documents, kind):
    return next(document for document in documents if document["kind"] == kind)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "cluster", [Cluster(), Cluster(gpus=1, memory="8Gi", image="registry.example/peer:1@sha256:ab")]
)
def test_the_official_schemas_accept_every_manifest(tmp_path, version, cluster):
    documents = manifests(tmp_path, cluster)
    kinds = [document["kind"] for document in documents]
    assert kinds == [
        "Namespace",
        "ConfigMap",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "StatefulSet",
        "Secret",
    ]
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_refuse_a_wrong_manifest(tmp_path):
    broken = of_kind(manifests(tmp_path, Cluster()), "StatefulSet")
    broken["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def test_the_graph_has_the_pods_addresses_and_pins_the_keys_of_the_secret(tmp_path):
    documents = manifests(tmp_path, Cluster(name="fed", namespace="lab"))
    graph = parse_graph(of_kind(documents, "ConfigMap")["data"]["graph.json"])
    secret = of_kind(documents, "Secret")["data"]
    for peer_id in range(3):
        assert graph.node(peer_id).address == f"fed-{peer_id}.fed.lab.svc.cluster.local:7400"
        folder = tmp_path / f"mounted-{peer_id}"
        folder.mkdir()
        for kind in ("key", "pem"):
            path = folder / f"peer-{peer_id}.{kind}"
            path.write_bytes(base64.b64decode(secret[path.name]))
            path.chmod(0o600)
        pair = load_key_pair(KeyFiles.of(folder, peer_id))
        assert pair.certificate.name == ("federation", peer_id)
        assert pair.certificate.fingerprint in graph.node(peer_id).pins
    assert of_kind(documents, "StatefulSet")["spec"]["serviceName"] == of_kind(documents, "Service")["metadata"]["name"]


def test_writing_again_keeps_the_keys(tmp_path):
    assert manifests(tmp_path, Cluster()) == manifests(tmp_path, Cluster())


def test_only_the_owner_can_read_the_secret(tmp_path):
    write_kubernetes(make_graph("ring", 3), tmp_path, Cluster())
    assert stat.S_IMODE((tmp_path / "secret.yaml").stat().st_mode) == 0o600


def test_gpus_are_requested_and_used(tmp_path):
    container = of_kind(manifests(tmp_path, Cluster(gpus=2)), "StatefulSet")["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["args"][0].endswith("--device cuda")


def test_no_container_runs_as_root_and_the_peer_sees_only_its_own_key(tmp_path):
    pod = of_kind(manifests(tmp_path, Cluster()), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    (peer,) = pod["containers"]
    assert "secret" not in {mount["name"] for mount in peer["volumeMounts"]}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("values", "word"),
    [({"name": "Peer_1"}, "--name"), ({"memory": "lots"}, "--memory"), ({"namespace": "a b"}, "--namespace")],
)
def test_values_that_the_api_refuses_are_errors(values, word):
    with pytest.raises(UsageError, match=word):
        Cluster(**values)


def test_peer_ids_with_gaps_are_refused(tmp_path):
    text = json.dumps(
        {"nodes": [{"id": 1, "address": "a:1"}, {"id": 2, "address": "b:1"}], "edges": [{"source": 1, "target": 2}]}
    )
    with pytest.raises(UsageError, match="0 to N - 1"):
        write_kubernetes(parse_graph(text), tmp_path, Cluster())
