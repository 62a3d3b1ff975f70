"""Run one piece of an algorithm's tensor work and time it; real and simulated peers call the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from peer.algorithms.base import Algorithm
from peer.algorithms.final_phase import finish
from peer.algorithms.learner import Fields
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


def perform(work: Work, algorithm: Algorithm, workspace: Workspace, clock: Callable[[], float]) -> WorkDone:
    """Do the work that the engine asked for, and return the event that answers it.

    Args:
        work: the engine's effect.
        algorithm: the peer's algorithm.
        workspace: the peer's tensors; changed.
        clock: returns monotonic seconds, to time the work.
    """
    began = clock()
    workspace.round_index, workspace.step, workspace.present = work.round_index, work.step, work.present
    workspace.selections = {select.sender: select for select in work.selections}
    workspace.neighbor_numbers = dict(work.numbers)
    workspace.resumed_steps = 0
    metrics: Fields = {}
    match work.kind:
        case "assign":
            workspace.state = algorithm.assign(workspace) if work.active else algorithm.sit_out(workspace)
            workspace.models.begin_round(algorithm.deferred_slots(workspace.state, work.round_index))
            workspace.arrivals.clear()
        case "train":
            metrics = algorithm.train(workspace)
            if workspace.resumed_steps:
                metrics["resumed_steps"] = workspace.resumed_steps
        case "end_step":
            workspace.state = algorithm.end_step(workspace)
            workspace.arrivals.clear()
        case "close":
            workspace.state = algorithm.close(workspace)
            workspace.models.discard_deferred()
            if work.evaluate:
                metrics = algorithm.evaluate(workspace)
            if workspace.state.cluster_index is not None:
                metrics["cluster_index"] = workspace.state.cluster_index
        case "adopt":
            workspace.models.discard_deferred()
            workspace.state = algorithm.adopt(workspace)
        case "final":
            workspace.personalized, metrics = finish(algorithm, workspace)
        case _:
            assert_never(work.kind)
    return WorkDone(work.kind, workspace.state, metrics, {PHASE_OF[work.kind]: clock() - began})
