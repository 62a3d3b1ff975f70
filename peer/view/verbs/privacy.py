"""`peer privacy`: what a run tells of its peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import Problem, takes_problem

if TYPE_CHECKING:
    from peer.tasks.task import Task

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


@app.command(epilog="Example: peer privacy leak out")
@takes_problem
def leak(
    problem: Problem,
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="The --out of a testbed, or a state directory.", readable=False)
    ],
    shard: Annotated[
        Path | None, typer.Option(help="Shard file of the peer, as of peer run.", show_default=False, readable=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well the loss of a model that was sent tells training samples from test samples, by round and peer.

    The area under the ROC curve (AUC), with its interval of 95 %: 0.5 tells nothing, 1 tells every training sample. It is a
    simple attack, so a low number excludes no better one. A run keeps the models of its last round; with keep_sent = true
    (peer run --options FILE) those of each round. Report and model card then show the last round's number.
    """
    from coordinator_free_bootstrap.errors import PeerError
    from peer.view.models.saved import SavedModel
    from peer.view.privacy.leak import measure
    from peer.view.state.leaks import Leak
    from peer.view.state.run_files import RunFiles

    def load(saved: SavedModel) -> Task:
        known = saved.metadata.get("peers", "")
        given = problem
        if problem.graph is None and known.isdigit():  # the first of equal keys: a given one wins
            given = replace(problem, settings=[f"peers={known}", *(problem.settings or [])])
        return given.load(saved.manifest() if problem.names_task else saved.located(), shard)[2]

    found: dict[int, list[Leak]] = {}
    failed: dict[int, PeerError] = {}
    for each in RunFiles.read(directory).peers:
        try:
            found[each.peer_id] = measure(each.state_dir, load, each.peer_id)
        except PeerError as error:
            failed[each.peer_id] = error
            typer.echo(f"peer {each.peer_id}: not measured: {error}", err=True)
    if failed and not found:
        raise next(iter(failed.values()))
    if as_json:
        print_json({"peers": [{"peer_id": peer, "models": rows} for peer, rows in found.items()]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "peer", "round", "slot", "AUC", "95 %", "training samples", "test samples", title="by the loss of sent models"
    )
    for peer, rows in found.items():
        for row in rows:
            interval = f"{row['low']:.3f} to {row['high']:.3f}"
            cells = (
                peer,
                row["round_index"] + 1,
                row["slot"],
                f"{row['auc']:.3f}",
                interval,
                row["train"],
                row["test"],
            )
            table.add_row(*map(str, cells))
    Console().print(table)


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(ConfigProblem(Option("curious"), "ids with commas, such as 3,4", repr(text))) from None
