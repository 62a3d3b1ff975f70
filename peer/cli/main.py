"""The command `peer`. Verbs print results to stdout and progress to stderr."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer.main
from typer.core import TyperGroup
from typing_extensions import override

from coordinator_free_bootstrap.errors import LocalProtocolError, PeerError, names_for
from coordinator_free_bootstrap.extras import named_packages
from coordinator_free_bootstrap.strict_json import printable_lines
from peer.cli.trace import Traceback, traceback_wanted
from peer.cli.usage import in_one_form
from peer.rings import VERBS, verb
from peer.store.system import StoppedBySignal

ERROR_LINE_CHARACTERS_MAX = 2000
_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": "rich"}


class Verbs(TyperGroup):
    """The verbs of `peer.rings.VERBS`, each imported when it is asked for."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of ``--help``."""
        return list(VERBS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb; None if there is none of this name."""
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(cmd_name)
        return self.commands.get(cmd_name)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the verb; errors have the form of all configuration errors."""
        with in_one_form():
            return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run a verb; errors of its options have the form of all configuration errors."""
        with in_one_form():
            return super().invoke(ctx)


def _command(name: str) -> Any:
    """Return a verb, or a group of verbs."""
    found = verb(name)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, **_PLAIN)
        single.command()(found)
        found = single
    # a group has a name of its own; `get_command` would add the options of completion to it
    command = typer.main.get_group(found) if found.info.name else typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    epilog="Exit codes: 0 success, 1 a peer failed, 2 usage, 10-14 config, graph, task, shard, policy, 20 identity, "
    "30-31 storage, 40 no answer from a peer, 50 a model diverged, 51 trained alone, "
    "52 removed from the federation, 53 a graph file that is too old, 70 internal error. What to do: docs/trouble.md.",
    **_PLAIN,
)


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
    traceback: Traceback = False,
) -> None:
    """Federated learning without a server: make graph files, run peers, report results."""
    context.with_resource(names_for("command line"))


def main() -> None:
    """Run the command line; a `PeerError` prints its message to stderr and ends with its exit code.

    Any other exception is a bug of this program: its trace is printed, and the exit code is 70.
    """
    try:
        with named_packages():
            app()
    except StoppedBySignal:
        sys.exit(0)
    except PeerError as error:
        if traceback_wanted() and (notes := getattr(error, "__notes__", ())):  # the trace in another process
            print(*notes, sep="\n", file=sys.stderr)
        elif traceback_wanted():
            traceback.print_exception(error)
        _say(str(error))
        sys.exit(error.exit_code)
    except Exception as error:  # no input of a user may cause this
        traceback.print_exception(error)
        _say(f"{type(error).__name__} in this program. This is a bug: please report it with the lines above.")
        sys.exit(LocalProtocolError.exit_code)


def _say(sentence: str) -> None:
    from rich.console import Console  # here: a peer without errors need not import it
    from rich.text import Text

    # as Text: names of files and fields may contain markup, and what a peer wrote may contain control characters
    shown = printable_lines(sentence, ERROR_LINE_CHARACTERS_MAX)
    Console(stderr=True, highlight=False).print(Text.assemble(("error:", "red"), f" {shown}"), soft_wrap=True)
