"""File names in a state directory: ``peer run --state-dir`` and ``DIR/peer-<id>`` of a testbed have the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.store.files import storage_errors


@dataclass(frozen=True)
class StateDir:
    """Paths in the state directory of one peer; `create` makes the directories."""

    root: Path

    @classmethod
    def of_peer(cls, directory: Path, peer_id: int) -> StateDir:
        """Return the state directory of a peer in the directory of a testbed."""
        return cls(Path(directory) / f"peer-{peer_id}")

    @property
    def history(self) -> Path:
        """The run history: one JSON object per line."""
        return self.root / "history.jsonl"

    @property
    def summary(self) -> Path:
        """The result of a finished run."""
        return self.root / "summary.json"

    @property
    def log(self) -> Path:
        """The log file, when logging goes to a file."""
        return self.root / "peer.log"

    @property
    def checkpoints(self) -> Path:
        """The directory of `peer.store.checkpoint.CheckpointStore`."""
        return self.root / "checkpoints"

    @property
    def models(self) -> Path:
        """The directory of the final models."""
        return self.root / "models"

    def cluster_model(self, cluster_index: int) -> Path:
        """The final model of one cluster."""
        return self.models / f"cluster-{cluster_index}.safetensors"

    @property
    def personalized_model(self) -> Path:
        """The final model for use on this peer."""
        return self.models / "personalized.safetensors"

    def create(self) -> None:
        """Make the directories.

        Raises:
            StorageError: they cannot be made.
        """
        with storage_errors("create", self.root):
            self.models.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
