"""Tasks whose samples are dealt to the peers by the split of the manifest."""

from __future__ import annotations

from typing import Self

from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.task import Task


class DealtTask(Task):
    """A task that the split and the model of the manifest have an effect on."""

    @property
    def pool_names(self) -> tuple[str, ...] | None:
        """Names of the labels of all samples, before a split renames those of some peers; None if unknown."""
        return None

    @property
    def open_options(self) -> tuple[str, ...]:
        """Options that say what is in the data of a peer, as far as the manifest leaves them to these data."""
        return ()

    def dealt(self, manifest: Manifest, peers: int) -> Self:
        """Return this task for the peers of a run.

        Raises:
            TaskError: the name or an option of split or model is wrong.
        """
        return self
