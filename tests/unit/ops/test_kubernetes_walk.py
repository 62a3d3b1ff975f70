"""The manifests of `peer deploy kubernetes`, walked as the cluster would; each check fires on a manifest that breaks its rule."""

import base64
import copy

import pytest
import yaml
from manifest_walk import problems

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.ops.deploy.kubernetes import Cluster, write_kubernetes

SHARD = parse_manifest({"split": "shard"}, "test")


def manifests(out, cluster, graph):
    paths = write_kubernetes(graph, out, cluster)
    return [d for path in paths if path.suffix == ".yaml" for d in yaml.safe_load_all(path.read_text())]


FULL = Cluster(
    name="fed",
    namespace="lab",
    cpu="250m",
    cpu_limit="2",
    memory="512Mi",
    memory_limit="1Gi",
    gpus=2,
    gpu_resource="nvidia.com/mig-1g.10gb",
    storage_class="fast-ssd",
    node_selector=("gpu=a100", "example.com/site=berlin"),
    pull_secrets=("registry",),
    shards="patients",
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """The manifests with every option."""
    return manifests(tmp_path_factory.mktemp("k8s"), FULL, make_graph("ring", 3, manifest=SHARD))


@pytest.mark.parametrize("cluster", [Cluster(), FULL, Cluster(name="a", gpus=1)])
def test_a_cluster_can_run_the_manifests(tmp_path, cluster):
    assert problems(manifests(tmp_path, cluster, make_graph("ring", 4))) == []


def test_a_cluster_can_run_the_manifests_with_a_task_file(tmp_path, own_task):
    assert problems(manifests(tmp_path / "k8s", Cluster(), make_graph("ring", 3, manifest=own_task))) == []


def of(documents, kind):
    return next(each for each in documents if each["kind"] == kind)


def pod(documents):
    return of(documents, "StatefulSet")["spec"]["template"]["spec"]


def peer(documents):
    return pod(documents)["containers"][0]


def init(documents):
    return pod(documents)["initContainers"][0]


def replaced(container, old, new):
    assert old in container["args"][0]
    container["args"][0] = container["args"][0].replace(old, new)


def volume(documents, name):
    return next(each for each in pod(documents)["volumes"] if each["name"] == name)


def mount(container, name):
    return next(each for each in container["volumeMounts"] if each["name"] == name)


def swap_secrets(documents):
    data = of(documents, "Secret")["data"]
    for kind in ("key", "pem"):
        data[f"peer-0.{kind}"], data[f"peer-1.{kind}"] = data[f"peer-1.{kind}"], data[f"peer-0.{kind}"]


def without_secret(documents):
    del of(documents, "Secret")["data"]["peer-2.key"]


def graph_with(old, new):
    def change(documents):
        data = of(documents, "ConfigMap")["data"]
        assert old in data["graph.json"]
        data["graph.json"] = data["graph.json"].replace(old, new)

    return change


BROKEN = {
    "namespace": (lambda d: of(d, "Secret")["metadata"].update(namespace="other"), "namespace 'other' does not exist"),
    "two names": (lambda d: d.append(copy.deepcopy(of(d, "Service"))), "have the same name"),
    "selector": (lambda d: of(d, "Service")["spec"]["selector"].update(app="x"), "Service fed: the pods do not have"),
    "budget": (
        lambda d: of(d, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(app="x"),
        "PodDisruptionBudget: the pods do not have",
    ),
    "policy's pods": (
        lambda d: of(d, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].update(app="x"),
        "NetworkPolicy: the pods do not have",
    ),
    "spread": (
        lambda d: pod(d)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(app="x"),
        "topologySpreadConstraints 0: the pods",
    ),
    "labels": (lambda d: of(d, "StatefulSet")["spec"]["selector"]["matchLabels"].clear(), "of an empty selector"),
    "service": (lambda d: of(d, "StatefulSet")["spec"].update(serviceName="x"), "serviceName 'x' does not exist"),
    "headless": (lambda d: of(d, "Service")["spec"].pop("clusterIP"), "not headless"),
    "not ready": (lambda d: of(d, "Service")["spec"].pop("publishNotReadyAddresses"), "hides pods that are not ready"),
    "config map": (lambda d: volume(d, "graph")["configMap"].update(name="x"), "ConfigMap 'x' does not exist"),
    "secret": (lambda d: volume(d, "secret")["secret"].update(secretName="x"), "Secret 'x' does not exist"),
    "item": (
        lambda d: volume(d, "graph")["configMap"].update(items=[{"key": "x", "path": "graph.json"}]),
        "has no key 'x'",
    ),
    "claim": (
        lambda d: volume(d, "shards")["persistentVolumeClaim"].update(claimName="x"),
        "the claim 'x' does not exist",
    ),
    "unused": (lambda d: pod(d)["volumes"].append({"name": "x", "emptyDir": {}}), "volume x: no container uses it"),
    "mount": (lambda d: mount(peer(d), "state").update(name="x"), "the volume 'x' of a mount does not exist"),
    "mounts": (lambda d: mount(peer(d), "keys").update(mountPath="/graph"), "two mounts at /graph"),
    "variable": (lambda d: peer(d)["env"].clear(), "subPathExpr uses PEER_ID"),
    "label of env": (
        lambda d: peer(d)["env"][0]["valueFrom"]["fieldRef"].update(fieldPath="metadata.labels['x']"),
        "the pods have no label 'x'",
    ),
    "root file system": (
        lambda d: peer(d)["securityContext"].pop("readOnlyRootFilesystem"),
        "peer: the root file system can be written",
    ),
    "privileges": (
        lambda d: init(d)["securityContext"].pop("allowPrivilegeEscalation"),
        "own-key: privileges can grow",
    ),
    "capabilities": (lambda d: peer(d)["securityContext"].pop("capabilities"), "peer: capabilities are left"),
    "privileged": (lambda d: peer(d)["securityContext"].update(privileged=True), "peer: it is privileged"),
    "root": (lambda d: pod(d)["securityContext"].update(runAsUser=0), "does not run as user 10001"),
    "group": (lambda d: pod(d)["securityContext"].pop("fsGroup"), "does not belong to group 10001"),
    "seccomp": (lambda d: pod(d)["securityContext"].pop("seccompProfile"), "no seccomp profile"),
    "token": (lambda d: pod(d).pop("automountServiceAccountToken"), "gets a token of the API"),
    "host": (lambda d: pod(d).update(hostNetwork=True), "the pod has hostNetwork"),
    "host path": (
        lambda d: (volume(d, "keys").pop("emptyDir"), volume(d, "keys").update(hostPath={"path": "/"})),
        "not allowed in a restricted pod",
    ),
    "memory": (lambda d: init(d)["resources"]["limits"].pop("memory"), "own-key: no memory limit"),
    "limit": (lambda d: peer(d)["resources"]["limits"].update(cpu="100m"), "requests more cpu than its limit"),
    "gpus": (
        lambda d: peer(d)["resources"]["requests"].update({"nvidia.com/mig-1g.10gb": "1"}),
        "request and limit of nvidia.com/mig-1g.10gb differ",
    ),
    "no gpu": (lambda d: replaced(peer(d), " --device cuda", ""), "has a GPU and does not use it"),
    "port": (lambda d: of(d, "Service")["spec"]["ports"][0].update(port=7401), "Service fed: port 7401"),
    "closed": (lambda d: of(d, "NetworkPolicy")["spec"]["ingress"].pop(0), "port wire is closed"),
    "listen": (lambda d: replaced(peer(d), "[::]:7400", "[::]:7401"), "listens on another port"),
    "metrics": (
        lambda d: replaced(peer(d), "--metrics 0.0.0.0:9400", "--metrics 0.0.0.0:9401"),
        "serves metrics on another",
    ),
    "scrape": (
        lambda d: of(d, "StatefulSet")["spec"]["template"]["metadata"]["annotations"].update(
            {"prometheus.io/port": "1"}
        ),
        "the annotation for Prometheus names port 1",
    ),
    "id": (lambda d: replaced(peer(d), "${HOSTNAME##*-}", "0"), "pod fed-1 runs peer 0"),
    "state": (
        lambda d: mount(peer(d), "state").update(readOnly=True),
        "--state-dir: /state is not in a volume that can",
    ),
    "lost state": (lambda d: replaced(peer(d), "/state", "/keys"), "--state-dir: /keys is not in a volume that can"),
    "path": (lambda d: replaced(peer(d), "--certs /keys", "--certs /other"), "--certs: /other is in no volume"),
    "file": (
        lambda d: replaced(peer(d), "/graph/graph.json", "/graph/g.json"),
        "/graph/g.json is not in its ConfigMap",
    ),
    "shard": (lambda d: mount(peer(d), "shards").update(mountPath="/x"), "--shard: /shard.safetensors is in no volume"),
    "folder": (lambda d: peer(d).update(workingDir="/task"), "workingDir: /task is in no volume"),
    "probe": (lambda d: peer(d).pop("livenessProbe"), "livenessProbe is missing"),
    "probe's command": (
        lambda d: peer(d)["readinessProbe"]["exec"].update(command=["peer", "list", "--certs", "/keys"]),
        "readinessProbe: its command is peer list",
    ),
    "probe's keys": (
        lambda d: peer(d)["startupProbe"]["exec"].update(command=["peer", "health", "--certs", "/x"]),
        "startupProbe: its keys are not",
    ),
    "probe's state": (
        lambda d: peer(d)["startupProbe"]["exec"].update(command=["peer", "health", "--certs", "/keys"]),
        "startupProbe: it does not know the peer's state",
    ),
    "temporary folder": (lambda d: mount(peer(d), "tmp").update(mountPath="/t"), "the peer has no temporary folder"),
    "mount in a mount": (
        lambda d: mount(peer(d), "shards").update(mountPath="/graph/shards"),
        "/graph/shards is in a read-only mount",
    ),
    "probe's port": (
        lambda d: peer(d)["livenessProbe"]["exec"]["command"].extend(["--address", "127.0.0.1:1"]),
        "livenessProbe: it asks another port",
    ),
    "start": (lambda d: peer(d)["startupProbe"].update(failureThreshold=3), "less than 120 s to import PyTorch"),
    "all keys": (
        lambda d: peer(d)["volumeMounts"].append({"name": "secret", "mountPath": "/all"}),
        "the peer's container has the Secret with all keys",
    ),
    "keys' volume": (
        lambda d: mount(init(d), "keys").update(name="state"),
        "init container lacks a volume for the keys",
    ),
    "another's key": (
        lambda d: replaced(init(d), "/secret/peer-$id", "/secret/peer-0"),
        "a key that the graph file does",
    ),
    "two keys": (
        lambda d: replaced(init(d), "done", "done; cat /secret/peer-0.key > /keys/peer-0.key"),
        "peer 1 gets the keys ['peer-0.key', 'peer-1.key', 'peer-1.pem']",
    ),
    "no key": (without_secret, "peer 2 gets the keys ['peer-2.pem']"),
    "swapped keys": (swap_secrets, "peer 0 gets a key that the graph file does not pin"),
    "address": (graph_with("fed-1.fed.lab", "fed-1.fed.other"), "its pod has the name fed-1.fed.lab.svc.cluster.local"),
    "address's port": (
        graph_with("fed-1.fed.lab.svc.cluster.local:7400", "fed-1.fed.lab.svc.cluster.local:74"),
        "port 74",
    ),
    "replicas": (lambda d: of(d, "StatefulSet")["spec"].update(replicas=4), "pod fed-3 is no peer of the graph"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_found(documents, name):
    change, words = BROKEN[name]
    broken = copy.deepcopy(documents)
    change(broken)
    assert any(words in problem for problem in problems(broken)), problems(broken)


def test_options_are_in_the_manifests(documents):
    found = pod(documents)
    assert found["nodeSelector"] == {"gpu": "a100", "example.com/site": "berlin"}
    assert found["imagePullSecrets"] == [{"name": "registry"}]
    assert peer(documents)["resources"] == {
        "requests": {"cpu": "250m", "memory": "512Mi", "nvidia.com/mig-1g.10gb": "2"},
        "limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/mig-1g.10gb": "2"},
    }
    (claim,) = of(documents, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast-ssd"
    assert base64.b64decode(of(documents, "Secret")["data"]["peer-0.pem"]).startswith(b"-----BEGIN")
