"""The final phase: after the last round a peer trains its model on its own samples; no neighbor gets the result.

`run.final` sets it for every algorithm whose result is one model g. With `guard`, the result is g + alpha (f - g), where f is g
after the phase, and alpha, one of `SHARES`, has the lowest mean loss on samples that the phase did not see: the peer's validation
data, or, without any, each third of the training samples in turn, after a phase on the other two. The phase then runs on all.

Sources: FedSPD (arXiv 2410.18862), Section 4, "Final Step: Personalization"; the rate of eta_0 / 2 and its decay are those of the
authors' code. The guard is an addition of this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.base import Algorithm, Workspace, measured
from peer.core.averaging import Vector

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 3


def finish(algorithm: Algorithm, workspace: Workspace) -> tuple[Vector, dict[str, Any]]:
    """Return the peer's model after the run and the final metrics, those before and after the final phase among them."""
    model, metrics = algorithm.final(workspace)
    if not algorithm.final_epochs:
        return model, metrics
    before, share = metrics["accuracy"], 1.0
    if workspace.manifest.final.guard:
        share = validated_share(algorithm, workspace, model)
        metrics["final_share"] = share
    model = moved(model, tuned(algorithm, workspace, model), share)
    if metrics.get("predictor", "personalized_model") == "personalized_model":
        result = workspace.learner.evaluate(model)
        metrics |= measured(result)
    return model, metrics | {"accuracy_before_final": before, "accuracy_after_final": metrics["accuracy"]}


def tuned(
    algorithm: Algorithm, workspace: Workspace, model: Vector, indices: npt.NDArray[np.int64] | None = None
) -> Vector:
    """Return a model after the epochs of the final phase on the training samples, or on those of ``indices``, int64 [m]."""
    settings, left, block = workspace.manifest.final, algorithm.final_epochs, 0
    rate = settings.learning_rate or workspace.base_learning_rate / 2
    each = settings.decay_epochs if settings.decay < 1 else left
    unit = "epoch" if workspace.manifest.local_unit == "epoch" else "fullbatch_step"
    while left > 0:
        seed = workspace.seed("final", *([block] if block else []))
        model, _ = workspace.fit(
            model,
            seed,
            epochs=min(each, left),
            learning_rate=rate * settings.decay**block,
            unit=unit,
            indices=indices,
        )
        left, block = left - each, block + 1
    return model


def moved(start: Vector, end: Vector, share: float) -> Vector:
    """Return start + share (end - start), float32 [d]; with share 0 or 1 it is one of the two, bit for bit."""
    if share in (0.0, 1.0):
        return end if share else start
    return start + np.float32(share) * (end - start)


def validated_share(algorithm: Algorithm, workspace: Workspace, model: Vector) -> float:
    """Return the share of the way from a model to its tuned form that has the lowest mean loss on samples held out."""
    learner = workspace.learner
    if learner.count("validation"):
        end = tuned(algorithm, workspace, model)
        return _lowest([learner.mean_loss(moved(model, end, share), "validation") for share in SHARES])
    if learner.count() < FOLDS:
        return 0.0
    order = generator(workspace.seed("guard")).permutation(learner.count())
    losses = np.zeros(len(SHARES))
    for held_out in np.array_split(order, FOLDS):
        end = tuned(algorithm, workspace, model, np.setdiff1d(order, held_out))
        losses += [learner.sample_losses(moved(model, end, s))[held_out].sum(dtype=np.float64) for s in SHARES]
    return _lowest(list(losses))


def _lowest(losses: list[float]) -> float:
    """Return the share of the lowest loss; of equal ones the smallest share. A loss that is not finite never wins."""
    return SHARES[int(np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf)))]
