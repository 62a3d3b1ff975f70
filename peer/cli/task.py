"""`peer task`: test a task before a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from peer.cli.json_output import AsJson, print_json
from peer.cli.problem import Problem, takes_problem

app = typer.Typer(name="task", help="Test your own task before a run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Test your own task before a run."""


@app.command(epilog="Example: peer task check my_task.py:task --peer 2")
@takes_problem
def check(
    problem: Problem,
    task: Annotated[str, typer.Argument(metavar="FILE.py:OBJECT", help="Or the name of a built-in or installed task.")],
    peer_id: Annotated[int, typer.Option("--peer", min=0, help="Peer whose shard is used.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train one step, evaluate, encode and decode the model, and report what works and what is wrong."""
    from peer.algorithms.registry import algorithm_named
    from peer.learning.check import check_task

    manifest, _, loaded = replace(problem, settings=[f"run.task={task}", *(problem.settings or [])]).load()
    findings = check_task(
        loaded,
        peer_id,
        learning_rate=manifest.learning_rate,
        batch_size=manifest.batch_size,
        unit=manifest.local_unit,
        travelling=partial(algorithm_named(manifest.algorithm).travelling, manifest),
    )
    if as_json:
        print_json({"task": task, "works": True, **{f.what: f.seen for f in findings}})
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("works", "result", title=escape(task))
    for finding in findings:
        table.add_row(finding.what, escape(finding.seen))
    Console().print(table)
