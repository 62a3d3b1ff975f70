"""The manifests of `peer deploy kubernetes`, read by kubectl: a dry run against a server that only lists its API.

With ``--dry-run=client`` kubectl parses the files, asks the API which kinds it has and whether the objects exist, and sends
nothing. It does not look at fields; ``kubectl set image --local`` does, for the StatefulSet: it reads it with its own types and
writes it back, and a field that the types lack is lost.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from tools.packages import unpacked

from coordinator_free_bootstrap import make_graph, parse_manifest
from peer.ops.deploy.kubernetes import Cluster, write_kubernetes

pytestmark = pytest.mark.compose

RESOURCES = {
    "v1": [
        ("namespaces", "Namespace", False),
        ("configmaps", "ConfigMap", True),
        ("secrets", "Secret", True),
        ("services", "Service", True),
    ],
    "apps/v1": [("statefulsets", "StatefulSet", True)],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True)],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy", True)],
}
FULL = Cluster(
    cpu_limit="2",
    memory_limit="2Gi",
    gpus=1,
    gpu_resource="amd.com/gpu",
    storage_class="fast",
    node_selector=("gpu=a100",),
    pull_secrets=("registry",),
    shards="patients",
)


def discovery() -> dict[str, dict]:
    """Return the documents with which an API tells its groups and kinds, by path."""
    groups = []
    documents = {"/api": {"kind": "APIVersions", "versions": ["v1"]}}
    for version, kinds in RESOURCES.items():
        rows = [
            {"name": n, "singularName": "", "namespaced": s, "kind": k, "verbs": ["get", "create"]} for n, k, s in kinds
        ]
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        documents[path] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": rows}
        if version != "v1":
            known = {"groupVersion": version, "version": "v1"}
            groups.append({"name": version.partition("/")[0], "versions": [known], "preferredVersion": known})
    documents["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return documents


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory):
    """Path of kubectl: the installed one, or that of Debian's package kubernetes-client."""
    found = shutil.which("kubectl")
    if found:
        return found
    return str(unpacked("kubectl", tmp_path_factory.mktemp("kubectl"), "kubernetes-client") / "usr" / "bin" / "kubectl")


@pytest.fixture
def api():
    """The address of an API that has no objects, and the requests that it got."""
    documents, asked = discovery(), []

    class Answers(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            path = self.path.partition("?")[0]
            asked.append((self.command, path))
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            content = json.dumps(documents.get(path, missing)).encode()
            self.send_response(200 if path in documents else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def run(kubectl, folder, *arguments):
    """Run kubectl without the configuration of this machine's user."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(folder / "none")}
    command = [kubectl, *map(str, arguments)]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)


def dry_run(kubectl, folder, address):
    files = [word for path in sorted(folder.glob("*.yaml")) for word in ("-f", path)]
    return run(kubectl, folder, "--server", address, "apply", "--dry-run=client", "--validate=false", *files)


@pytest.mark.parametrize("cluster", [Cluster(), FULL])
def test_kubectl_would_create_every_object_and_sends_nothing(kubectl, api, tmp_path, cluster):
    address, asked = api
    write_kubernetes(make_graph("ring", 3), tmp_path, cluster)
    done = dry_run(kubectl, tmp_path, address)
    assert done.returncode == 0, done.stderr
    created = sorted(line.removesuffix(" created (dry run)") for line in done.stdout.splitlines())
    assert created == [
        "configmap/peer-graph",
        "namespace/coordinator-free",
        "networkpolicy.networking.k8s.io/peer",
        "poddisruptionbudget.policy/peer",
        "secret/peer-keys",
        "service/peer",
        "statefulset.apps/peer",
    ]
    assert {method for method, _ in asked} == {"GET"}
    assert ("GET", "/apis/apps/v1/namespaces/coordinator-free/statefulsets/peer") in asked


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: StatefulSet", "kind: StatefulSets", 'no matches for kind "StatefulSets"'),
        ("apiVersion: apps/v1", "apiVersion: apps/v1beta1", "no matches for kind"),
        ("  replicas: 3", "  replicas: 3\n replicas: 3", "error"),
    ],
)
def test_kubectl_refuses_a_broken_manifest(kubectl, api, tmp_path, old, new, words):
    write_kubernetes(make_graph("ring", 3), tmp_path, Cluster())
    path = tmp_path / "peer.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    done = dry_run(kubectl, tmp_path, api[0])
    assert done.returncode != 0 and words in done.stderr


def test_kubectl_knows_every_field_of_the_stateful_set(kubectl, tmp_path):
    shard = make_graph("ring", 3, manifest=parse_manifest({"split": "shard"}, "test"))
    write_kubernetes(shard, tmp_path, FULL)
    documents = list(yaml.safe_load_all((tmp_path / "peer.yaml").read_text()))
    (written,) = (each for each in documents if each["kind"] == "StatefulSet")
    image = "registry.example/peer:2"  # kubectl prints nothing where nothing changes
    path = tmp_path / "set.json"
    for known in (True, False):
        written["spec"]["template"]["spec"] |= {} if known else {"wrongField": True}
        path.write_text(json.dumps(written))
        done = run(kubectl, tmp_path, "set", "image", "--local", "-f", path, f"peer={image}", "-o", "json")
        assert done.returncode == 0, done.stderr
        changed = copy.deepcopy(written)
        changed["spec"]["template"]["spec"]["containers"][0]["image"] = image
        assert list(lost(changed, json.loads(done.stdout))) == ([] if known else [".spec.template.spec.wrongField"])


def lost(written, read, where=""):
    """Yield the places of what was written and not read; amounts may be spelled in another way."""
    if isinstance(written, dict):
        for key, value in written.items():
            if key not in read:
                yield f"{where}.{key}"
            else:
                yield from lost(value, read[key], f"{where}.{key}")
    elif isinstance(written, list):
        assert len(written) == len(read), where
        for i, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{where}.{i}")
    elif written != read:
        yield f"{where}: {written!r} became {read!r}"
