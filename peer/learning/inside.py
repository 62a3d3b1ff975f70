"""The state of the built-in loop between two of its steps: on disk while it runs, and taken from there after a restart."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from peer.algorithms.learner import Arrays, Partial
from peer.learning.flat import FlatModule
from peer.learning.kept_state import packed, unpacked
from peer.learning.random_state import random_state, set_random_state
from peer.learning.sgd import Optimizer


class Sums(Protocol):
    """What a training adds up over its steps."""

    optimizer: Optimizer
    loss_sum: Tensor
    score_sum: Tensor
    samples: int
    steps: int


class Inside:
    """One training of the built-in loop. The order of its samples needs no state: it is a function of the plan and the step.

    Args:
        partial: where the state is kept; one that is there is taken.
        model: in training, loaded with the values to start from.
        sums: of the training, at its first step.
        steps: of the whole training.
    """

    def __init__(self, partial: Partial, model: FlatModule, sums: Sums, steps: int) -> None:
        self._partial, self._model, self._sums, self._steps = partial, model, sums, steps
        if (saved := partial.load()) is not None:
            self._resume(saved)
        self._kept = sums.steps

    def before_step(self, stopping: bool) -> None:
        """Keep the state where it is time to, and where the training ends before its end."""
        if self._sums.steps > self._kept and (stopping or self._partial.due()):
            self._partial.save(self._sums.steps, self._steps, self._state)
            self._kept = self._sums.steps

    def _state(self) -> Arrays:
        sums = self._sums
        return packed(
            {
                "model": self._model.state(),
                "optimizer": sums.optimizer.state_dict(),
                "random": random_state(self._model.device, libraries=False),
                "sums": {"loss": sums.loss_sum, "score": sums.score_sum, "samples": sums.samples, "steps": sums.steps},
            }
        )

    def _resume(self, saved: Arrays) -> None:
        state, sums = unpacked(saved), self._sums
        self._model.resume(state["model"])
        sums.optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"], self._model.device)
        sums.loss_sum.copy_(state["sums"]["loss"])
        sums.score_sum.copy_(state["sums"]["score"])
        sums.samples, sums.steps = state["sums"]["samples"], state["sums"]["steps"]
