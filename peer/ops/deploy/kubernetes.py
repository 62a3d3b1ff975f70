"""`peer deploy kubernetes`: a StatefulSet whose ordinals are the peer ids of a graph file."""

from __future__ import annotations

import base64
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.identity.files import read_file
from peer.ops.deploy.elsewhere import check_elsewhere, outside_services, own_ids
from peer.ops.deploy.given_data import GivenData
from peer.ops.deploy.keys import at_addresses, create_and_list_keys, key_files
from peer.ops.deploy.run_options import RunOptions
from peer.ops.deploy.task_file import BYTES_MAX, WORKDIR, UserFile, user_files
from peer.ops.deploy.text import check_image, fill, write

CONFIG_MAP_BYTES_MAX = 1 << 20  # limit of the Kubernetes API
# Of each kind of value: what the Kubernetes API accepts, in words, and as a pattern.
_LABEL = ("lower-case letters, digits and -, at most 52, such as peer-lab", r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
_NAME = ("lower-case letters, digits, - and ., such as fast-ssd", r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_AMOUNT = r"[0-9]+(\.[0-9]+)?(m|[KMGTP]i?|k)?"
_BYTES = ("a number of bytes with a unit, such as 512Mi or 2Gi", _AMOUNT)
_CPUS = ("a number of CPUs, such as 500m (half of one) or 2", _AMOUNT)
_WORD = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_RESOURCE = ("a resource of the nodes, such as nvidia.com/gpu or amd.com/gpu", rf"[a-z0-9][a-z0-9.-]*\.[a-z]+/{_WORD}")
_NODE_LABEL = ("KEY=VALUE, a label of nodes, such as gpu=a100", rf"([a-z0-9][a-z0-9.-]*/)?{_WORD}=({_WORD})?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3} | {unit: 1e3 ** (i + 1) for i, unit in enumerate("KMGTP")}
_UNITS |= {f"{unit}i": 1024.0 ** (i + 1) for i, unit in enumerate("KMGTP")}


@dataclass(frozen=True)
class Cluster:
    """Names and resources in the cluster; ``cpu``, ``memory`` and ``storage`` are Kubernetes quantities, for each peer.

    Args:
        cpu: request; there is no limit without ``cpu_limit``.
        memory: request, and limit without ``memory_limit``.
        gpus: number of ``gpu_resource``.
        shards: a PersistentVolumeClaim with ``peer-<id>.safetensors``; each peer gets its own file and no other.
        storage_class: of the state volumes; None: the cluster's default.
        node_selector: ``KEY=VALUE``, labels that a node must have.
        pull_secrets: Secrets in the namespace with the password of the image's registry.
        peers: first and last id of the peers in this cluster; the others are elsewhere, as the graph file says. None: all.
        expose: ``LoadBalancer`` or ``NodePort``: a Service for each peer that peers elsewhere dial; None: none.
        data: that the task reads: a PersistentVolumeClaim, or ``CLAIM/FOLDER`` in it, which may have ``{id}``.
        options: further ones of `peer run`, for all peers.

    Raises:
        UsageError: the Kubernetes API would refuse a value, or one has no effect.
    """

    name: str = "peer"
    namespace: str = "coordinator-free"
    image: str = "coordinator-free"
    cpu: str = "500m"
    memory: str = "1Gi"
    storage: str = "2Gi"
    gpus: int = 0
    shards: str | None = None
    domain: str = "cluster.local"
    cpu_limit: str | None = None
    memory_limit: str | None = None
    gpu_resource: str | None = None
    storage_class: str | None = None
    node_selector: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    peers: tuple[int, int] | None = None
    expose: str | None = None
    data: GivenData | None = None
    options: RunOptions | None = None

    def __post_init__(self) -> None:
        check_image(self.image)
        if self.data is not None:
            _check_claim(self.data)
        rules = {
            "name": _LABEL,
            "namespace": _LABEL,
            "cpu": _CPUS,
            "cpu_limit": _CPUS,
            "memory": _BYTES,
            "memory_limit": _BYTES,
            "storage": _BYTES,
            "shards": _LABEL,
            "gpu_resource": _RESOURCE,
            "storage_class": _NAME,
            "node_selector": _NODE_LABEL,
            "pull_secrets": _NAME,
        }
        for key, (words, pattern) in rules.items():
            value = getattr(self, key)
            for each in value if isinstance(value, tuple) else [value] if value is not None else []:
                if not re.fullmatch(pattern, each):
                    raise UsageError(f"{_option(key)}: expected {words}, got {each!r}")
        for key, request, limit in (("cpu", self.cpu, self.cpu_limit), ("memory", self.memory, self.memory_limit)):
            if limit is not None and _amount(limit) < _amount(request):
                raise UsageError(f"{_option(key)}: expected a limit of at least the request {request}, got {limit}")
        if self.gpu_resource is not None and not self.gpus:
            raise UsageError(
                f"{_option('gpu_resource')}: expected a number of 1 or more for {self.gpu_resource}, got 0"
            )


def _check_claim(data: GivenData) -> None:
    """Check the data of a pod: its manifest is that of all pods, which differ in their number alone.

    Raises:
        UsageError: not a claim, a folder beyond it, or another placeholder than ``{id}``.
    """
    claim, _, folder = data.source.partition("/")
    words, pattern = _LABEL
    if not re.fullmatch(pattern, claim) or ".." in folder.split("/") or "{" in folder.replace("{id}", ""):
        raise UsageError(
            f"--data: expected CLAIM, CLAIM/FOLDER or CLAIM/FOLDER-{{id}}, got {data.source}. CLAIM is a "
            f"PersistentVolumeClaim: {words}."
        )
    if "{" in data.path:
        raise UsageError(f"--data: expected one path in pods for all peers, without {{id}}, got {data.path}")


_OPTIONS = {
    "namespace": "--name",
    "cpu": "--pod cpu",
    "cpu_limit": "--pod cpu",
    "memory": "--pod memory",
    "memory_limit": "--pod memory",
    "storage": "--pod storage",
    "storage_class": "--pod storage",
    "gpu_resource": "--pod gpus",
    "node_selector": "--pod node",
    "pull_secrets": "--pod pull-secret",
}  # of the command line, for fields with another name


def _option(key: str) -> str:
    return _OPTIONS.get(key, f"--{key}")


def _amount(quantity: str) -> float:
    """Return a quantity as a number; its form is checked before."""
    number = quantity.rstrip("KMGTPikm")
    return float(number) * _UNITS[quantity.removeprefix(number)]


def write_kubernetes(graph: Graph, out: Path, cluster: Cluster) -> list[Path]:
    """Write the manifests and a secret with the peers' keys, generated under ``out/keys`` if missing; return the written paths.

    The graph file gets the pods' names as addresses of the peers in this cluster, and keeps those of the others.

    Raises:
        UsageError: the peers in the cluster have ids with gaps, another one has no pin or no address that pods can reach, a port
            cannot be exposed, the graph or the task file is too large for a ConfigMap, the peers have no data, or a file cannot
            be written.
        IdentityError: a key cannot be used.
    """
    ids = own_ids(graph, cluster.peers)
    host = f"{cluster.name}-{{id}}.{cluster.name}.{cluster.namespace}.svc.{cluster.domain}:7400"
    if graph.manifest.split == "shard" and ":" not in graph.manifest.task and cluster.shards is None:
        raise UsageError(
            "--shards: expected CLAIM, a PersistentVolumeClaim with peer-0.safetensors, peer-1.safetensors, ... of peer data "
            "split, because run.split is 'shard', got none"
        )
    own = (*user_files(graph), *([cluster.options] if cluster.options else []))
    for file in own:
        file.limited(BYTES_MAX, "a ConfigMap")
    check_elsewhere(graph, ids)
    pinned, keys = create_and_list_keys(at_addresses(graph, host, ids), out / "keys", ids)
    text = dump_graph(pinned)
    if len(text) > CONFIG_MAP_BYTES_MAX:
        raise UsageError(
            f"graph: expected at most {CONFIG_MAP_BYTES_MAX} bytes, the size of a ConfigMap, got {len(text)} with "
            "certificates. Split the federation, or mount the graph file from a volume."
        )
    values = {"name": cluster.name, "namespace": cluster.namespace}
    manifests = fill(
        "kubernetes.yaml",
        **values,
        peers=len(ids),
        ordinals=f"  ordinals: {{start: {ids[0]}}} # Kubernetes 1.27 or later\n" if ids[0] else "",
        outside=outside_services(graph, ids, cluster.expose, values) if cluster.expose else "",
        policy="" if cluster.expose else "; this policy blocks connections of other pods",
        callers="" if cluster.expose else f"from: [{{podSelector: {{matchLabels: {{app: {cluster.name}}}}}}}]\n      ",
        graph=indent(text.rstrip(), "    "),
        image=cluster.image,
        **_resources(cluster),
        options=_more_options(cluster),
        task="".join(_file_manifest(file, cluster) for file in own),
        **_pod_parts(own, cluster),
    )
    secret = fill("secret.yaml", **values, data="\n".join(_secret_lines(ids, out / "keys")))
    return [write(out / f"{cluster.name}.yaml", manifests), write(out / "secret.yaml", secret, 0o600), *keys]


def _resources(cluster: Cluster) -> dict[str, str]:
    """Return what a pod asks of its node, and of the storage."""
    gpu = f', {cluster.gpu_resource or "nvidia.com/gpu"}: "{cluster.gpus}"' if cluster.gpus else ""
    cpu_limit = f'cpu: "{cluster.cpu_limit}", ' if cluster.cpu_limit else ""
    storage = f'{{storage: "{cluster.storage}"}}'
    selector = dict(label.split("=") for label in cluster.node_selector)
    lines = {
        "nodeSelector": json.dumps(selector) if selector else "",
        "imagePullSecrets": json.dumps([{"name": name} for name in cluster.pull_secrets])
        if cluster.pull_secrets
        else "",
    }
    return {
        "requests": f'{{cpu: "{cluster.cpu}", memory: "{cluster.memory}"{gpu}}}',
        "limits": f'{{{cpu_limit}memory: "{cluster.memory_limit or cluster.memory}"{gpu}}}',
        "claim": f"{{accessModes: [ReadWriteOnce], resources: {{requests: {storage}}}"
        + (f', storageClassName: "{cluster.storage_class}"' if cluster.storage_class else "")
        + "}",
        "pod": "".join(f"      {key}: {value}\n" for key, value in lines.items() if value),
    }


def _more_options(cluster: Cluster) -> str:
    """Return the options of `peer run` that not every pod has, for a shell in a block of YAML."""
    given = cluster.options.names if cluster.options else ()
    words = [] if "log" in given else ["--log", "info,json"]
    words += ["--device", "cuda"] if cluster.gpus and "device" not in given else []
    words += ["--shard", "/shard.safetensors"] if cluster.shards else []
    words += cluster.data.options if cluster.data else []
    words += cluster.options.words if cluster.options else []
    return "".join(f" {shlex.quote(word)}" for word in words)


def _file_manifest(file: UserFile, cluster: Cluster) -> str:
    """Return the ConfigMap of a user's file."""
    content = base64.b64encode(file.content).decode()
    return fill(
        "task.yaml", name=cluster.name, namespace=cluster.namespace, what=file.what, key=_key(file), content=content
    )


def _key(file: UserFile) -> str:
    return f"{file.what}{file.path.suffix}"


def _pod_parts(own: tuple[UserFile, ...], cluster: Cluster) -> dict[str, str]:
    """Return the lines of the pod for files, shard and data: mounts, volumes, working directory and environment."""
    mounts, volumes, container, claims = [], [], [], {}
    if own or cluster.data:
        container.append(f"workingDir: {WORKDIR} # where the paths of task file and data are valid")
    for file in own:
        item, place = f"{{key: {_key(file)}, path: {json.dumps(str(file.path))}}}", f"mountPath: {WORKDIR}"
        if (
            cluster.data or len(own) > 1
        ):  # the file alone: in the read-only mount of a ConfigMap nothing else can be mounted
            place = f"mountPath: {json.dumps(f'{WORKDIR}/{file.path}')}, subPath: {json.dumps(str(file.path))}"
        mounts.append(f"{{name: {file.what}, {place}, readOnly: true}}")
        volumes.append(f"{{name: {file.what}, configMap: {{name: {cluster.name}-{file.what}, items: [{item}]}}}}")
    if cluster.shards is not None:
        claims["shards"] = cluster.shards
        shard = "mountPath: /shard.safetensors, subPathExpr: peer-$(PEER_ID).safetensors, readOnly: true"
        mounts.append(f"{{name: shards, {shard}}}")
    if cluster.data:
        claims["data"], _, folder = cluster.data.source.partition("/")
        part = f", subPathExpr: {json.dumps(folder.replace('{id}', '$(PEER_ID)'))}" if folder else ""
        mounts.append(f"{{name: data, mountPath: {json.dumps(cluster.data.target(0))}, readOnly: true{part}}}")
    volumes += [
        f"{{name: {name}, persistentVolumeClaim: {{claimName: {json.dumps(claim)}, readOnly: true}}}}"
        for name, claim in claims.items()
    ]
    if any("$(PEER_ID)" in line for line in mounts):
        label = "metadata.labels['apps.kubernetes.io/pod-index']"
        container.append(f'env: [{{name: PEER_ID, valueFrom: {{fieldRef: {{fieldPath: "{label}"}}}}}}]')
    return {
        "container": "".join(f"          {line}\n" for line in container),
        "mounts": "".join(f"            - {line}\n" for line in mounts),
        "volumes": "".join(f"        - {line}\n" for line in volumes),
    }


def _secret_lines(ids: tuple[int, ...], keys: Path) -> list[str]:
    lines = []
    for peer_id in ids:
        files = key_files(keys, peer_id)
        for path in (files.key, files.certificate):
            lines.append(
                f"  {path.name}: {json.dumps(base64.b64encode(read_file(path, 'key or certificate')).decode())}"
            )
    return lines
