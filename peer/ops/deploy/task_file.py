"""The user's task file that a manifest names: what `peer deploy` copies to each peer, and what it warns of.

The manifest keeps its relative path, which is part of the digest that neighbors compare. So each peer's working directory is a
folder in which the file has that path.
"""

from __future__ import annotations

import ast
import logging
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.ordinary_file import content_of

BYTES_MAX = 1 << 20  # limit of a ConfigMap in the Kubernetes API; code is smaller, data belong in shards
WORKDIR = "/task"  # of a peer with a task file or data, in a container
OWN_PACKAGES = {"peer", "coordinator_free_bootstrap"}  # beside a task file in a checkout

log = logging.getLogger("peer")


@dataclass(frozen=True)
class TaskFile:
    """A task file: its relative path, as the manifest names it, and its content."""

    path: PurePosixPath
    content: bytes


def task_file(graph: Graph) -> TaskFile | None:
    """Return the task file that the manifest names, read below the working directory; None for a task without a file.

    A file that is larger than `BYTES_MAX` or imports modules beside it gives a warning.

    Raises:
        UsageError: the path is absolute, leaves the working directory, or cannot be read.
    """
    text, colon, _ = graph.manifest.task.rpartition(":")
    if not colon:
        return None
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(
            f"run.task: found {graph.manifest.task!r}; allowed for peer deploy: a relative path without .., which is valid on "
            "every device; make the graph file again in the folder of the task file, with --task FILE.py:OBJECT"
        )
    try:
        content = content_of(Path(path))
    except OSError as error:
        raise UsageError(
            f"run.task: {text} cannot be read ({error.strerror or error}); run peer deploy in the folder from which the path is "
            "valid"
        ) from error
    if len(content) > BYTES_MAX:
        log.warning(
            "the task file is large: every peer gets a copy, and data belong in shard files: %s, %d bytes",
            path,
            len(content),
        )
    if beside := _imports_beside(Path(path), content):
        log.warning(
            "the task file imports modules that are not deployed with it; put their code into the task file, or install "
            "them on every device: %s imports %s",
            path,
            ", ".join(beside),
        )
    return TaskFile(path, content)


def _imports_beside(path: Path, content: bytes) -> list[str]:
    """Return the modules in the folder of a task file that it imports, sorted; [] if the file is not Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update([node.module] if node.module else [alias.name for alias in node.names])
    modules = {name.partition(".")[0] for name in names}
    folder = path.parent
    modules -= OWN_PACKAGES
    return sorted(name for name in modules if (folder / f"{name}.py").is_file() or (folder / name).is_dir())
