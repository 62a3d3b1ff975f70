"""What a Trainer keeps over rounds: the parts of Lightning's own checkpoint, in memory, without the model's values.

Inside a round they are in a file, with the values: numbers and texts only, nothing that could be executed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import nn

from coordinator_free_bootstrap.errors import CheckpointCorrupt
from peer.learning.kept_state import packed, unpacked
from peer.store.files import write_atomic

log = logging.getLogger("peer")
NAME = "memory of the peer"  # in place of a path
VALUES = "state_dict"
# The task makes module and data anew.
_NOT_KEPT = {
    *("hparams_name", "hyper_parameters", "hparams_type"),
    *("datamodule_hparams_name", "datamodule_hyper_parameters", "datamodule_hparams_type"),
}


class TrainerState:
    """Lightning's checkpoint between two rounds, for `Budget.keep`; ``parts`` is empty before the first."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the parts: states of optimizers, schedulers, callbacks, precision, loops and data module."""
        return self.parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the parts."""
        self.parts = dict(state)

    @property
    def epochs(self) -> int:
        """Completed epochs."""
        return int(self.parts.get("epoch", 0))

    @property
    def steps(self) -> int:
        """Steps of the optimizer."""
        return int(self.parts.get("global_step", 0))


class MemoryOrFile:
    """Lightning's interface ``CheckpointIO``: two checkpoints are the peer's, others are where the Trainer has them.

    Args:
        state: the checkpoint `NAME`, in memory.
        inside: path of the one inside a round.
        model: whose values complete that in memory; a round has loaded them already.
        files: the Trainer's own.
    """

    def __init__(self, state: TrainerState, inside: Path, model: nn.Module, files: Any) -> None:
        self._state, self._inside, self._model, self._files = state, inside, model, files

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep the parts of a checkpoint, or write a file."""
        parts = {name: part for name, part in checkpoint.items() if name not in _NOT_KEPT}
        if path == NAME:
            self._state.parts = {name: part for name, part in parts.items() if name != VALUES}
        elif str(path) == str(self._inside):
            write_atomic(self._inside, save(packed(parts)))
        else:
            self._files.save_checkpoint(checkpoint, path, storage_options=storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **named: Any) -> Any:
        """Return a checkpoint."""
        if path == NAME:
            return {**self._state.parts, VALUES: self._model.state_dict()}
        if str(path) == str(self._inside):
            return unpacked(load_file(self._inside))
        return self._files.load_checkpoint(path, *arguments, **named)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file."""
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        """End what the Trainer's own has begun."""
        self._files.teardown()


def steps_in(path: Path) -> int | None:
    """Return the steps of the optimizer at a checkpoint of `MemoryOrFile`; None if there is none that can be read."""
    if not path.exists():
        return None
    try:
        return int(unpacked(load_file(path))["global_step"])
    except (SafetensorError, CheckpointCorrupt, KeyError) as error:
        log.warning("%s: cannot be read (%s); training from the start of the round", path, error)
        path.unlink()
        return None
