"""`peer doctor`: check whether this machine can run a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    neighbors: Annotated[
        Path | None, typer.Option("--neighbors", help="Graph file; also check the addresses in it.")
    ] = None,
    peer_id: Annotated[
        int | None, typer.Option("--id", min=0, help="Check only the port and the neighbors of this peer.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Folder on the disk to check.", show_default="the temporary directory"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check Python, torch, device, clock, disk, ports and neighbors; exit 1 if a check fails.

    Example: peer doctor --neighbors graph.json --id 3
    """
    from dataclasses import asdict

    from peer.observe.doctor import examine

    checks = examine(graph_path=neighbors, peer_id=peer_id, state_dir=state_dir, device=device)
    healthy = all(check.level != "fail" for check in checks)
    if json:
        import json as json_library

        rows = [asdict(check) for check in checks]
        typer.echo(json_library.dumps({"healthy": healthy, "checks": rows}, indent=2))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from coordinator_free_bootstrap.strict_json import printable_lines
        from peer.observe.tables import LINE_CHARACTERS_MAX

        table = Table("check", "", "found", "what to do", header_style="bold")
        for check in checks:
            mark = f"[{_STYLES[check.level]}]{check.level}[/]"
            found = printable_lines(check.found, LINE_CHARACTERS_MAX)
            table.add_row(escape(check.name), mark, escape(found), escape(check.fix))
        Console().print(table)
    if not healthy:
        raise typer.Exit(1)
