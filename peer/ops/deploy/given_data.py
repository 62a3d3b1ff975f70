"""The data that `peer deploy --data SOURCE[:PATH]` gives to peers, read-only: a folder or file of a machine, or a volume.

PATH is where a peer finds them: relative to the folder in which it starts, or absolute; default `DATA`. ``{id}`` in SOURCE and
PATH gives each peer its own data and no other.
"""

from __future__ import annotations

import logging
import stat
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from coordinator_free_bootstrap.templates import fill_template
from coordinator_free_bootstrap.user_file import file_of
from peer.ops.deploy.task_file import WORKDIR
from peer.ops.deploy.text import mount
from peer.tasks.effect import local_options
from peer.tasks.sources import source_named

DATA = "data"
RESERVED = ("/", "/graph", "/keys", "/state", "/tmp", WORKDIR, f"{WORKDIR}/options.toml")  # of a peer's container

log = logging.getLogger("peer")


@dataclass(frozen=True)
class GivenData:
    """Where the data are, and where each peer finds them; both may have ``{id}``.

    Args:
        source: path of a folder or file, or name of a volume.
        path: in the peer's container.
        builtin: whether a built-in task reads them, which `peer run` names with an option.
    """

    source: str
    path: str
    builtin: bool

    @classmethod
    def of(cls, text: str, graph: Graph) -> GivenData:
        """Return the data of ``--data``.

        Raises:
            UsageError: the task of the graph does not read them, or a path cannot be used.
            GraphError: another placeholder than ``{id}``, ``{id+N}`` or ``{id-N}``.
        """
        task = graph.manifest.task
        named = source_named(task) is not None
        if named and "data_root" not in local_options(task):
            raise UsageError(ConfigProblem.without_effect(Option("data"), text, f"task {task!r} does not use it"))
        source, _, path = text.partition(":")
        data = cls(source, path or DATA, named)
        if data.builtin and "{" in data.path:
            raise UsageError(f"--data: expected one PATH for all peers with task {task!r}, got {text!r}")
        if not source.strip("/"):
            raise UsageError(f"--data: expected SOURCE or SOURCE:PATH, such as ./sites:data, got {text!r}")
        for target in map(data.target, graph.ids):
            if ".." in PurePosixPath(target).parts or target in RESERVED:
                raise UsageError(
                    f"--data: expected a PATH below {WORKDIR}, where peers start, or another that is none of "
                    f"{', '.join(RESERVED)}, got {target} in {text!r}"
                )
            for file in filter(None, map(file_of, (task, graph.manifest.algorithm))):
                if PurePosixPath(WORKDIR, file).is_relative_to(target):
                    raise UsageError(f"--data: expected another PATH, got {text!r}, which hides the file {file}")
        data.for_peer(graph.ids[0])
        return data

    @property
    def volume(self) -> bool:
        """Whether the source is a volume: it has no slash."""
        return "/" not in self.source

    @property
    def options(self) -> list[str]:
        """The options of `peer run` with which a built-in task reads the data; a task file finds them by itself."""
        return ["--data-root", str(PurePosixPath(WORKDIR, self.path))] if self.builtin else []

    def for_peer(self, peer_id: int) -> str:
        """Return the source of one peer."""
        return fill_template(self.source, Option("data"), id=peer_id)

    def target(self, peer_id: int) -> str:
        """Return the absolute path in one peer's container."""
        return str(PurePosixPath(WORKDIR, fill_template(self.path, Option("data"), id=peer_id)))

    def mount(self, peer_id: int) -> str:
        """Return the mount of one peer, for Compose and Swarm."""
        return mount("volume" if self.volume else "bind", self.for_peer(peer_id), self.target(peer_id))


def data_here(text: str, graph: Graph) -> GivenData:
    """Return the data of ``--data`` on this machine; what is below the working directory needs no slash.

    What the image's user cannot read gives a warning.

    Raises:
        UsageError, GraphError: see `GivenData.of`; or a path does not exist.
    """
    data = GivenData.of(text, graph)
    here = replace(data, source=str(Path(data.source).absolute()))
    places = [Path(here.for_peer(peer_id)) for peer_id in graph.ids]
    if data.volume and not all(place.exists() for place in places):
        return data
    for place in dict.fromkeys(places):
        if not place.exists():
            fix = "Make it, or name a volume, without a slash."
            raise UsageError(ConfigProblem(Option("data"), f"an existing {place}", "none", fix))
        needed = stat.S_IROTH | (stat.S_IXOTH if place.is_dir() else 0)
        if place.stat().st_mode & needed != needed:
            log.warning("--data: the containers' user 10001 cannot read %s; let it, for example by chmod o+rX", place)
    return here


def data_on_nodes(text: str, graph: Graph) -> GivenData:
    """Return the data of ``--data`` on other machines, where a folder has an absolute path.

    Raises:
        UsageError, GraphError: see `GivenData.of`; or a path is relative.
    """
    data = GivenData.of(text, graph)
    if not data.volume and not (data.source.startswith("/") and ".." not in PurePosixPath(data.source).parts):
        raise UsageError(
            f"--data: expected an absolute path that is valid on every node, or a volume, got {data.source}"
        )
    return data
