"""The file of `peer deploy --options`: options of `peer run` that all peers of a deployment get beside the graph file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap.errors import ConfigProblem, Option, UsageError
from peer.ops.deploy.task_file import WORKDIR, UserFile
from peer.runtime.local_options import complete_options
from peer.runtime.options_file import options_in, written_in

PLACES = ("state_dir", "certs", "insecure", "insecure_anywhere")  # that every target sets
IN_CONTAINERS = (*PLACES, "listen", "metrics", "shard", "data_root", "stay")
NAME = PurePosixPath("options.toml")


@dataclass(frozen=True)
class RunOptions(UserFile):
    """A file of options that `peer run` accepts, and their names."""

    names: frozenset[str]

    @property
    def words(self) -> list[str]:
        """The option of `peer run` that names the file in a container."""
        return ["--options", str(WORKDIR / self.path)]


def run_options(path: Path | None, given: Collection[str]) -> RunOptions | None:
    """Return the file of ``--options``; None if there is none.

    Args:
        path: of the file.
        given: options that the target sets itself.

    Raises:
        UsageError: `peer run` would refuse the file, or the target sets one of its options.
    """
    if path is None:
        return None
    options = options_in(path)
    for name in options.keys() & given:
        expected = "options that peer deploy does not set for each peer"
        raise UsageError(ConfigProblem(Option("options"), expected, f"{name} in {path}", "Remove it."))
    with written_in(path, options):
        complete_options(0, options)
    return RunOptions("options", NAME, path.read_bytes(), frozenset(options))
