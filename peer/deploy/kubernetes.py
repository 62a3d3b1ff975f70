"""`peer deploy kubernetes`: a StatefulSet whose ordinals are the peer ids of a graph file."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.deploy.keys import at_addresses, create_keys, key_files
from peer.deploy.text import fill, write

CONFIG_MAP_BYTES_MAX = 1 << 20  # limit of the Kubernetes API
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[KMGTP]i?|k)?")
_IMAGE = re.compile(r"[\w./:@-]+", re.ASCII)


@dataclass(frozen=True)
class Cluster:
    """Names and resources in the cluster; ``cpu``, ``memory`` and ``storage`` are Kubernetes quantities, for each peer.

    Raises:
        UsageError: the Kubernetes API would refuse a value.
    """

    name: str = "peer"
    namespace: str = "coordinator-free"
    image: str = "coordinator-free"
    cpu: str = "500m"
    memory: str = "1Gi"
    storage: str = "2Gi"
    gpus: int = 0
    domain: str = "cluster.local"

    def __post_init__(self) -> None:
        rules = {"name": _LABEL, "namespace": _LABEL, "image": _IMAGE}
        rules |= dict.fromkeys(("cpu", "memory", "storage"), _QUANTITY)
        for key, rule in rules.items():
            if not rule.fullmatch(getattr(self, key)):
                raise UsageError(f"--{key}: found {getattr(self, key)!r}; allowed: {rule.pattern}")


def write_kubernetes(graph: Graph, out: Path, cluster: Cluster) -> list[Path]:
    """Write the manifests and a secret with all keys, generated under ``out/keys`` if missing; return the paths.

    Raises:
        UsageError: peer ids are not 0 to N - 1, the graph is too large for a ConfigMap, or a file cannot be written.
        IdentityError: a key cannot be used.
    """
    if graph.ids != tuple(range(len(graph.ids))):
        raise UsageError("graph: found peer ids with gaps; allowed: 0 to N - 1, the ordinals of a StatefulSet")
    host = f"{cluster.name}-{{id}}.{cluster.name}.{cluster.namespace}.svc.{cluster.domain}:7400"
    text = dump_graph(create_keys(at_addresses(graph, host), out / "keys"))
    if len(text) > CONFIG_MAP_BYTES_MAX:
        raise UsageError(
            f"graph: found {len(text)} bytes with certificates; allowed: {CONFIG_MAP_BYTES_MAX}, the size of a ConfigMap; "
            "split the federation, or mount the graph file from a volume"
        )
    values = {"name": cluster.name, "namespace": cluster.namespace}
    manifests = fill(
        "kubernetes.yaml",
        **values,
        peers=len(graph.nodes),
        graph=indent(text.rstrip(), "    "),
        image=cluster.image,
        cpu=cluster.cpu,
        memory=cluster.memory,
        storage=cluster.storage,
        gpu=f', nvidia.com/gpu: "{cluster.gpus}"' if cluster.gpus else "",
        device=" --device cuda" if cluster.gpus else "",
    )
    secret = fill("secret.yaml", **values, data="\n".join(_secret_lines(graph, out / "keys")))
    return [write(out / f"{cluster.name}.yaml", manifests), write(out / "secret.yaml", secret, 0o600)]


def _secret_lines(graph: Graph, keys: Path) -> list[str]:
    lines = []
    for peer_id in graph.ids:
        files = key_files(keys, peer_id)
        for path in (files.key, files.certificate):
            lines.append(f"  {path.name}: {json.dumps(base64.b64encode(path.read_bytes()).decode())}")
    return lines
