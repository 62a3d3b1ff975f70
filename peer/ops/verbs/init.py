"""`peer init`: start an own project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peer.ops.starts import Template, write_start


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to make.", show_default=False, readable=False)],
    template: Annotated[
        Template, typer.Option(help="What the task learns from, or that it has its own loop.")
    ] = "tabular",
) -> None:
    """Make a folder with a task that runs at once: data of four sites, a test, a graph file and a compose file.

    Example: peer init my_project --template images
    """
    write_start(name, template)
    typer.echo(f"made {name}; next: cd {name} && peer testbed graph.json")
