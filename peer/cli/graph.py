"""`peer graph`: make, check and draw the graph file that all peers share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from coordinator_free_bootstrap import (
    Graph,
    Kind,
    apply_settings,
    digest,
    dump_graph,
    load_graph,
    make_graph,
    parse_manifest,
    save_graph,
)
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.validation import counted
from peer.cli.problem import AsJson, Settings, TaskOption, task_settings, warn_without_effect

if TYPE_CHECKING:
    import networkx as nx

app = typer.Typer(name="graph", help="Make, check and draw the graph file that all peers share.", no_args_is_help=True)

_LABELS_MAX = 100  # larger graphs are drawn as dots without ids

GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False)]


@app.command(
    epilog="Example: peer graph make --kind erdos-renyi --p 0.5 --peers 8 --seed 2 --set run.clusters=4 --out g.json"
)
def make(
    kind: Annotated[
        Kind, typer.Option(help="Kind of graph; a disconnected random graph is drawn again.")
    ] = "erdos-renyi",
    peers: Annotated[int, typer.Option(help="Number of peers, 2 or more; ids start at 0.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the graph; --set run.seed=N is the seed of the run.")] = 1,
    p: Annotated[float | None, typer.Option("--p", help="erdos-renyi: probability of an edge.")] = None,
    m: Annotated[int | None, typer.Option("--m", help="barabasi-albert: edges per new peer.")] = None,
    degree: Annotated[float | None, typer.Option(help="Average degree, instead of --p, --m or --radius.")] = None,
    radius: Annotated[
        float | None, typer.Option(help="geometric: radius in the unit square within which peers are neighbors.")
    ] = None,
    base_port: Annotated[int, typer.Option(help="Peer i listens on this port + i.")] = 7400,
    address_template: Annotated[
        str,
        typer.Option(
            help="Address of peer i, such as peer-{id}:7400. {id}: 0, 1, ...; {id+1}: 1, 2, ...; {port}: --base-port + i."
        ),
    ] = "127.0.0.1:{port}",
    task: TaskOption = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Make a graph file: peers, addresses, edges, and the manifest of the run (its keys: peer graph keys)."""
    if out is not None and out.exists() and not force:
        raise UsageError(f"--out {out}: found an existing file, which may have pinned keys; add --force to replace it")
    if kind == "erdos-renyi" and p is None and degree is None:
        degree = min(4.0, peers - 1)
    manifest = parse_manifest(apply_settings({}, task_settings(task, settings)), "--set")
    graph = make_graph(
        kind,
        peers,
        seed=seed,
        manifest=manifest,
        base_port=base_port,
        address_template=address_template,
        p=p,
        m=m,
        degree=degree,
        radius=radius,
    )
    _check_names(graph)
    warn_without_effect(manifest, task_settings(task, settings), lambda warning: None)
    if out is None:
        typer.echo(dump_graph(graph), nl=False)
    else:
        save_graph(graph, out)
    typer.echo(f"{graph.name}: {counted(len(graph.edges), 'edge')}{f', written to {out}' if out else ''}", err=True)


def _check_names(graph: Graph) -> None:
    """Refuse an unknown algorithm, task, split or model, and options that they do not have.

    Raises:
        ConfigError: the algorithm is wrong.
        TaskError: task, split or model are wrong.
    """
    from peer.algorithms.registry import check_algorithm
    from peer.tasks.loading import check_names

    check_names(graph.manifest)
    check_algorithm(graph)


@app.command(epilog="Example: peer graph keys --algorithm fedspd")
def keys(
    algorithm: Annotated[str, typer.Option(help="Algorithm whose keys run.options.* are listed too.")] = "dfca",
) -> None:
    """List the manifest keys for --set, one a line: key = default: meaning."""
    from peer.algorithms.registry import algorithm_named

    for name, default, meaning in [
        *described(Manifest, "run"),
        *described(algorithm_named(algorithm).Options, "run.options"),
    ]:
        typer.echo(f"{name} = {default}: {meaning}")


