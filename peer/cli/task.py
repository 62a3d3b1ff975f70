"""`peer task`: try a task of one's own before a run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from peer.cli.problem import AsJson, DataRoot, GraphOption, PeersOption, Settings

app = typer.Typer(name="task", help="Try a task of your own before a run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Try a task of your own before a run."""


@app.command(epilog="Example: peer task check my_task.py:task --peer 2")
def check(
    task: Annotated[str, typer.Argument(metavar="FILE.py:OBJECT", help="Or the name of a built-in or installed task.")],
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Whose shard to try.")] = 0,
    peers: PeersOption = None,
    graph: GraphOption = None,
    settings: Settings = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Train one step, evaluate, encode and decode the model, and say in words what is wrong."""
    from peer.cli.problem import resolve
    from peer.learning.check import check_task
    from peer.tasks.loading import load_task

    manifest, count = resolve(graph, task, None, peers, settings)
    loaded = load_task(manifest, count, data_root=data_root)
    findings = check_task(loaded, peer_id, learning_rate=manifest.learning_rate, batch_size=manifest.batch_size)
    if as_json:
        typer.echo(json.dumps({"task": task, "works": True, **{f.what: f.seen for f in findings}}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("works", "seen", title=escape(task))
    for finding in findings:
        table.add_row(finding.what, escape(finding.seen))
    Console().print(table)
