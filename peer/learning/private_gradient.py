"""The gradient of a private step: each sample's is clipped, their sum gets noise. DP-SGD.

    gradient = (sum over the batch of g_i min(1, C / ||g_i||) + N(0, (sigma C)^2 I)) / (q n)

Batches are drawn sample by sample with probability q, so q n is the expected size of one: the real size would tell of the data.

Source: Martín Abadi et al., "Deep Learning with Differential Privacy", 2016, arXiv 1607.00133, Algorithm 1 and Section 3.1. Both
draws are of the system's entropy, since every neighbor knows the run's seed. A gradient that is not finite counts as 0. As in
FedSPD's mechanism, the noise is of a statistical generator in float32: no defense against attacks on floating-point sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.user_file import USER_ERRORS, described
from peer.algorithms.learner import PrivateSteps
from peer.learning.bench import Bench
from peer.learning.samples import Batch, batch_of_one
from peer.tasks.process_settings import users_settings

GRADIENT_BYTES_MAX = 256 << 20  # of the gradients of samples that are in memory at a time
ADVICE = (
    "Each sample's gradient is computed alone, by torch.func.vmap: layers that look at a whole batch, in-place changes of "
    "buffers, control flow that depends on values, and torch's recurrent layers do not work. Linear layers, convolutions, "
    "GroupNorm, LayerNorm, attention and dropout do."
)


class PrivateGradient:
    """Puts the gradient of a private step into the parameters.

    Args:
        bench: task, data and the model, loaded and in training.
        private: rate, noise and clipping.
        samples: n, of the training.
        weights: float32 [n], of each sample's loss; None: 1.
    """

    def __init__(self, bench: Bench, private: PrivateSteps, samples: int, weights: Tensor | None) -> None:
        self._bench, self._private, self._weights = bench, private, weights
        self._expected = private.rate * samples
        self._named = {name: p for name, p in bench.model.module.named_parameters() if p.requires_grad}
        size = 4 * sum(p.numel() for p in self._named.values())
        self._chunk = max(1, min(bench.at_a_time or GRADIENT_BYTES_MAX, GRADIENT_BYTES_MAX // max(size, 1)))
        self._draw = np.random.Generator(np.random.Philox())  # seeded by the system's entropy

    def __call__(self, batch: Tensor) -> None:
        """Set the gradients for the samples ``batch``, int64 [b], of which there may be none."""
        sums = self.clipped_sum(batch)
        deviation = np.float32(self._private.noise * self._private.clip_norm)
        for parameter, total in zip(self._named.values(), sums, strict=True):
            noise = self._draw.standard_normal(parameter.numel(), np.float32) * deviation
            noisy = total + torch.from_numpy(noise).view(parameter.shape).to(total.device)
            parameter.grad = noisy / self._expected

    def clipped_sum(self, batch: Tensor) -> list[Tensor]:
        """Return the sum of the clipped gradients of samples, for each parameter."""
        sums = [torch.zeros_like(parameter) for parameter in self._named.values()]
        for rows in torch.split(batch, self._chunk) if len(batch) else ():
            gradients = self._of_each(rows)
            norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
            finite = norms.isfinite()
            scale = torch.where(finite, (self._private.clip_norm / norms).clamp(max=1.0), 0.0)
            for total, each in zip(sums, gradients, strict=True):
                kept = each if bool(finite.all()) else torch.where(finite.view(-1, *[1] * (each.dim() - 1)), each, 0.0)
                total.add_(torch.tensordot(scale, kept, dims=([0], [0])))
        return sums

    def _of_each(self, rows: Tensor) -> Sequence[Tensor]:
        """Return the gradients of samples, [b, ...] for each parameter."""
        x, y = self._bench.samples().batch(rows)
        trained = {name: parameter.detach() for name, parameter in self._named.items()}
        weights = torch.ones(len(rows), device=y.device) if self._weights is None else self._weights[rows]
        found: dict[str, Tensor] = vmap(grad(self._objective), in_dims=(None, 0, 0, 0), randomness="different")(
            trained, x, y, weights
        )
        return [found[name] for name in self._named]

    def _objective(self, trained: dict[str, Tensor], x: Batch, y: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of one sample, as a batch of one."""
        module, one = self._bench.model.module, batch_of_one(x)
        given = ((), one) if isinstance(one, dict) else ((one,), {})
        outputs: Tensor = functional_call(module, trained, *given)
        return (self._bench.task.loss(outputs, y.unsqueeze(0)) * weight).sum()


def poisson_batches(indices: NDArray[np.int64], private: PrivateSteps, done: int) -> Iterator[NDArray[np.int64]]:
    """Yield the samples of each step that is not done, int64 [b]: each of the indices with the same probability."""
    draw = np.random.Generator(np.random.Philox())
    for _ in range(done, private.steps):
        yield indices[draw.random(len(indices)) < private.rate]


def check_private(bench: Bench) -> None:
    """Check that each sample's gradient can be computed alone, with two samples.

    Raises:
        TaskError: the model has statistics of batches, or torch.func refuses it or the loss.
    """
    for name, module in bench.model.module.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            isinstance(module, nn.modules.batchnorm._BatchNorm) or module.track_running_stats
        ):
            kind = type(module).__name__
            raise TaskError(
                f"model: {name or kind}: expected no statistics of a batch with run.privacy, since each of them mixes samples "
                f"without noise, got {kind}. Take torch.nn.GroupNorm(groups, channels)."
            )
    bench.model.module.train()
    some = torch.arange(min(2, bench.count()), device=bench.device)
    try:
        with users_settings():
            sums = PrivateGradient(bench, PrivateSteps(1, 1.0, 1.0, 1.0), len(some), None).clipped_sum(some)
    except USER_ERRORS as error:
        raise TaskError(
            f"model or loss: expected what torch.func can differentiate for each sample, as run.privacy needs it, got "
            f"{described(error)}. {ADVICE}"
        ) from error
    if not any(bool(total.any()) for total in sums):
        raise TaskError(
            "model or loss: expected a gradient of each sample that is finite and not 0, got none for two samples. Scale "
            "the inputs."
        )
