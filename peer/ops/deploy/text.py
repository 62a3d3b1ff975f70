"""Templates with ``%{name}``: the ``$`` of shells, Compose and systemd needs no escape; ``%%`` is a percent sign."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from coordinator_free_bootstrap.errors import Option, UsageError
from coordinator_free_bootstrap.ordinary_file import unwritable

TEMPLATES = files("peer.ops.deploy") / "templates"


def check_image(name: str) -> None:
    """Check the name of an image.

    Raises:
        UsageError: no registry has such a name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_./:@-]+", name):
        raise UsageError(f"--image: expected the name of an image, such as registry.example/peer:1, got {name!r}")


class _PercentTemplate(Template):
    delimiter = "%"


def fill(template: str, **values: object) -> str:
    """Return a template of this package with its names replaced."""
    return _PercentTemplate((TEMPLATES / template).read_text()).substitute(values)


def verbatim(template: str) -> str:
    """Return a template without names to replace."""
    return (TEMPLATES / template).read_text()


def mount(kind: str, source: str, target: str) -> str:
    """Return a read-only mount of Compose and Swarm; unlike the short form it takes any name, and makes no missing folder."""
    source, target = (json.dumps(text.replace("$", "$$")) for text in (source, target))
    return f"{{type: {kind}, source: {source}, target: {target}, read_only: true}}"


def write(path: Path, text: str | bytes, mode: int = 0o644) -> Path:
    """Write a file and the folders above it; return its path.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=mode)
        path.chmod(mode)  # before the content: other users must never be able to read a key
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    except OSError as error:
        raise UsageError(unwritable(Option("out"), path, error, "Name another folder.")) from error
    return path
