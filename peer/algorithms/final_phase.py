"""The final phase: after the last round a peer trains its model on its own samples; no neighbor gets the result.

`run.final` sets it for every algorithm whose result is one model g. With `guard`, the result is g + alpha (f - g), where f is g
after the phase, and alpha, one of `SHARES`, has the lowest mean loss on samples that the phase did not see: the peer's validation
data, or, without any, each third of the training samples in turn, after a phase on the other two. The phase then runs on all.

Sources: FedSPD (arXiv 2410.18862), Section 4, "Final Step: Personalization"; the rate of eta_0 / 2 and its decay are those of the
authors' code. The guard is an addition of this project.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np

from coordinator_free_bootstrap.learning_rates import schedule_of
from coordinator_free_bootstrap.seeds import generator
from peer.algorithms.base import Algorithm
from peer.algorithms.held_out import Indices, folds
from peer.algorithms.learner import Fields, measured
from peer.algorithms.predictor import PERSONALIZED, Predictor
from peer.algorithms.workspace import Workspace
from peer.core.averaging import Vector

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 3


def finish(algorithm: Algorithm, workspace: Workspace) -> tuple[Vector, Fields]:
    """Return the peer's model after the run and the final metrics, those before and after the final phase among them."""
    model, metrics = algorithm.final(workspace)
    if not algorithm.final_epochs or (workspace.private and not workspace.private.may_train):
        return model, metrics
    before, share = metrics["metric_value"], 1.0
    if workspace.manifest.final.guard:
        share = validated_share(workspace, model, algorithm.final_epochs)
        metrics["final_share"] = share
    model = moved(model, tuned(workspace, model, algorithm.final_epochs), share)
    if metrics.get("predictor", PERSONALIZED) == PERSONALIZED:
        result = workspace.learner.evaluate(model)
        metrics |= measured(result)
    return model, metrics | {"metric_before_final": before, "metric_after_final": metrics["metric_value"]}


def final_predictor(algorithm: Algorithm, workspace: Workspace, how: str) -> Predictor:
    """Return what the final metrics were measured with: the personalized model, or all models that predict together.

    Args:
        algorithm: of the peer.
        workspace: after the work "final".
        how: the field ``predictor`` of the final metrics.
    """
    assert workspace.personalized is not None
    return Predictor((workspace.personalized,)) if how == PERSONALIZED else algorithm.predictor(workspace)


def tuned(
    workspace: Workspace, model: Vector, epochs: int, indices: Indices | None = None, purpose: str = "final", *path: int
) -> Vector:
    """Return a model after ``epochs`` at the rate and schedule of ``run.final``.

    Args:
        workspace: of the peer.
        model: float32 [d]; not changed.
        epochs: of the phase.
        indices: of the training samples to use, int64 [m]; None: all.
        purpose: of the seed.
        *path: of the seed.
    """
    settings = workspace.manifest.final
    rate, schedule = (
        settings.learning_rate or workspace.base_learning_rate / 2,
        schedule_of(settings.learning_rate_schedule),
    )
    rates = (rate * schedule.share(epoch, epochs) for epoch in range(epochs))
    for block, (learning_rate, same) in enumerate(groupby(rates)):
        plan = workspace.plan(workspace.seed(purpose, *path, *([block] if block else [])))
        plan = replace(plan, epochs=sum(1 for _ in same), unit="epoch", learning_rate=learning_rate, indices=indices)
        model, _ = workspace.fit(model, plan)
    return model


def moved(start: Vector, end: Vector, share: float) -> Vector:
    """Return start + share (end - start), float32 [d]; with share 0 or 1 it is one of the two, bit for bit."""
    if share in (0.0, 1.0):
        return end if share else start
    return start + np.float32(share) * (end - start)


def validated_share(workspace: Workspace, model: Vector, epochs: int) -> float:
    """Return the share of the way from a model to its tuned form that has the lowest loss on samples held out."""
    learner, losses = workspace.learner, np.zeros(len(SHARES))
    for fold in folds(learner, FOLDS, generator(workspace.seed("guard"))):
        end = tuned(workspace, model, epochs, fold.rest)
        of_each_share = (learner.sample_losses(moved(model, end, share), fold.part) for share in SHARES)
        losses += [losses_of_share[fold.held_out].sum(dtype=np.float64) for losses_of_share in of_each_share]
    return SHARES[int(np.argmin(losses))]
