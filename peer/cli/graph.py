"""`peer graph`: make, check and draw the graph file that all peers share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from coordinator_free_bootstrap import apply_settings, dump_graph, parse_manifest
from coordinator_free_bootstrap.errors import (
    ConfigProblem,
    Option,
    PeerError,
    ShardError,
    TaskError,
    UsageError,
    written_as,
)
from coordinator_free_bootstrap.generators import KIND, GraphOptions, kind_named
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.rates import problems
from coordinator_free_bootstrap.validation import counted
from peer.api.graph import Graph, check_run
from peer.cli.declared import takes_options
from peer.cli.graph_next import diff, next_file
from peer.cli.graph_pin import pin
from peer.cli.graph_sign import sign
from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import IN_KIND, Settings, names_settings, set_keys

if TYPE_CHECKING:
    import networkx as nx

app = typer.Typer(name="graph", help="Make, check and draw the graph file that all peers share.", no_args_is_help=True)

_LABELS_MAX = 100  # larger graphs are drawn as dots without ids

GraphFile = Annotated[
    Path, typer.Argument(metavar="GRAPH.JSON", help="The graph file.", show_default=False, readable=False)
]


@app.command(
    epilog="Example: peer graph make --kind erdos-renyi:p=0.5,seed=2 --peers 8 --set run.clusters=4 --out g.json"
)
@takes_options("drawn", GraphOptions, "kind", "peers", "base_port", "address_template")
@written_as(IN_KIND)
@names_settings
def make(
    *,
    drawn: GraphOptions,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.", readable=False)] = None,
) -> None:
    """Make a graph file: peers, addresses, edges, and the manifest of the run (its keys: peer graph keys).

    Which --set run.algorithm=NAME fits your data: docs/choosing.md.
    """
    if out is not None and out.exists():
        fix = "It may have pinned keys: delete it, or name another file."
        raise UsageError(ConfigProblem(Option("out"), "a new file", f"the existing {out}", fix))
    given = settings or []
    graph = Graph.make(
        **{**drawn, **kind_named(drawn.get("kind", KIND))},
        run=parse_manifest(apply_settings({}, given), ""),
    )
    check_run(graph, set_keys(given))
    if out is None:
        typer.echo(dump_graph(graph), nl=False)
    else:
        graph.save(out)
    typer.echo(f"{graph.name}: {counted(len(graph.edges), 'edge')}{f', written to {out}' if out else ''}", err=True)
    typer.echo(f"algorithm {graph.manifest.algorithm}; which one fits your data: docs/choosing.md", err=True)


@app.command(epilog="Example: peer graph keys fedspd")
def keys(
    algorithm: Annotated[str, typer.Argument(help="Algorithm whose keys run.options.* are listed too.")] = "dfca",
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
    """Check a graph file and summarize it; each problem names the field and what is allowed.

    Whose values the peers can solve for: peer privacy graph.
    """
    from peer.tasks.given_keys import warn_without_effect
    from peer.wire.address import undialable

    graph = Graph.load(path)
    facts = graph.check() | _private_facts(path, graph)
    warn_without_effect(graph.manifest, (), lambda warning: typer.echo(f"warning: {path}: {warning}", err=True))
    _warn_of_limits(path, graph)
    for problem in undialable(graph):
        typer.echo(f"warning: {path}: {problem}", err=True)
    _warn_of_certificates(path, graph)
    if as_json:
        print_json({"file": str(path), "valid": True, **facts}, indent=2)
        return
    from rich.console import Console  # here: a peer's process need not import it
    from rich.markup import escape
    from rich.table import Column, Table

    table = Table(Column("fact", overflow="fold"), Column("value", overflow="fold"), title=escape(f"{path}: valid"))
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else escape(str(value)))
    Console().print(table)
    typer.echo(f"whose values the peers can solve for: peer privacy graph {path}", err=True)


def _private_facts(path: Path, graph: Graph) -> dict[str, object]:
    """Return how much of a model travels where a part is private; only then is the task loaded.

    Raises:
        ConfigError: run.private_parameters does not fit the model.
    """
    if not graph.manifest.private_parameters:
        return {}
    from peer.learning.size import model_size

    try:
        size = model_size(graph)
    except (TaskError, ShardError) as error:
        typer.echo(f"warning: {path}: the bytes of a model that travel are unknown: {error}", err=True)
        return {}
    sizes = {"model_bytes": size.whole_bytes, "model_bytes_that_travel": size.sent_bytes}
    return sizes | {"private_tensors": list(size.private)}


def _warn_of_limits(path: Path, graph: Graph) -> None:
    """Warn of declared limits that do not fit the timeouts; only then is the task loaded, for the size of the model."""
    if not any(node.upload_limit or node.download_limit for node in graph.nodes):
        return
    from peer.learning.size import model_size

    try:
        found = list(problems(graph, model_size(graph).sent_bytes))
    except PeerError as error:
        found = [f"the limits were not compared with the timeouts, since the model's size is unknown: {error}"]
    for problem in found:
        typer.echo(f"warning: {path}: {problem}", err=True)


def _warn_of_certificates(path: Path, graph: Graph) -> None:
    """Warn of certificates that end soon, or cannot be read."""
    from peer.identity.expiry import ending_soon, ends_in

    try:
        found = ending_soon(ends_in(graph))
    except PeerError as error:
        found = [str(error)]
    for sentence in found:
        typer.echo(f"warning: {path}: {sentence}", err=True)


@app.command(epilog="Example: peer graph show graph.json --out graph.png")
def show(
    path: GraphFile,
    out: Annotated[
        Path | None, typer.Option(help="PNG to write. Default: the graph file's name with .png.", readable=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a graph as a PNG and list its peers with their neighbors."""
    graph, picture = Graph.load(path), out or path.with_suffix(".png")
    _draw(graph, picture)
    if as_json:
        rows = [
            {"peer_id": node.id, "address": node.address, "neighbors": graph.neighbors(node.id)} for node in graph.nodes
        ]
        print_json({"file": str(path), "drawing": str(picture), "peers": rows}, indent=2)
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
        raise UsageError(ConfigProblem(Option("out"), "a .png in a writable folder", f"{picture} ({error})")) from error


def _positions(drawn: nx.Graph) -> object:
    import networkx as nx

    start = nx.circular_layout(drawn)  # starting from a circle draws a ring as a ring
    return nx.spring_layout(drawn, pos=start, seed=0, method="force") if len(drawn) > 2 else start


app.command()(pin)
app.command()(sign)
app.command("next")(next_file)
app.command()(diff)
