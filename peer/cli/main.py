"""The command `peer`: one file per verb, no logic here. Results go to stdout, talk to stderr."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.text import Text

from coordinator_free_bootstrap.errors import PeerError
from peer.cli import data, deploy, experiment, graph, task
from peer.cli.chaos import chaos
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
    help="Federated learning without a server: run peers, make graph files, look at results.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 ok, 1 a peer failed, 2 usage, 10-13 config, graph, task, shard, 20 identity, "
    "30-31 storage, 40 no neighbor, 70 a bug of ours.",
)
for verb in (run, health, testbed, chaos, status, keygen, report, evaluate, predict, doctor):
    app.command()(verb)
graph.app.command()(pin)
for name, group in (("graph", graph), ("data", data), ("task", task), ("experiment", experiment), ("deploy", deploy)):
    app.add_typer(group.app, name=name)


def main() -> None:
    """Run the command line; an error of ours is one sentence on stderr and its exit code."""
    try:
        app()
    except PeerError as error:
        # a Text, because names of files and fields may look like markup
        Console(stderr=True, highlight=False).print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True)
        sys.exit(error.exit_code)
