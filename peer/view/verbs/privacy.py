"""`peer privacy`: what a run tells of its peers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.cli.json_output import AsJson, print_json

app = typer.Typer(name="privacy", help="Say what a run tells of its peers.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Say what a run tells of its peers."""


@app.command(epilog="Example: peer privacy graph graph.json --rounds 10 --curious 3,4")
def graph(
    graph_file: Annotated[Path, typer.Argument(metavar="GRAPH.JSON", help="Graph file of a run.", readable=False)],
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of averaging. Default: run.rounds.")] = None,
    curious: Annotated[
        str | None, typer.Option(metavar="ID,ID", help="Peers that share what they receive. Default: each peer alone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whose values peers can solve for from the models that reach them, as far as averaging is linear.

    A value is a peer's update, where it changes little from round to round. Neighbors see it in any case; averaging carries it
    to others too, and the equations of several rounds can be solved. Noise (run.privacy), clipping, encodings, sitting out and
    clusters make it harder; their effect is not computed.
    """
    from coordinator_free_bootstrap import load_graph
    from peer.view.privacy.solvable import Averaging

    read = load_graph(graph_file)
    count = rounds or read.manifest.rounds
    groups = [_ids(curious)] if curious is not None else [(peer,) for peer in read.ids]
    for peer in groups[0] if curious is not None else ():
        read.node(peer)
    averaging = Averaging(read)
    found = [averaging.solved_by(group, count) for group in groups]
    if as_json:
        rows = [
            {"curious": s.curious, "solved": s.peers, "beyond_neighbors": s.beyond, "equations": s.equations}
            for s in found
        ]
        print_json({"rounds": count, "peers": len(read.ids), "groups": rows})
        return
    from rich.console import Console
    from rich.table import Column, Table

    columns = ("curious", "values of", "of which no neighbor", "independent equations")
    table = Table(*(Column(name, overflow="fold") for name in columns), title=f"solved for in {count} rounds")
    for s in found:
        table.add_row(*(", ".join(map(str, ids)) or "-" for ids in (s.curious, s.peers, s.beyond)), str(s.equations))
    Console().print(table)


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(ConfigProblem(Option("curious"), "ids with commas, such as 3,4", repr(text))) from None
