"""Run one piece of an algorithm's tensor work and time it; real and simulated peers call the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from peer.algorithms import outer_step
from peer.algorithms.base import Algorithm
from peer.algorithms.final_phase import final_predictor, finish
from peer.algorithms.learner import Fields
from peer.algorithms.model_tests import of_neighbors, tested
from peer.algorithms.predictor import PERSONALIZED, Best, Predictor, better
from peer.algorithms.private import OF_SAMPLES
from peer.algorithms.workspace import Workspace
from peer.core.effects import Work
from peer.core.events import WorkDone

PHASE_OF = {  # work kind -> the phase in the run history that its seconds count for
    "assign": "train",
    "train": "train",
    "end_step": "fold",
    "close": "evaluate",
    "adopt": "fold",
    "final": "evaluate",
}


def perform(  # noqa: PLR0912 - one case per kind
    work: Work, algorithm: Algorithm, workspace: Workspace, clock: Callable[[], float]
) -> WorkDone:
    """Do the work that the engine asked for, and return the event that answers it.

    Args:
        work: the engine's effect.
        algorithm: the peer's algorithm.
        workspace: the peer's tensors; changed.
        clock: returns monotonic seconds, to time the work.
    """
    began = clock()
    _enter(work, workspace)
    metrics: Fields = {}
    match work.kind:
        case "assign":
            workspace.state = algorithm.assign(workspace) if work.active else algorithm.sit_out(workspace)
            workspace.models.begin_round(algorithm.deferred_slots(workspace.state, work.round_index))
            workspace.arrivals.clear()
            if algorithm.steps_out:
                outer_step.begin(workspace, range(algorithm.slots))
        case "train":
            metrics = {"learning_rate": workspace.learning_rate, **_trained(algorithm, workspace)}
            if workspace.resumed_steps:
                metrics["resumed_steps"] = workspace.resumed_steps
        case "end_step":
            workspace.state = algorithm.end_step(workspace)
            workspace.arrivals.clear()
        case "close":
            if work.absent:
                workspace.model_tests = tested(workspace, work.absent)
            workspace.state = algorithm.close(workspace)
            workspace.models.discard_deferred()
            if work.evaluate:
                metrics = algorithm.evaluate(workspace)
                metrics |= validated(workspace, lambda: algorithm.predictor(workspace))
            if workspace.state.cluster_index is not None:
                metrics["cluster_index"] = workspace.state.cluster_index
        case "adopt":
            workspace.models.discard_deferred()
            outer_step.forget(workspace)
            workspace.state = algorithm.adopt(workspace)
        case "final":
            workspace.personalized, metrics = finish(algorithm, workspace)
            how = str(metrics.get("predictor", PERSONALIZED))
            metrics |= validated(workspace, lambda: final_predictor(algorithm, workspace, how))
            if work.absent:
                metrics["model_tests"] = of_neighbors(workspace, work.absent)
        case _:
            assert_never(work.kind)
    return WorkDone(work.kind, workspace.state, metrics, {PHASE_OF[work.kind]: clock() - began})


def _enter(work: Work, workspace: Workspace) -> None:
    """Give the workspace what the engine says of the work, and in a private run what it may ask of the samples."""
    workspace.round_index, workspace.step, workspace.present = work.round_index, work.step, work.present
    workspace.selections = {select.sender: select for select in work.selections}
    workspace.neighbor_numbers = dict(work.numbers)
    workspace.resumed_steps = 0
    if workspace.private and work.kind in ("assign", "final"):
        workspace.private.open(work.round_index, paid=work.active)


def _trained(algorithm: Algorithm, workspace: Workspace) -> Fields:
    """Train, and return the fields of the history; in a private run none that tells of training samples."""
    found = algorithm.train(workspace)
    return {name: value for name, value in found.items() if not workspace.private or name not in OF_SAMPLES}


def validated(workspace: Workspace, predictor: Callable[[], Predictor]) -> Fields:
    """Measure what predicts on the peer's validation samples, if it has some, and keep it if it is the best of the run so far.

    Returns:
        Fields of the history: the value, and value and round of the best.
    """
    learner, best = workspace.learner, workspace.best
    if not learner.validates:
        return {}
    found = predictor()
    value = float(found.evaluate(learner, "validation").metric)
    if better(best, value, higher_is_better=workspace.metric.higher_is_better):
        workspace.best = best = Best(workspace.round_index, value, found.kept())
    fields: Fields = {"metric_validation": value}
    return fields | ({} if best is None else {"best_round": best.round_index, "metric_best": best.value})