def described(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, meaning) of the fields of a settings class, also of nested ones."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from described(field.annotation, f"{prefix}.{name}")
        else:
            default = json.dumps(field.get_default(call_default_factory=True))
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            yield f"{prefix}.{name}", default, "; ".join(filter(None, [field.description, ", ".join(choices)]))


@app.command(epilog="Example: peer graph check graph.json --json")
def check(path: GraphFile, as_json: AsJson = False) -> None:
    """Check a graph file and summarize it; each problem names the field and what is allowed."""
    graph = load_graph(path)
    _check_names(graph)
    warn_without_effect(graph.manifest, [], lambda warning: typer.echo(f"warning: {path}: {warning}", err=True))
    facts = _facts(graph)
    if as_json:
        typer.echo(json.dumps({"file": str(path), "valid": True, **facts}, indent=2))
        return
    from rich.console import Console  # here: a peer's process need not import it
    from rich.markup import escape
    from rich.table import Column, Table

    table = Table(Column("fact", overflow="fold"), Column("value", overflow="fold"), title=escape(f"{path}: valid"))
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else escape(str(value)))
    Console().print(table)


@app.command(epilog="Example: peer graph show graph.json --out graph.png")
def show(
    path: GraphFile,
    out: Annotated[Path | None, typer.Option(help="PNG to write. Default: the graph file's name with .png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a graph as a PNG and list its peers with their neighbors."""
    graph, picture = load_graph(path), out or path.with_suffix(".png")
    _draw(graph, picture)
    if as_json:
        rows = [
            {"peer_id": node.id, "address": node.address, "neighbors": graph.neighbors(node.id)} for node in graph.nodes
        ]
        typer.echo(json.dumps({"file": str(path), "drawing": str(picture), "peers": rows}, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    columns = (Column(name, overflow="fold") for name in ("peer", "address", "degree", "neighbors"))
    table = Table(*columns, title=escape(graph.name or str(path)))
    for node in graph.nodes:
        neighbors = ", ".join(map(str, graph.neighbors(node.id)))
        table.add_row(str(node.id), escape(node.address or "dials only"), str(graph.degree(node.id)), neighbors)
    Console().print(table)
    typer.echo(f"drawing: {picture}", err=True)


def _facts(graph: Graph) -> dict[str, Any]:
    degrees = [graph.degree(peer_id) for peer_id in graph.ids]
    return {
        "peers": len(graph.nodes),
        "edges": len(graph.edges),
        "degree_min": min(degrees),
        "degree_mean": sum(degrees) / len(degrees),
        "degree_max": max(degrees),
        "diameter_at_most": graph.diameter_bound,
        "connected_parts": len(graph.components),
        "dials_only_peers": sum(node.dials_only for node in graph.nodes),
        "relayed_edges": len(graph.via),
        "pinned_peers": sum(bool(node.pins) for node in graph.nodes),
        "algorithm": graph.manifest.algorithm,
        "clusters": graph.manifest.clusters,
        "rounds": graph.manifest.rounds,
        "pace": graph.manifest.pace,
        "task": graph.manifest.task,
        "graph_digest": graph.digest,
        "manifest_digest": digest(graph.manifest),
    }


def _draw(graph: Graph, picture: Path) -> None:
    """Write a drawing of the graph, laid out by the spring model."""
    import networkx as nx
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = graph.to_networkx()
    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    few = len(graph.nodes) <= _LABELS_MAX
    nx.draw_networkx(
        drawn,
        _positions(drawn),
        ax=axes,
        with_labels=few,
        node_size=300 if few else 20,
        node_color="#9ecae1",
        edge_color="#999999",
        font_size=8,
    )
    axes.set_title(graph.name or counted(len(graph.nodes), "peer"), parse_math=False)
    axes.set_axis_off()
    try:
        figure.savefig(picture, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the file's extension
        raise UsageError(f"--out: found {picture} ({error}); allowed: a .png in a writable folder") from error


def _positions(drawn: nx.Graph) -> Any:
    import networkx as nx

    start = nx.circular_layout(drawn)  # starting from a circle draws a ring as a ring
    return nx.spring_layout(drawn, pos=start, seed=0, method="force") if len(drawn) > 2 else start
