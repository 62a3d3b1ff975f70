"""`peer deploy kubernetes`: manifests that the API schemas accept, and each peer's own key.

The package kubernetes-validate has the JSON schemas of Kubernetes' OpenAPI documents; the strict ones refuse unknown keys.
"""

import base64
import json
import stat

import kubernetes_validate
import pytest
import yaml
from manifest_walk import problems
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph_file import parse_graph
from peer.cli.main import app
from peer.identity.files import KeyFiles, load_key_pair
from peer.ops.deploy.kubernetes import Cluster, write_kubernetes

OLDEST, NEWEST = "1.28", "1.34"


def manifests(out, cluster, graph=None):
    paths = write_kubernetes(graph or make_graph("ring", 3), out, cluster)
    return [d for path in paths if path.suffix == ".yaml" for d in yaml.safe_load_all(path.read_text())]


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


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_task_file_is_a_config_map_in_the_working_directory_of_the_peers(tmp_path, own_task, version):
    """Before, the manifests did not hold the task file, and every pod ended with exit code 12."""
    documents = manifests(tmp_path / "k8s", Cluster(shards="patients"), make_graph("ring", 3, manifest=own_task))
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    (config,) = (d for d in documents if d["metadata"]["name"] == "peer-task")
    assert base64.b64decode(config["binaryData"]["task.py"]) == (tmp_path / "code" / "mine.py").read_bytes()
    pod = of_kind(documents, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "task")
    assert volume["configMap"] == {"name": "peer-task", "items": [{"key": "task.py", "path": "code/mine.py"}]}
    (peer,) = pod["containers"]
    (mount,) = (each for each in peer["volumeMounts"] if each["name"] == "task")
    assert mount["mountPath"] == peer["workingDir"] == "/task"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_an_algorithm_file_is_a_config_map_beside_that_of_the_task(tmp_path, own_algorithm, version):
    documents = manifests(tmp_path / "k8s", Cluster(shards="patients"), make_graph("ring", 3, manifest=own_algorithm))
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    assert problems(documents) == []
    (config,) = (d for d in documents if d["metadata"]["name"] == "peer-algorithm")
    assert base64.b64decode(config["binaryData"]["algorithm.py"]) == (tmp_path / "code" / "half.py").read_bytes()
    (peer,) = of_kind(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in peer["volumeMounts"]}
    assert (mounts["task"], mounts["algorithm"]) == ("/task/code/mine.py", "/task/code/half.py")


def test_a_task_file_beyond_the_size_of_a_config_map_is_refused(tmp_path, own_task, caplog):
    with (tmp_path / "code" / "mine.py").open("a") as file:
        file.write("#" * (1 << 20))
    with pytest.raises(UsageError, match=r"code/mine\.py: expected at most 1048576 bytes, .*, got"):
        write_kubernetes(make_graph("ring", 3, manifest=own_task), tmp_path / "k8s", Cluster())
    assert "code/mine.py" in caplog.text


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_each_pod_mounts_its_own_shard_of_a_claim(tmp_path, version):
    """Before, Kubernetes had no way to give shards."""
    shard = parse_manifest({"split": "shard"}, "test")
    documents = manifests(tmp_path, Cluster(shards="patients"), make_graph("ring", 3, manifest=shard))
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    pod = of_kind(documents, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "shards")
    assert volume["persistentVolumeClaim"] == {"claimName": "patients", "readOnly": True}
    (peer,) = pod["containers"]
    (mount,) = (each for each in peer["volumeMounts"] if each["name"] == "shards")
    assert mount["subPathExpr"] == "peer-$(PEER_ID).safetensors"
    assert [each["name"] for each in peer["env"]] == ["PEER_ID"]
    assert f"--shard {mount['mountPath']}" in peer["args"][0]


def test_split_shard_without_a_claim_is_refused(tmp_path):
    """Before, every pod ended with exit code 12 for want of data."""
    with pytest.raises(UsageError, match="--shards: expected CLAIM"):
        write_kubernetes(
            make_graph("ring", 3, manifest=parse_manifest({"split": "shard"}, "test")), tmp_path, Cluster()
        )


