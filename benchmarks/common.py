"""What the benchmark scripts share: the machine in a line, tables on the screen and as markdown."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def machine() -> str:
    """Return the machine in a line: cores, memory, processor, Python."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory_gb = round(pages * size / (1 << 30))
    return f"{os.cpu_count()} cores, {memory_gb} GB, {platform.machine()}, Python {platform.python_version()}"


def command() -> str:
    """Return the command that runs this benchmark again."""
    script = Path(sys.argv[0])
    return " ".join(["python", f"{script.parent.name}/{script.name}", *sys.argv[1:]])


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], markdown: Path | None) -> None:
    """Print a table, and write it as markdown with date, machine and command where asked for."""
    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)
    if markdown is None:
        return
    load = os.getloadavg()[0]
    lines = [
        f"### {title}",
        "",
        f"{datetime.date.today().isoformat()}; {machine()}; load average {load:.1f}; `{command()}`",
        "",
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
    ]
    markdown.parent.mkdir(parents=True, exist_ok=True)
    markdown.write_text("\n".join(lines), encoding="utf-8")
