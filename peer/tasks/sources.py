"""Tasks by name whose samples the peers of a run share: the data sets of the zoo, and of other installed packages."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from coordinator_free_bootstrap.installed import named
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.task import Task

GROUP = "coordinator_free.data_sets"


class DataSource(ABC):
    """A task by name: its samples are dealt to the peers, or replaced by the file or folder of a device."""

    @property
    @abstractmethod
    def local_options(self) -> frozenset[str]:
        """Which of ``--data-root``, ``--download`` and ``--shard`` it uses."""

    @property
    @abstractmethod
    def reads_files(self) -> bool:
        """Whether it needs a data root."""

    @abstractmethod
    def check(self, manifest: Manifest) -> None:
        """Check the names of split and model, and the keys of all options; no data are read.

        Raises:
            TaskError: an unknown name or option.
        """

    @abstractmethod
    def dealt(self, manifest: Manifest, peers: int, data_root: Path | None, download: bool) -> Task:
        """Return the task with the samples that the peers of a run share.

        Raises:
            TaskError: unknown name or option, or missing files.
        """

    @abstractmethod
    def of_device(self, manifest: Manifest, path: Path) -> Task:
        """Return the task with a device's own file or folder.

        Raises:
            ShardError, TaskError: the file or folder is wrong, or of another task.
        """

    @abstractmethod
    def preload(self, manifest: Manifest, peers: int, data_root: Path | None) -> None:
        """Load and split the samples once, so that processes forked afterwards share their memory."""

    @abstractmethod
    def make_model(self, manifest: Manifest, sample_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Return a new model of the manifest, or the default one; no data are read."""


@functools.cache  # reading the metadata of all installed packages costs a forked peer 2 MB
def sources() -> Mapping[str, DataSource]:
    """Return all sources by name.

    Raises:
        ConfigError: an installed package is wrong, or has a name that another one has.
    """
    return named(GROUP, "data set", DataSource)


def source_named(task: str) -> DataSource | None:
    """Return the source of a name (run.task); None of a user's task: a file, or one of an installed package."""
    return None if ":" in task else sources().get(task)
