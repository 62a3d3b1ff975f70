"""Evaluation of a model vector: losses, metrics and predictions, in evaluation mode."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.strict_json import of_type
from peer.algorithms.learner import Evaluation
from peer.core.averaging import Vector
from peer.learning.bench import Bench
from peer.learning.flat import seeded
from peer.learning.samples import Samples
from peer.tasks.arrays import Inputs
from peer.tasks.shard import Part
from peer.tasks.user_code import user_code


class Evaluating(Bench):
    """A bench that evaluates: functions of a flat model vector, float32 [d], and a part of the shard."""

    _own_validates = False  # whether the task's `evaluate` measures validation samples, too
    _own_last: tuple[bytes, Part, dict[str, float]] | None = None  # model, part and result of its last call

    def sample_losses(self, theta: Vector, part: Part = "train") -> NDArray[np.float32]:
        """Return each sample's loss, float32 [n], in evaluation mode; infinity where the loss is not a number."""
        if part == "train" and "losses" in self.task.own:
            return self._own_losses(theta)
        return _numbers(self._measured(theta, part, lambda outputs, targets: (self.task.loss(outputs, targets),))[0])

    def mean_loss(self, theta: Vector, part: Part = "train") -> float:
        """Return the mean loss in evaluation mode: the client loss of DFCA (arXiv:2510.15300), Eq. 1."""
        return float(self.sample_losses(theta, part).mean(dtype=np.float64))

    def _own_losses(self, theta: Vector) -> NDArray[np.float32]:
        self._ready(theta)
        with user_code("losses"), torch.no_grad(), seeded(0, self.device):
            losses: object = self.task.losses(self.model.module, self.data)
        if not isinstance(losses, Tensor) or losses.shape != (self.count(),):
            actual = list(losses.shape) if isinstance(losses, Tensor) else of_type(losses)
            raise TaskError(
                f"losses: expected a tensor [{self.count()}], a loss for each training sample, got {actual}"
            )
        return _numbers(losses.detach().float().cpu())

    @property
    def validates(self) -> bool:
        """Whether `evaluate` measures a model on validation samples; of an own `evaluate` known from its first call on."""
        return self._own_validates if "evaluate" in self.task.own else self.count("validation") > 0

    def _own_values(self, theta: Vector, part: Part) -> dict[str, float]:
        """Return what the task's `evaluate` returns; one call of it serves the test and the validation samples."""
        of_other_part, self._own_last = self._own_last, None
        digest = hashlib.blake2b(np.ascontiguousarray(theta).data).digest()
        if of_other_part is not None and of_other_part[:2] == (digest, "test") and part == "validation":
            return of_other_part[2]
        self._ready(theta)
        with user_code("evaluate"), torch.no_grad(), seeded(0, self.device):
            found: object = self.task.evaluate(self.model.module, self.data)
        if not isinstance(found, Mapping):
            raise TaskError(f"evaluate: expected a dict of numbers by name, got {of_type(found)}")
        values = {str(name): float(value) for name, value in found.items()}
        self._own_last = digest, part, values
        return values

    def _own_evaluation(self, theta: Vector, part: Part) -> Evaluation:
        """Return what the task's `evaluate` returns for the test samples, or for others by their prefix."""
        values, prefix = self._own_values(theta, part), "" if part == "test" else f"{part}_"
        more = [metric.name for metric in self.task.more_metrics]
        self._own_validates = all(f"validation_{name}" in values for name in (self.task.metric_name, *more))
        if missing := [name for name in (self.task.metric_name, *more) if prefix + name not in values]:
            raise TaskError(
                f"evaluate: expected {', '.join(prefix + name for name in missing)}, got {', '.join(values) or 'nothing'}. "
                "Set metric_name in the task to the name of its metric, and more_metrics to the others."
            )
        known = {self.task.metric_name, *more, "loss"}
        if others := [name for name in values if name.removeprefix("validation_") not in known]:
            raise TaskError(
                f"evaluate: expected {', '.join(sorted(known))}, got also {', '.join(others)}. Add each to more_metrics, as in "
                f"Metric({others[0]!r}, higher_is_better=True), or return it from train in Trained.numbers."
            )
        numbers = {name: values[prefix + name] for name in more}
        loss = values.get(f"{prefix}loss")
        if loss is None and len(self._samples.get(part, ())):
            loss = self.mean_loss(theta, part)
        return Evaluation(
            values[prefix + self.task.metric_name], loss, self.count(part), self.task.metric_name, numbers
        )

    def evaluate(self, theta: Vector, part: Part = "test") -> Evaluation:
        """Return metric and mean loss on one part, in evaluation mode."""
        if "evaluate" in self.task.own and part != "train":
            return self._own_evaluation(theta, part)
        if self.task.needs_all_outputs:
            outputs, targets = self._measured(theta, part, lambda outputs, targets: (outputs, targets))
            return self._evaluation(outputs, outputs, targets)
        losses, scores = self._measured(
            theta, part, lambda outputs, targets: (self.task.loss(outputs, targets), self.task.score(outputs, targets))
        )
        metric = float(scores.double().mean())
        return Evaluation(metric, float(losses.double().mean()), len(losses), self.task.metric_name)

    def sample_scores(self, theta: Vector, part: Part = "test") -> NDArray[np.float32]:
        """Return for each sample the share of its labels that are predicted (1 or 0 of one label); in regression its loss."""
        if self.task.kind == "regression":
            return self.sample_losses(theta, part)
        return self._measured(theta, part, lambda outputs, targets: (self.task.score(outputs, targets),))[0].numpy()

    def predict(self, theta: Vector, inputs: Inputs) -> NDArray[np.float32]:
        """Return the outputs of the model, float32 [n, ...], for ``inputs`` [n, ...] of the kind in the shard."""
        samples = Samples("input", inputs, None, self.device, scaling=self._scaling)
        self._ready(theta)
        with user_code("model"), torch.no_grad(), self._draws():
            parts = [self._call(samples.inputs(rows)) for rows in samples.slices(self.evaluation_batch)]
            return torch.cat(parts).cpu().numpy()

    def outputs_of(self, theta: Vector, rows: slice, part: Part = "train") -> Tensor:
        """Return the outputs of a model for some samples, in one batch, on the CPU."""
        self._ready(theta)
        with user_code("model"), torch.no_grad(), self._draws():
            return self._call(self._needed(part).inputs(rows)).cpu()

    def try_last(self, theta: Vector, part: Part, rows: int) -> None:
        """Call model, loss and score with the last samples of a part.

        Raises:
            TaskError: one fails.
        """
        last = slice(self.count(part) - rows, self.count(part))
        outputs, targets = self.outputs_of(theta, last, part), self._needed(part).targets(last).cpu()
        with user_code("loss or metric"), torch.no_grad():
            self.task.loss(outputs, targets)
            if not self.task.needs_all_outputs:
                self.task.score(outputs, targets)

    def predict_proba(self, theta: Vector, part: Part = "test") -> NDArray[np.float32]:
        """Return probabilities, float32, of the form of the outputs, [n, classes]; in regression the outputs."""
        return self._measured(theta, part, lambda outputs, _: (self.task.probabilities(outputs),))[0].numpy()

    def evaluate_predictions(self, predictions: NDArray[np.float32], part: Part = "test") -> Evaluation:
        """Evaluate a mixture of `predict_proba` of several models (FedEM mixes predictions, not parameters)."""
        targets = self._needed(part).targets(slice(None)).cpu()
        mixed = torch.from_numpy(np.ascontiguousarray(predictions))
        scores = self.task.outputs_for(mixed)
        return self._evaluation(mixed if self.task.kind == "classification" else scores, scores, targets)

    def prediction_losses(
        self, predictions: NDArray[np.float32], part: Part, indices: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the loss of each of the samples ``indices``, int64 [m], of a part, given its prediction; float32 [m].

        It is infinity where the loss is not a number.

        Args:
            predictions: float32 [m, ...], of the form that `predict_proba` gives.
            part: of the shard.
            indices: of samples in it.
        """
        targets = self._needed(part).targets(torch.from_numpy(indices).to(self.device)).cpu()
        with user_code("loss"), torch.no_grad():
            return _numbers(self.task.loss(self.task.outputs_for(torch.from_numpy(predictions)), targets))

    def _evaluation(self, outputs: Tensor, scores: Tensor, targets: Tensor) -> Evaluation:
        with user_code("loss or metric"), torch.no_grad():
            loss = float(self.task.loss(scores, targets).double().mean())
            more = self.task.measured_more(outputs, targets)
            return Evaluation(
                float(self.task.metric(outputs, targets)), loss, len(targets), self.task.metric_name, more
            )

    def _measured(
        self, theta: Vector, part: Part, measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return what is measured of the outputs of each batch, [n, ...] on the CPU; nothing else of a batch is kept."""
        samples = self._needed(part)
        self._ready(theta)
        kept: list[Tensor] = []
        with user_code("model, loss or metric"), torch.no_grad(), self._draws():
            for rows in samples.slices(self.evaluation_batch):
                inputs, targets = samples.batch(rows)
                measured = measure(self._call(inputs), targets)
                # Allocated once: small tensors that stay, between the large ones of each batch, would fragment the heap.
                kept = kept or [torch.empty(len(samples), *t.shape[1:], dtype=t.dtype) for t in measured]
                for whole, values in zip(kept, measured, strict=True):
                    whole[rows] = values
        return tuple(kept)


def _numbers(losses: Tensor) -> NDArray[np.float32]:
    """Return losses with infinity in place of NaN: of several models, the one of lowest loss is then never a diverged one."""
    result: NDArray[np.float32] = losses.masked_fill(losses.isnan(), torch.inf).numpy()
    return result
