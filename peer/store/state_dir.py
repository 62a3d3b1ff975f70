"""File names in a state directory: ``peer run --state-dir`` and ``DIR/peer-<id>`` of a testbed have the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from peer.store.files import fsync_path, storage_errors
from peer.store.lines import parts_of


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
        """The run history: one JSON object per line; `peer.store.lines.parts_of` has its earlier parts."""
        return self.root / "history.jsonl"

    @property
    def summary(self) -> Path:
        """The result of a finished run."""
        return self.root / "summary.json"

    @property
    def audit(self) -> Path:
        """Who connected, what was sent to whom, what was refused: `peer.store.audit`. It stays when another run begins."""
        return self.root / "audit.jsonl"

    @property
    def log(self) -> Path:
        """The log file, when logging goes to a file."""
        return self.root / "peer.log"

    @property
    def origin(self) -> Path:
        """What the state was made for, of `peer.store.origin.Origin`."""
        return self.root / "origin.json"

    @property
    def checkpoints(self) -> Path:
        """The directory of `peer.store.checkpoint.CheckpointStore`."""
        return self.root / "checkpoints"

    @property
    def trainings(self) -> Path:
        """The directory of the trainings of the present round, of `peer.runtime.partials`."""
        return self.root / "trainings"

    @property
    def start(self) -> Path:
        """The directory of the models from which the run has started, if not from its seed, of `peer.learning.start`."""
        return self.root / "start"

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

    @property
    def best_model(self) -> Path:
        """The model of the best round by the validation metric."""
        return self.models / "best.safetensors"

    @property
    def sent(self) -> Path:
        """The directory of models that were sent: of the last round, and with ``keep_sent`` of each."""
        return self.root / "sent"

    @property
    def leak(self) -> Path:
        """What `peer privacy leak` has measured on the sent models."""
        return self.root / "leak.json"

    def sent_model(self, round_index: int, slot: int) -> Path:
        """The model of one slot that was sent in a round."""
        return self.sent / f"round-{round_index:06}-slot-{slot}.safetensors"

    def set_aside(self, *, history: bool = True) -> Path:
        """Move the state of a run to ``discarded-1``, ``discarded-2``, ... in this folder, and return where to.

        Keys, lock, logs and incarnation stay. The folder is inside, because a container may write nowhere else. Without
        ``history`` only the checkpoints are moved, and the run continues.

        Raises:
            StorageError: it cannot be moved.
        """
        with storage_errors("move state in", self.root):
            number = 1
            while (target := self.root / f"discarded-{number}").exists():
                number += 1
            target.mkdir()
            others = (self.origin, *parts_of(self.history), self.summary, self.models, self.start, self.sent, self.leak)
            for path in (
                *(others if history else ()),
                self.trainings,
                self.checkpoints,
            ):  # last: a start that finds them begins again
                if os.path.lexists(path):
                    path.rename(target / path.name)
            fsync_path(self.root)
        return target

    def create(self) -> None:
        """Make the directories.

        Raises:
            StorageError: they cannot be made.
        """
        with storage_errors("create", self.root):
            self.models.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
