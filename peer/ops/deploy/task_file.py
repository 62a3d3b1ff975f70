"""The user's files that a manifest names, of a task and of an algorithm: what `peer deploy` copies to each peer.

The manifest keeps their relative paths, which are part of the digest that neighbors compare. So each peer's working directory is
a folder in which the files have these paths.
"""

from __future__ import annotations

import ast
import logging
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.ordinary_file import content_of, unreadable
from coordinator_free_bootstrap.user_file import file_of

BYTES_MAX = 1 << 20  # limit of a ConfigMap in the Kubernetes API; code is smaller, data belong in shards
WORKDIR = "/task"  # of a peer with files of the user or data, in a container
OWN_PACKAGES = {"peer", "coordinator_free_bootstrap"}  # beside a task file in a checkout

log = logging.getLogger("peer")


@dataclass(frozen=True)
class UserFile:
    """A user's file: the key of the manifest that names it, its relative path, and its content."""

    key: str
    path: PurePosixPath
    content: bytes

    @property
    def what(self) -> str:
        """Its kind in names of objects: ``task``, ``algorithm`` or ``options``."""
        return self.key.removeprefix("run.")

    def limited(self, bytes_max: int, holder: str) -> None:
        """Refuse a file that does not fit into what holds it.

        Raises:
            UsageError: it is larger than ``bytes_max``.
        """
        if len(self.content) > bytes_max:
            raise UsageError(
                f"{self.key}: {self.path}: expected at most {bytes_max} bytes, the size of {holder}, got "
                f"{len(self.content)}. "
                f"Keep data out of the {self.what} file, or install it as a package in the image."
            )


def user_files(graph: Graph) -> tuple[UserFile, ...]:
    """Return the files that the manifest names, read below the working directory; each file once.

    A file that is larger than `BYTES_MAX` or imports modules beside it gives a warning.

    Raises:
        UsageError: a path is absolute, leaves the working directory, or cannot be read.
    """
    named = (("run.task", graph.manifest.task), ("run.algorithm", graph.manifest.algorithm))
    found = {path: key for key, value in reversed(named) if (path := file_of(value))}
    return tuple(_read(key, path) for path, key in reversed(found.items()))


def _read(key: str, text: str) -> UserFile:
    path, what = PurePosixPath(text), key.removeprefix("run.")
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(
            f"{key}: expected a relative path without .., which is valid on every device, got "
            f"{text!r}. Make the graph file again in the folder of the {what} file."
        )
    try:
        content = content_of(Path(path))
    except OSError as error:
        fix = "Run peer deploy in the folder from which the path is valid."
        raise UsageError(unreadable(key, error, fix, f"a file at {text}")) from error
    if len(content) > BYTES_MAX:
        log.warning(
            "the %s file is large: every peer gets a copy, and data belong in shard files: %s, %d bytes",
            what,
            path,
            len(content),
        )
    if beside := _imports_beside(Path(path), content):
        log.warning(
            "the %s file imports modules that are not deployed with it; put their code into the file, or install them on every "
            "device: %s imports %s",
            what,
            path,
            ", ".join(beside),
        )
    return UserFile(key, path, content)


def _imports_beside(path: Path, content: bytes) -> list[str]:
    """Return the modules in the folder of a file that it imports, sorted; [] if the file is not Python."""
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
