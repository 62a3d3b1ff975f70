"""`peer deploy`: from a graph file to containers, a swarm, Kubernetes manifests, or archives for devices."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

LISTED_MAX = 6  # files with numbers in their names that are printed one by one

app = typer.Typer(
    name="deploy", help="Deploy the peers of a graph file to containers, a cluster, or devices.", no_args_is_help=True
)

GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False, readable=False)
]
Out = Annotated[Path, typer.Option(help="Folder for the files.", readable=False)]
Image = Annotated[str, typer.Option(help="Image name; all nodes must be able to pull it.")]


OptionsFile = Annotated[
    Path | None,
    typer.Option(
        help="File of further options for all peers, such as threads = 2 (TOML); see peer run --options.",
        readable=False,
    ),
]


def _shards(metavar: str, place: str) -> object:
    """Return the option that gives each peer its own shard."""
    files = "peer-<id>.safetensors, as peer data split writes them; each peer can read its own"
    return typer.Option(metavar=metavar, help=f"{place} with {files}.")


def _data(metavar: str, source: str) -> object:
    """Return the option that lets data in."""
    return typer.Option(
        metavar=f"{metavar}[:PATH]",
        help=f"Data that the task reads, read-only: {source}. A peer finds them at PATH, relative to the folder in which it "
        "starts, default 'data'. {id} gives each peer its own: sites/{id}.",
    )


@app.command(epilog="Example: peer deploy compose graph.json --out testbed && cd testbed && docker compose up")
def compose(
    path: GraphFile,
    out: Annotated[
        Path | None, typer.Option(help="Folder. Default: print only the compose file.", readable=False)
    ] = None,
    build: Annotated[
        str | None, typer.Option(help="Build the image from this checkout; path relative to --out.")
    ] = None,
    shards: Annotated[
        bool,
        typer.Option("--shards", help="Peers train on $SHARDS/peer-<id>.safetensors. Default for split 'shard'."),
    ] = False,
    data: Annotated[str | None, _data("DIR|VOLUME", "a folder or file of this machine, or a Docker volume")] = None,
    options: OptionsFile = None,
) -> None:
    """Write a compose file for all peers of a graph, the graph file with the services' addresses, and monitoring.

    A task file is copied to --out too. Run this verb in the folder from which the path in the graph file is valid.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.ops.deploy.compose import compose_file, write_compose
    from peer.ops.deploy.given_data import data_here
    from peer.ops.deploy.run_options import IN_CONTAINERS, run_options

    more = run_options(options, (*IN_CONTAINERS, "require_own_address"))
    graph = load_graph(path)
    shards = shards or graph.manifest.split == "shard"
    given = data_here(data, graph) if data else None
    if out is None:
        typer.echo(compose_file(graph, build=build, shards=shards, data=given, options=more), nl=False)
    else:
        _print_paths(write_compose(graph, out, build=build, shards=shards, data=given, options=more))