def test_private_keys_are_among_the_written_files(tmp_path, own_task):
    """Before, the verb wrote private keys below --out and did not list them."""
    save_graph(make_graph("ring", 3), tmp_path / "g.json")
    result = CliRunner().invoke(app, ["deploy", "kubernetes", str(tmp_path / "g.json"), "--out", str(tmp_path / "k8s")])
    assert result.exit_code == 0
    for peer_id in range(3):
        path = tmp_path / "k8s" / "keys" / f"peer-{peer_id}" / f"peer-{peer_id}.key"
        assert f"wrote {path} (private key)\n" in result.stderr


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"name": "Peer_1"}, "--name: .*such as peer-lab"),
        ({"memory": "lots"}, "--pod memory: .*such as 512Mi or 2Gi, got"),
        ({"storage": "1 GB"}, "--pod storage: .*such as 512Mi or 2Gi, got"),
        ({"cpu": "one"}, "--pod cpu: .*such as 500m"),
        ({"image": "a b"}, "--image: .*such as registry.example/peer:1"),
        ({"namespace": "a b"}, "--name"),
        ({"shards": "A/B"}, "--shards"),
    ],
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


def kubernetes(tmp_path, *options):
    save_graph(make_graph("ring", 3), tmp_path / "g.json")
    return CliRunner().invoke(
        app, ["deploy", "kubernetes", str(tmp_path / "g.json"), "--out", str(tmp_path / "k8s"), *options]
    )


def test_an_option_holds_a_request_and_its_limit_a_size_and_its_class_a_kind_of_gpu_and_its_number(tmp_path):
    given = [f"--pod={each}" for each in ("cpu=250m:2", "memory=1Gi:2Gi", "storage=5Gi:fast-ssd", "gpus=amd.com/gpu:1")]
    assert kubernetes(tmp_path, *given).exit_code == 0
    documents = list(yaml.safe_load_all((tmp_path / "k8s" / "peer.yaml").read_text()))
    spec = of_kind(documents, "StatefulSet")["spec"]
    resources = spec["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "250m", "memory": "1Gi", "amd.com/gpu": "1"}
    assert resources["limits"] == {"cpu": "2", "memory": "2Gi", "amd.com/gpu": "1"}
    claim = spec["volumeClaimTemplates"][0]["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == ("5Gi", "fast-ssd")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cpu=2:1", "--pod cpu: expected a limit of at least the request 2, got 1"),
        ("memory=1Gi:512Mi", "--pod memory: expected a limit of at least the request 1Gi, got 512Mi"),
        ("cpu=1:", "--pod cpu: expected a number of CPUs, such as 500m (half of one) or 2, got ''"),
        ("gpus=:1", "--pod gpus: expected a resource of the nodes, such as nvidia.com/gpu or amd.com/gpu, got ''"),
        ("gpus=many", "--pod gpus: expected a number, or RESOURCE:NUMBER, got 'many'"),
        ("gpus=amd.com/gpu:0", "--pod gpus: expected a number of 1 or more for amd.com/gpu, got 0"),
        (
            "disk=1",
            "--pod: expected KEY=VALUE with a key of cpu, memory, storage, gpus, node, pull-secret, got 'disk=1'.",
        ),
        ("cpu", "--pod: expected KEY=VALUE with a key of cpu, memory, storage, gpus, node, pull-secret, got 'cpu'."),
        ("node=gpu", "--pod node: expected KEY=VALUE, a label of nodes, such as gpu=a100, got 'gpu'"),
    ],
)
def test_a_wrong_pair_is_refused_with_the_key_that_holds_it(tmp_path, value, message):
    problem = kubernetes(tmp_path, "--pod", value).exception
    assert isinstance(problem, UsageError)
    assert str(problem) == message


def test_a_pod_may_need_several_labels_and_secrets_and_has_one_value_of_the_others(tmp_path):
    given = [f"--pod={each}" for each in ("node=gpu=a100", "node=site=a", "pull-secret=registry")]
    assert kubernetes(tmp_path, *given, "--name", "lab/fed").exit_code == 0
    stateful = of_kind(list(yaml.safe_load_all((tmp_path / "k8s" / "fed.yaml").read_text())), "StatefulSet")
    assert (stateful["metadata"]["namespace"], stateful["metadata"]["name"]) == ("lab", "fed")
    pod = stateful["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100", "site": "a"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    problem = kubernetes(tmp_path, "--pod", "cpu=1", "--pod", "cpu=2").exception
    assert str(problem) == "--pod cpu: expected one value, got another one, '2'."
