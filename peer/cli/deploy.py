"""`peer deploy`: a graph file as containers, as a cluster's manifests, or as archives for devices."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="deploy", help="Take a graph file to containers, a cluster, or devices.", no_args_is_help=True)

GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder for the files.")]


@app.command(epilog="Example: peer deploy compose graph.json --out testbed && cd testbed && docker compose up")
def compose(
    path: GraphFile,
    out: Annotated[Path | None, typer.Option(help="Folder; default: only the compose file, to stdout.")] = None,
    build: Annotated[str | None, typer.Option(help="Build the image from this checkout, relative to --out.")] = None,
    shards: Annotated[
        bool,
        typer.Option("--shards", help="Peers train on $SHARDS/peer-<id>.safetensors; the default of split 'shard'."),
    ] = False,
) -> None:
    """Write a compose file for all peers of a graph, with the graph at the services' addresses and monitoring."""
    from coordinator_free_bootstrap import load_graph
    from peer.deploy.compose import compose_file, write_compose

    graph = load_graph(path)
    shards = shards or graph.manifest.split == "shard"
    if out is None:
        typer.echo(compose_file(graph, build=build, shards=shards), nl=False)
    else:
        _tell(write_compose(graph, out, build=build, shards=shards))


@app.command(epilog="Example: peer deploy kubernetes graph.json --image registry/peer:1 --out k8s")
def kubernetes(
    path: GraphFile,
    out: Out,
    name: Annotated[str, typer.Option(help="Of the StatefulSet and its Service.")] = "peer",
    namespace: Annotated[str, typer.Option(help="Namespace, made if it is not there.")] = "coordinator-free",
    image: Annotated[str, typer.Option(help="The image, as the cluster pulls it.")] = "coordinator-free",
    cpu: Annotated[str, typer.Option(help="CPU that each peer requests.")] = "500m",
    memory: Annotated[str, typer.Option(help="Memory that each peer requests and may use at most.")] = "1Gi",
    storage: Annotated[str, typer.Option(help="Disk for each peer's state.")] = "2Gi",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs for each peer (nvidia.com/gpu); needs a CUDA image.")] = 0,
) -> None:
    """Write Kubernetes manifests and a secret with the peers' keys, made on the spot."""
    from coordinator_free_bootstrap import load_graph
    from peer.deploy.kubernetes import Cluster, write_kubernetes

    cluster = Cluster(name, namespace, image, cpu, memory, storage, gpus)
    _tell(write_kubernetes(load_graph(path), out, cluster))


@app.command(epilog="Example: peer deploy systemd graph.json --options '--listen 0.0.0.0:7400' --out devices")
def systemd(
    path: GraphFile,
    out: Out,
    program: Annotated[str, typer.Option(help="Path of peer on the devices.")] = "/opt/peer/bin/peer",
    memory: Annotated[str, typer.Option(help="MemoryMax of the unit.")] = "90%",
    options: Annotated[str, typer.Option(help="More options of peer run, for every device.")] = "",
) -> None:
    """Write a systemd unit and one archive per device, with that peer's own key, made on the spot."""
    from coordinator_free_bootstrap import load_graph
    from peer.deploy.systemd import write_systemd

    _tell(write_systemd(load_graph(path), out, program=program, memory=memory, options=options))


@app.command(epilog="Example: peer deploy keys graph.json --keys keys --out pinned.json")
def keys(
    path: GraphFile,
    out: Annotated[Path, typer.Option(help="The graph file with all keys pinned.")],
    folder: Annotated[Path, typer.Option("--keys", help="Folder for peer-<id>/peer-<id>.key and .pem.")],
) -> None:
    """Make a key for every peer that has none yet, and pin all of them in the graph file."""
    from coordinator_free_bootstrap import load_graph, save_graph
    from peer.deploy.keys import deal_keys

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    graph = deal_keys(load_graph(path), folder)
    save_graph(graph, out)
    _tell([out])


@app.command(epilog="Example: peer deploy collect out --out results")
def collect(
    directory: Annotated[Path, typer.Argument(help="graph.json and peer-<id>/ of all peers; only read.")],
    out: Out,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds without any running peer after which to report.")
    ] = 60,
    via: Annotated[Path | None, typer.Option(help="Program that copies like cp -r, for an --out of others.")] = None,
) -> None:
    """Wait until all peers are done, copy their results to one folder, and print the report; exit 1 if a peer is missing."""
    from rich.console import Console

    from peer.deploy.collect import collect as collected
    from peer.deploy.collect import wait_until_over
    from peer.deploy.ending import leave_on_signals
    from peer.observe.tables import report_view

    leave_on_signals()
    wait_until_over(directory, patience)
    found = collected(directory, out, via)
    Console().print(report_view(found.values))
    raise typer.Exit(0 if found.values["state"] == "complete" else 1)


@app.command(epilog="Example: peer deploy chaos --project coordinator-free --seed 7 --seconds 60")
def chaos(
    seed: Annotated[int, typer.Option(help="Which script of faults.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 60,
    project: Annotated[str | None, typer.Option(help="Compose project; default: that of this container.")] = None,
) -> None:
    """Kill, pause and cut the peers of a compose project, by a seeded script; needs the Docker socket and SDK."""
    import socket

    from coordinator_free_bootstrap.errors import UsageError
    from peer.deploy.chaos import Project, script, wreak
    from peer.deploy.ending import leave_on_signals

    leave_on_signals()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        import docker

        client = docker.from_env(timeout=300)  # s; an engine under load answers late, and half a fault would be left
        client.ping()
    except ImportError:
        raise UsageError("chaos: needs the Docker SDK; pip install docker") from None
    except docker.errors.DockerException as error:
        raise UsageError(f"chaos: no Docker engine answers ({error}); set DOCKER_HOST or DOCKER_GID") from error
    target = Project(client, project) if project else Project.of_this_container(client, socket.gethostname())
    fired = wreak(target, script(seed, seconds, list(target.peers())))
    typer.echo(", ".join(f"{kind} {count}" for kind, count in fired.items()))


def _tell(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(f"wrote {path}", err=True)