@app.command(
    epilog="Example: peer deploy swarm graph.json --image registry/peer:1 --out stack && "
    "docker stack deploy -c stack/stack.yml federation"
)
def swarm(
    path: GraphFile,
    out: Out,
    image: Image = "coordinator-free",
    node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST|KEY==VALUE",
            help="Deal the peers to these nodes in turn (host names of docker node ls); repeat it. A peer then runs on its node "
            "only and waits for it. KEY==VALUE or KEY!=VALUE, such as node.labels.site!=a: run peers only on nodes like this; "
            "all must hold. Default: Docker chooses, and may move a peer.",
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that all nodes share, such as an NFS mount, with peer-<id> owned by user 10001: a peer on another "
            "node continues with its state. Default: volumes of the nodes; a peer on another node catches up without it.",
        ),
    ] = None,
    shards: Annotated[str | None, _shards("FOLDER", "Folder on every node")] = None,
    data: Annotated[str | None, _data("FOLDER|VOLUME", "a folder or file of every node, or a Docker volume")] = None,
    options: OptionsFile = None,
) -> None:
    """Write a stack for Docker Swarm: peers on all nodes of the swarm, and a page of the run; missing keys are generated.

    Each peer is a service with its own key as a secret. The graph file and a task file become configs.
    Run this verb in the folder from which the path of a task file in the graph file is valid.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.ops.deploy.given_data import data_on_nodes
    from peer.ops.deploy.run_options import IN_CONTAINERS, run_options
    from peer.ops.deploy.swarm import Stack, write_swarm

    graph = load_graph(path)
    stack = Stack(
        image,
        constraints=tuple(each for each in node or () if "=" in each),
        nodes=tuple(each for each in node or () if "=" not in each),
        state=state,
        shards=shards,
        data=data_on_nodes(data, graph) if data else None,
        options=run_options(options, IN_CONTAINERS),
    )
    _print_paths(write_swarm(graph, out, stack))


@app.command(epilog="Example: peer deploy kubernetes graph.json --image registry/peer:1 --out k8s")
def kubernetes(
    path: GraphFile,
    out: Out,
    name: Annotated[
        str,
        typer.Option(metavar="[NAMESPACE/]NAME", help="Name of the StatefulSet and its Service, and their namespace."),
    ] = "coordinator-free/peer",
    image: Image = "coordinator-free",
    pod: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What each peer asks of the cluster; repeat it. cpu=REQUEST[:LIMIT], such as 1:2, default 500m; without a "
            "limit it may use idle CPUs of its node. memory=REQUEST[:LIMIT], default 1Gi; beyond the limit, by default the "
            "request, the kernel kills it. storage=SIZE[:CLASS] of its state, default 2Gi (kubectl get storageclass). "
            "gpus=[RESOURCE:]NUMBER, such as 1, nvidia.com/mig-1g.10gb:1 or amd.com/gpu:1; needs an image with CUDA or ROCm. "
            "node=LABEL=VALUE: run only on nodes with this label, such as gpu=a100; several: all must hold. pull-secret=NAME: "
            "Secret in the namespace with the password of the image's registry (kubectl create secret docker-registry).",
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="Ids of the peers in this cluster, such as 4-7. The others run elsewhere; the graph file has their addresses "
            "and pins. Default: all.",
        ),
    ] = None,
    expose: Annotated[
        Literal["LoadBalancer", "NodePort"] | None,
        typer.Option(
            help="Give each peer that has neighbors elsewhere a Service of this type, at the port of its address in the "
            "graph file. Default: only pods of this cluster dial it.",
        ),
    ] = None,
    shards: Annotated[str | None, _shards("CLAIM", "PersistentVolumeClaim")] = None,
    data: Annotated[str | None, _data("CLAIM[/FOLDER]", "a PersistentVolumeClaim, or a folder in it")] = None,
    options: OptionsFile = None,
) -> None:
    """Write Kubernetes manifests and a secret with the peers' keys; missing keys are generated.

    A task file becomes a ConfigMap. Run this verb in the folder from which the path in the graph file is valid.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.ops.deploy.elsewhere import id_range
    from peer.ops.deploy.given_data import GivenData
    from peer.ops.deploy.kubernetes import Cluster, write_kubernetes
    from peer.ops.deploy.pod_options import pod_options
    from peer.ops.deploy.run_options import IN_CONTAINERS, run_options

    graph = load_graph(path)
    namespace, slash, short = name.partition("/")
    cluster = Cluster(
        name=short if slash else name,
        image=image,
        shards=shards,
        namespace=namespace if slash else Cluster.namespace,
        **pod_options(pod or []),
        peers=id_range(peers) if peers else None,
        expose=expose,
        data=GivenData.of(data, graph) if data else None,
        options=run_options(options, IN_CONTAINERS),
    )
    _print_paths(write_kubernetes(graph, out, cluster))


