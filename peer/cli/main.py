"""The command `peer`. Verbs print results to stdout and progress to stderr."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.text import Text

from coordinator_free_bootstrap.errors import PeerError
from peer.cli import data, deploy, experiment, graph, task
from peer.cli.chaos import HELP_OF_FAULTS, chaos
from peer.cli.doctor import doctor
from peer.cli.evaluate import evaluate, predict
from peer.cli.graph_pin import pin
from peer.cli.health import health
from peer.cli.keygen import keygen
from peer.cli.report import report
from peer.cli.run import run
from peer.cli.status import status
from peer.cli.testbed import testbed

app = typer.Typer(
    help="Federated learning without a server: make graph files, run peers, report results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 success, 1 a peer failed, 2 usage, 10-13 config, graph, task, shard, 20 identity, "
    "30-31 storage, 40 no answer from a peer, 70 internal error.",
)
for verb in (run, health, testbed, chaos, status, keygen, report, evaluate, predict, doctor):
    app.command(epilog=HELP_OF_FAULTS if verb is chaos else None)(verb)
graph.app.command()(pin)
for name, group in (("graph", graph), ("data", data), ("task", task), ("experiment", experiment), ("deploy", deploy)):
    app.add_typer(group.app, name=name)


def main() -> None:
    """Run the command line; a `PeerError` prints its message to stderr and ends with its exit code."""
    try:
        app()
    except PeerError as error:
        # as Text: names of files and fields may contain markup
        Console(stderr=True, highlight=False).print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        sys.exit(error.exit_code)
