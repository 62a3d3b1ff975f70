"""The command `peer`. Verbs print results to stdout and progress to stderr."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from coordinator_free_bootstrap.errors import LocalProtocolError, PeerError
from coordinator_free_bootstrap.strict_json import printable_lines
from peer.api.arguments import named_on_command_line
from peer.bed.verbs.chaos import HELP_OF_FAULTS, chaos
from peer.bed.verbs.testbed import testbed
from peer.cli import graph, task
from peer.cli.graph_pin import pin
from peer.cli.health import health
from peer.cli.keygen import keygen
from peer.cli.run import run
from peer.cli.trace import traceback_wanted, with_traceback_option
from peer.lab.verbs import experiment
from peer.ops.verbs import deploy
from peer.ops.verbs.doctor import doctor
from peer.store.system import StoppedBySignal
from peer.view.verbs.evaluate import evaluate, predict
from peer.view.verbs.export import export
from peer.view.verbs.report import report
from peer.view.verbs.status import status
from peer.view.verbs.watch import watch
from peer.zoo.verbs import data
from peer.zoo.verbs.list import list_names

ERROR_LINE_CHARACTERS_MAX = 2000

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 success, 1 a peer failed, 2 usage, 10-13 config, graph, task, shard, 20 identity, "
    "30-31 storage, 40 no answer from a peer, 50 a model diverged, 70 internal error.",
)
for verb in (run, health, testbed, chaos, status, watch, keygen, report, evaluate, predict, export, doctor):
    app.command(epilog=HELP_OF_FAULTS if verb is chaos else None)(verb)
app.command("list")(list_names)
graph.app.command()(pin)


def _print_version(wanted: bool) -> None:
    """Print the versions of program, wire, Python and torch, and end."""
    if wanted:
        from platform import python_version

        from peer import __version__
        from peer.core.messages import WIRE_VERSION

        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        typer.echo(f"peer {__version__}, wire version {WIRE_VERSION}, Python {python_version()}, torch {torch}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    versions: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of program, wire, Python and torch, and end.",
        ),
    ] = False,
) -> None:
    """Federated learning without a server: make graph files, run peers, report results."""
    context.with_resource(named_on_command_line())


for name, group in (("graph", graph), ("data", data), ("task", task), ("experiment", experiment), ("deploy", deploy)):
    app.add_typer(group.app, name=name)


def main() -> None:
    """Run the command line; a `PeerError` prints its message to stderr and ends with its exit code.

    Any other exception is a bug of this program: its trace is printed, and the exit code is 70.
    """
    try:
        with_traceback_option(app)()
    except StoppedBySignal:
        sys.exit(0)
    except PeerError as error:
        if traceback_wanted() and (notes := getattr(error, "__notes__", ())):  # the trace in another process
            print(*notes, sep="\n", file=sys.stderr)
        elif traceback_wanted():
            traceback.print_exception(error)
        _say(str(error))
        sys.exit(error.exit_code)
    except Exception as error:  # nothing that a user gives may lead here
        traceback.print_exception(error)
        _say(f"found {type(error).__name__} in this program; this is a bug: please report it with the lines above")
        sys.exit(LocalProtocolError.exit_code)


def _say(sentence: str) -> None:
    from rich.console import Console  # here: a peer without errors need not import it
    from rich.text import Text

    # as Text: names of files and fields may contain markup, and what a peer wrote may contain control characters
    shown = printable_lines(sentence, ERROR_LINE_CHARACTERS_MAX)
    Console(stderr=True, highlight=False).print(Text.assemble(("error:", "red"), f" {shown}"), soft_wrap=True)
