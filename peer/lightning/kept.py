"""What a Trainer keeps over rounds: the parts of Lightning's own checkpoint, in memory, without the model's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

NAME = "memory of the peer"  # in place of a path
# A round brings its own values, and the task makes module and data anew.
_NOT_KEPT = {
    "state_dict",
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
    """Lightning's interface ``CheckpointIO``: the checkpoint `NAME` is in memory, others are where the Trainer has them.

    Args:
        state: the checkpoint in memory.
        model: whose values complete it; a round has loaded them already.
        files: the Trainer's own.
    """

    def __init__(self, state: TrainerState, model: nn.Module, files: Any) -> None:
        self._state, self._model, self._files = state, model, files

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep the parts of a checkpoint, or write a file."""
        if path == NAME:
            self._state.parts = {name: part for name, part in checkpoint.items() if name not in _NOT_KEPT}
        else:
            self._files.save_checkpoint(checkpoint, path, storage_options=storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **named: Any) -> Any:
        """Return a checkpoint."""
        if path == NAME:
            return {**self._state.parts, "state_dict": self._model.state_dict()}
        return self._files.load_checkpoint(path, *arguments, **named)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file."""
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        """End what the Trainer's own has begun."""
        self._files.teardown()
