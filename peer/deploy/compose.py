"""`peer deploy compose`: one service per peer of a graph file, for docker compose and docker-compose 1.29."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import UsageError
from peer.deploy.keys import at_addresses
from peer.deploy.task_file import task_file
from peer.deploy.text import fill, verbatim, write

ADDRESS = "peer-{id}:7400"
PEERS_MAX = 256  # deploy/Dockerfile makes a folder for the volumes of so many peers
MONITORING = ("prometheus.yml", "alerts.yml", "datasource.yml", "dashboards.yml", "dashboard.json")


def compose_file(graph: Graph, *, build: str | None = None, shards: bool = False) -> str:
    """Return the compose file of a graph.

    Args:
        graph: one service ``peer-<id>`` per node.
        build: build context of the image; None: use an existing image.
        shards: whether each peer trains on ``$SHARDS/peer-<id>.safetensors``.

    Raises:
        UsageError: a peer id is beyond the folders of the image.
    """
    if max(graph.ids) >= PEERS_MAX:
        raise UsageError(f"graph: found peer id {max(graph.ids)}; allowed in containers: 0 to {PEERS_MAX - 1}")
    context = f"    build: {{context: {json.dumps(build)}, dockerfile: deploy/Dockerfile}}\n" if build else ""
    return fill(
        "compose.yml",
        peers=len(graph.nodes),
        services="\n".join(_service(peer_id, shards, own_task=":" in graph.manifest.task) for peer_id in graph.ids),
        build=context,
        keys_volumes=_lines(graph, lambda i: f"      - peer-{i}-keys:/federation/peer-{i}"),
        state_volumes=_lines(graph, lambda i: f"      - peer-{i}-state:/federation/peer-{i}:ro"),
        volumes=_lines(graph, lambda i: f"  peer-{i}-keys: {{}}\n  peer-{i}-state: {{}}"),
    )


def write_compose(graph: Graph, out: Path, *, build: str | None = None, shards: bool = False) -> list[Path]:
    """Write the compose file, the graph file with the services' addresses, the task file and the monitoring; return the paths.

    Raises:
        UsageError: see `compose_file`; the task file cannot be deployed, or a file cannot be written.
    """
    own = task_file(graph)
    targets = [{"targets": [f"peer-{i}:9400"], "labels": {"peer_id": str(i)}} for i in graph.ids]
    monitoring = out / "deploy" / "monitoring"
    return [
        write(out / "docker-compose.yml", compose_file(graph, build=build, shards=shards)),
        write(out / "deploy" / "graph.json", dump_graph(at_addresses(graph, ADDRESS))),
        *([write(out / "deploy" / "task" / own.path, own.content)] if own else []),
        write(monitoring / "peers.json", json.dumps(targets, indent=1) + "\n"),
        *(write(monitoring / name, verbatim(name)) for name in MONITORING),
    ]


def _service(peer_id: int, shards: bool, own_task: bool) -> str:
    options = f'--id, "{peer_id}", --neighbors, /graph/graph.json, --state-dir, /state, --certs, /keys'
    own = f', --shard, "/shards/peer-{peer_id}.safetensors"' if shards else ""
    volumes = [f"peer-{peer_id}-state:/state", f"peer-{peer_id}-keys:/keys:ro", "graph:/graph:ro"]
    volumes += ["${SHARDS:-./shards}:/shards:ro"] if shards else []
    volumes += ["./deploy/task:/task:ro"] if own_task else []
    folder = "\n    working_dir: /task" if own_task else ""  # where the task file has the path that the manifest names
    return f"""  peer-{peer_id}:
    <<: *peer
    command: [run, {options},
              --listen, "0.0.0.0:7400", --require-own-address, --stay, error,
              --metrics-port, "9400", --metrics-host, 0.0.0.0{own}]
    volumes: [{", ".join(f'"{volume}"' for volume in volumes)}]{folder}
"""


def _lines(graph: Graph, line: Callable[[int], str]) -> str:
    return "\n".join(line(peer_id) for peer_id in graph.ids)
