"""Write the man page of the command: all verbs, arguments and options, from the declarations that ``--help`` prints.

python docs/man.py peer.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from peer import __version__
from peer.cli.main import app

MARKUP = re.compile(r"\[/?[a-z ]*\]")  # of rich


def escaped(text: str) -> str:
    """Return a text for roff: hyphens that can be copied, and no line that begins with a request."""
    plain = MARKUP.sub("", text).replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in plain.splitlines())


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text, with a paragraph for each block of it."""
    for block in re.split(r"\n\s*\n", text.strip()):
        yield from (".PP", escaped(" ".join(block.split())))


def parameters(command: Any) -> Iterator[str]:
    """Yield a paragraph for each argument and option of a verb."""
    context = typer.Context(command, info_name="peer")
    for each in command.params:
        if (record := each.get_help_record(context)) is not None:
            name, text = record
            yield from (".TP", f"\\fB{escaped(name)}\\fR", escaped(" ".join((text or "").split())))


def sections(command: Any, name: str) -> Iterator[str]:
    """Yield the section of a verb, and those of the verbs below it."""
    names = command.list_commands(typer.Context(command)) if hasattr(command, "list_commands") else []
    if name == "peer" or not names:
        yield f".SH {escaped(name.upper() if name == 'peer' else name)}"
        yield from paragraphs(command.help or "")
        yield from parameters(command)
        yield from paragraphs(command.epilog or "")
    for each in names:
        yield from sections(command.get_command(typer.Context(command), each), f"{name} {each}")


def page() -> str:
    """Return the man page."""
    head = [
        f'.TH PEER 1 "" "coordinator-free {__version__}"',
        ".SH NAME",
        "peer, coordinator\\-free \\- federated learning without a server",
        ".SH SYNOPSIS",
        "\\fBpeer\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]",
    ]
    return "\n".join([*head, *filter(None, sections(get_command(app), "peer"))]) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
