"""Detect models that are not finite after training: the peer ends, or goes back to its last finite models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordinator_free_bootstrap.errors import DivergedError
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector, check_norm, norm_squared
from peer.core.decisions import AlgorithmState
from peer.core.effects import Log, Work
from peer.core.events import WorkDone


@dataclass
class DivergenceGuard:
    """Watches the trainings of one peer; averages of finite models are finite.

    With ``run.diverged_restores`` = n, the first n diverged trainings are undone: the trained slots get their models of before,
    which are those of the last completed round and of its checkpoint, and the learning rate is halved from then on. The round
    continues with these models. Checkpoints keep the count.
    """

    workspace: Workspace
    private: range  # slots that are trained and never sent
    _before: dict[int, Vector] = field(default_factory=dict)
    _state: AlgorithmState = field(default_factory=AlgorithmState)
    _loss_logged: bool = False

    def begin(self, work: Work) -> None:
        """Keep the models that a training is about to replace, if they may be needed."""
        space = self.workspace
        if work.kind == "train" and space.restores < space.manifest.diverged_restores:
            self._before = {slot: space.models.share(slot) for slot in self._trained()}
            self._state = space.state

    def check(self, work: Work, done: WorkDone) -> tuple[WorkDone, Log | None]:
        """Return the answer to a piece of work, and what to log: a training that was undone, a loss that is not finite.

        Raises:
            DivergedError: a trained model is not finite, and no restore is left; or the final loss is not a number.
        """
        before, self._before = self._before, {}
        bad = next((name for name, model in self._made(work).items() if not _usable(model)), None)
        if bad is None:
            return done, self._judged(work, done)
        if not before:
            raise DivergedError(self._why(work, bad))
        space = self.workspace
        for slot, model in before.items():
            space.models.replace(slot, model)
            space.models.share(slot)  # a checkpoint or snapshot may hold the same array
        space.state = self._state
        space.optimizers.clear()  # momentum that is not finite
        space.restores += 1
        left = f"{space.restores} of {space.manifest.diverged_restores} restores"
        sentence = (
            f"peer {space.peer_id} diverged in round {work.round_index}: {bad} is not finite after training; went back to "
            f"the models of the last completed round ({left}), learning rate now "
            f"{space.learning_rate:g}"
        )
        metrics = {key: value for key, value in done.metrics.items() if key != "metric_train"}
        return replace(
            done, state=space.state, metrics={**metrics, "train_loss": None, "restores": space.restores}
        ), Log("warning", sentence, None, "restored")

    def _judged(self, work: Work, done: WorkDone) -> Log | None:
        """Look at the loss of an evaluation: a finite model may give outputs that are not."""
        loss = done.metrics.get("loss")
        if loss is None or math.isfinite(loss):
            return None
        if work.kind == "final" and math.isnan(loss):
            raise DivergedError(
                f"peer {self.workspace.peer_id}: the loss on its test samples is {loss} after the last round, with a model of "
                "finite values: its outputs are NaN for some samples; look for a division by zero, a root or a logarithm of a "
                "negative number in the model and its loss"
            )
        if self._loss_logged:
            return None
        self._loss_logged = True
        sentence = (
            f"the loss on the test samples is {loss} after round {work.round_index}, with a model of finite values"
        )
        return Log("warning", f"{sentence}; later rounds are not reported", None, "not_finite")

    def _trained(self) -> list[int]:
        return sorted({*self.workspace.state.trained, *self.private})

    def _made(self, work: Work) -> Mapping[str, Vector]:
        space = self.workspace
        if work.kind == "train":
            return {f"the model of slot {slot}": space.models.model(slot) for slot in self._trained()}
        if work.kind == "final" and space.personalized is not None:
            return {"the personalized model": space.personalized}
        return {}

    def _why(self, work: Work, name: str) -> str:
        space = self.workspace
        again = f", also after {space.restores} restores" if space.restores else ""
        rate = f"lower run.learning_rate ({space.manifest.learning_rate:g}) and start again with a new state directory"
        return (
            f"peer {space.peer_id} diverged in round {work.round_index}: {name} is not finite after training{again}; it was "
            f"not sent; {rate}, or continue from the last checkpoint; run.diverged_restores lets a peer go back to its last "
            "finite models by itself (docs/trouble.md#diverged)"
        )


def _usable(model: Vector) -> bool:
    return check_norm(norm_squared(model), 0.0, None) is None