@app.command(epilog="Example: peer deploy systemd graph.json --options options.toml --out devices")
def systemd(
    path: GraphFile,
    out: Out,
    options: OptionsFile = None,
    data: Annotated[str | None, _data("FOLDER", "a folder or file of every device")] = None,
) -> None:
    """Write a systemd unit and one archive per device with that peer's key; missing keys are generated.

    A task file is put into every archive. Run this verb in the folder from which the path in the graph file is valid.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.ops.deploy.given_data import data_on_nodes
    from peer.ops.deploy.run_options import PLACES, run_options
    from peer.ops.deploy.systemd import write_systemd

    graph = load_graph(path)
    given = data_on_nodes(data, graph) if data else None
    set_here = (*PLACES, "data_root") if given and given.builtin else PLACES
    _print_paths(write_systemd(graph, out, options=run_options(options, set_here), data=given))


@app.command(epilog="Example: peer deploy keys graph.json keys --out pinned.json")
def keys(
    path: GraphFile,
    folder: Annotated[
        Path, typer.Argument(metavar="KEYS", help="Folder for peer-<id>/peer-<id>.key and .pem.", readable=False)
    ],
    out: Annotated[Path, typer.Option(help="Graph file to write, with all keys pinned.", readable=False)],
) -> None:
    """Generate the missing keys of peers, and pin all keys in the graph file."""
    from coordinator_free_bootstrap import load_graph, save_graph
    from peer.ops.deploy.keys import create_and_list_keys

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    graph, written = create_and_list_keys(load_graph(path), folder)
    save_graph(graph, out)
    _print_paths([out, *written])


@app.command(epilog="Example: peer deploy collect out --out results")
def collect(
    directory: Annotated[
        Path, typer.Argument(help="Folder with graph.json and peer-<id>/ of all peers.", readable=False)
    ],
    out: Out,
    patience: Annotated[float, typer.Option(min=0, help="Report after this many seconds without a running peer.")] = 60,
    via: Annotated[
        Path | None,
        typer.Option(help="Program to copy with instead of cp, if --out belongs to another user.", readable=False),
    ] = None,
) -> None:
    """Wait until all peers have ended, copy their results to one folder, print the report; exit 1 if one is missing."""
    from rich.console import Console

    from peer.ops.deploy.collect import collect as collected
    from peer.ops.deploy.collect import wait_for_completion
    from peer.runtime.signals import Signals
    from peer.view.report.tables import report_view

    Signals().take()
    wait_for_completion(directory, patience)
    found = collected(directory, out, via)
    Console().print(report_view(found.values))
    raise typer.Exit(0 if found.values["state"] == "complete" else 1)


@app.command(epilog="Example: peer deploy chaos --project coordinator-free --seed 7 --seconds 60")
def chaos(
    seed: Annotated[int, typer.Option(help="Seed of the random faults.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds until all faults are over.")] = 60,
    project: Annotated[
        str | None, typer.Option(help="Compose project. Default: the project of this container.")
    ] = None,
) -> None:
    """Kill, pause and isolate peers of a compose project at random; needs the Docker socket and SDK."""
    import socket

    from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
    from peer.ops.deploy.chaos import Project, container_script, run_faults
    from peer.runtime.signals import Signals

    Signals().take()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    import docker

    try:
        # s; under load the engine is slow, and a timeout would leave a fault in place
        client = docker.from_env(timeout=300)
        client.ping()
    except docker.errors.DockerException as error:
        got, fix = f"none ({error})", "Set DOCKER_HOST or DOCKER_GID."
        raise UsageError(ConfigProblem("peer deploy chaos", "an answer from the Docker engine", got, fix)) from error
    target = Project(client, project) if project else Project.of_this_container(client, socket.gethostname())
    fired = run_faults(target, container_script(seed, seconds, target.peers()))
    typer.echo(", ".join(f"{name} {count}" for name, count in fired.items()))


def _print_paths(paths: list[Path]) -> None:
    """Print a line for each file, and one line for many whose names differ in numbers only."""
    place, alike = Path(os.path.commonpath(paths)), dict[str, list[Path]]()
    for path in paths:
        alike.setdefault(re.sub(r"\d+", "N", str(path.relative_to(place))), []).append(path)
    for name, group in alike.items():
        secret = " (private key)" if name.endswith(".key") else ""
        many = len(group) > LISTED_MAX
        for text in [f"{place / name}, {len(group)} files"] if many else group:
            typer.echo(f"wrote {text}{secret}", err=True)
