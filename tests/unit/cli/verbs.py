"""The verbs that work on data, tasks and model files, called in this process."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from peer.cli import task
from peer.view.verbs import evaluate
from peer.zoo.verbs import data

app = typer.Typer()
app.add_typer(data.app, name="data")
app.add_typer(task.app, name="task")
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(evaluate.predict)


def peer(*arguments: object) -> str:
    """Run a verb and return its standard output; errors are raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
