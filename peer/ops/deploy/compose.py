"""`peer deploy compose`: one service per peer of a graph file, for docker compose and docker-compose 1.29."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import Option, UsageError
from coordinator_free_bootstrap.ordinary_file import unwritable
from coordinator_free_bootstrap.user_file import names_file
from peer.ops.deploy.given_data import GivenData
from peer.ops.deploy.keys import at_addresses
from peer.ops.deploy.run_options import RunOptions
from peer.ops.deploy.task_file import WORKDIR, user_files
from peer.ops.deploy.text import fill, verbatim, write

ADDRESS = "peer-{id}:7400"
PEERS_MAX = 256  # deploy/Dockerfile makes the folders for the volumes of this many peers
MONITORING = ("prometheus.yml", "alerts.yml", "datasource.yml", "dashboards.yml", "dashboard.json")


def compose_file(
    graph: Graph,
    *,
    build: str | None = None,
    shards: bool = False,
    data: GivenData | None = None,
    options: RunOptions | None = None,
) -> str:
    """Return the compose file of a graph.

    Args:
        graph: one service ``peer-<id>`` per node.
        build: build context of the image; None: use an existing image.
        shards: whether each peer trains on ``$SHARDS/peer-<id>.safetensors``.
        data: that the task reads.
        options: further ones of `peer run`, for all peers.

    Raises:
        UsageError: a peer id is beyond the folders of the image.
    """
    if max(graph.ids) >= PEERS_MAX:
        raise UsageError(f"graph: expected peer ids from 0 to {PEERS_MAX - 1} in containers, got {max(graph.ids)}")
    context = f"    build: {{context: {json.dumps(build)}, dockerfile: deploy/Dockerfile}}\n" if build else ""
    return fill(
        "compose.yml",
        peers=len(graph.nodes),
        services="\n".join(_service(graph, peer_id, shards, data, options) for peer_id in graph.ids),
        build=context,
        keys_volumes=_lines(graph, lambda i: f"      - peer-{i}-keys:/federation/peer-{i}"),
        state_volumes=_lines(graph, lambda i: f"      - peer-{i}-state:/federation/peer-{i}:ro"),
        volumes=_lines(graph, lambda i: f"  peer-{i}-keys: {{}}\n  peer-{i}-state: {{}}") + _external(graph, data),
    )


def write_compose(
    graph: Graph,
    out: Path,
    *,
    build: str | None = None,
    shards: bool = False,
    data: GivenData | None = None,
    options: RunOptions | None = None,
) -> list[Path]:
    """Write the compose file, the graph file with the services' addresses, the task file and the monitoring; return the paths.

    Raises:
        UsageError: see `compose_file`; the task file cannot be deployed, or a file cannot be written.
    """
    own = [*user_files(graph), *([options] if options else [])]
    text = compose_file(graph, build=build, shards=shards, data=data, options=options)
    targets = [{"targets": [f"peer-{i}:9400"], "labels": {"peer_id": str(i)}} for i in graph.ids]
    monitoring = out / "deploy" / "monitoring"
    if own and data:
        _make_mount_points(graph, out / "deploy" / "task", data)
    return [
        write(out / "docker-compose.yml", text),
        write(out / "deploy" / "graph.json", dump_graph(at_addresses(graph, ADDRESS))),
        *(write(out / "deploy" / "task" / file.path, file.content) for file in own),
        write(monitoring / "peers.json", json.dumps(targets, indent=1) + "\n"),
        *(write(monitoring / name, verbatim(name)) for name in MONITORING),
    ]


def _service(graph: Graph, peer_id: int, shards: bool, data: GivenData | None, more: RunOptions | None) -> str:
    options = f'--id, "{peer_id}", --neighbors, /graph/graph.json, --state-dir, /state, --certs, /keys'
    own = f', --shard, "/shards/peer-{peer_id}.safetensors"' if shards else ""
    own += "".join(f", {json.dumps(word)}" for word in [*(data.options if data else ()), *(more.words if more else ())])
    volumes = [f'"peer-{peer_id}-state:/state"', f'"peer-{peer_id}-keys:/keys:ro"', '"graph:/graph:ro"']
    volumes += ['"${SHARDS:-./shards}:/shards:ro"'] if shards else []
    own_files = names_file(graph.manifest.task) or names_file(graph.manifest.algorithm) or more
    volumes += [f'"./deploy/task:{WORKDIR}:ro"'] if own_files else []
    volumes += [data.mount(peer_id)] if data else []
    # where the paths of task file and data are valid
    folder = f"\n    working_dir: {WORKDIR}" if own_files or data else ""
    return f"""  peer-{peer_id}:
    <<: *peer
    command: [run, {options},
              --listen, "0.0.0.0:7400", --require-own-address, --stay, "${{PEER_STAY:-error}}",
              --metrics, "0.0.0.0:9400"{own}]
    volumes: [{", ".join(volumes)}]{folder}
"""


def _make_mount_points(graph: Graph, folder: Path, data: GivenData) -> None:
    """Make what data below a peer's working directory are mounted on: in a read-only mount Docker makes nothing itself.

    Raises:
        UsageError: it cannot be made.
    """
    for peer_id in graph.ids:
        target = PurePosixPath(data.target(peer_id))
        if not target.is_relative_to(WORKDIR):
            continue
        place = folder / target.relative_to(WORKDIR)
        if Path(data.for_peer(peer_id)).is_file():
            write(place, "")
            continue
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(unwritable(Option("out"), place, error, "Name another folder.")) from error


def _external(graph: Graph, data: GivenData | None) -> str:
    """Return the lines of the volumes that the user has made."""
    names = dict.fromkeys(data.for_peer(i) for i in graph.ids) if data and data.volume else {}
    return "".join(f"\n  {name}: {{external: true}}" for name in names)


def _lines(graph: Graph, line: Callable[[int], str]) -> str:
    return "\n".join(line(peer_id) for peer_id in graph.ids)
