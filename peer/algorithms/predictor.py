"""What predicts for a peer: one model, or several whose predictions are combined; and the best of a run by validation samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from peer.algorithms.learner import Evaluation, Learner, Part
from peer.algorithms.personalize import confident_predictions, mixed_predictions
from peer.core.averaging import Vector
from peer.core.checkpoint import Checkpoint

PERSONALIZED, MIXTURE, CONFIDENT = "personalized_model", "mixture", "confident"
PREDICTORS = (MIXTURE, CONFIDENT)  # of several models


@dataclass(frozen=True, slots=True, eq=False)
class Predictor:
    """What predicts for a peer.

    Attributes:
        models: float32 [d] each; of one that is kept, never mutated afterwards.
        how: "personalized_model": the only one; "mixture": mean of their predictions by ``weights``; "confident": for each sample
            the one of the highest class probability.
        weights: of each model; () of one model.
    """

    models: tuple[Vector, ...]
    how: str = PERSONALIZED
    weights: tuple[float, ...] = ()

    def evaluate(self, learner: Learner, part: Part = "test") -> Evaluation:
        """Return metric and loss on a part of the peer's shard."""
        models = list(self.models)
        if self.how == CONFIDENT:
            return learner.evaluate_predictions(confident_predictions(learner, models, part), part)
        if self.how == MIXTURE:
            return learner.evaluate_predictions(mixed_predictions(learner, models, self.weights, part), part)
        return learner.evaluate(models[0], part)

    def kept(self) -> Predictor:
        """Return a copy that later rounds do not change, without models of weight 0 in a mixture: they do not count."""
        counts = [self.how != MIXTURE or weight > 0 for weight in self.weights] or [True]
        models = tuple(model.copy() for model, counted in zip(self.models, counts, strict=True) if counted)
        return Predictor(
            models, self.how, tuple(w for w, counted in zip(self.weights, counts, strict=False) if counted)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The predictor of the round with the best metric value on the validation samples; of equal ones the earliest.

    Attributes:
        round_index: of the round; the number of rounds if it is the model after the final phase.
        value: of the metric on the validation samples.
        predictor: `Predictor.kept`.
    """

    round_index: int
    value: float
    predictor: Predictor

    def state(self) -> dict[str, Any]:
        """Return what the manifest of a checkpoint keeps, JSON values."""
        predictor = self.predictor
        return {
            "round_index": self.round_index,
            "value": self.value,
            "how": predictor.how,
            "weights": list(predictor.weights),
        }

    def arrays(self) -> dict[str, Vector]:
        """Return what a checkpoint keeps beside it, by name."""
        return {f"best/{number}": model for number, model in enumerate(self.predictor.models)}

    @classmethod
    def of(cls, checkpoint: Checkpoint | None) -> Best | None:
        """Return the best in a checkpoint; None if it has none."""
        if checkpoint is None or (state := checkpoint.state.get("best")) is None:
            return None
        arrays = checkpoint.arrays_of("best")
        models = tuple(arrays[str(number)] for number in range(len(arrays)))
        return cls(state["round_index"], state["value"], Predictor(models, state["how"], tuple(state["weights"])))


def better(best: Best | None, value: float, *, higher_is_better: bool) -> bool:
    """Return whether a value is finite, and better than that of the best so far."""
    if not math.isfinite(value):
        return False
    return best is None or (value > best.value if higher_is_better else value < best.value)
