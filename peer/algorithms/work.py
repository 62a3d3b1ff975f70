"""Run one piece of an algorithm's tensor work and time its phases; the same for real peers and simulated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peer.algorithms.base import Algorithm, Bench
from peer.core.effects import Work
from peer.core.events import WorkDone

PHASE_OF = {
    "assign": "train",
    "train": "train",
    "end_step": "fold",
    "close": "evaluate",
    "adopt": "fold",
    "final": "evaluate",
}


def perform(work: Work, algorithm: Algorithm, bench: Bench, clock: Callable[[], float]) -> WorkDone:
    """Do what the engine asked for and return the event that answers it.

    Args:
        work: the engine's effect.
        algorithm: whose work it is.
        bench: the tensors; owned by this call until it returns.
        clock: monotonic seconds, only to time phases.
    """
    began = clock()
    bench.round_index, bench.step, bench.present = work.round_index, work.step, work.present
    bench.announced = {announced.sender: announced for announced in work.announced}
    metrics: dict[str, Any] = {}
    if work.kind == "assign":
        bench.facts = algorithm.assign(bench) if work.active else algorithm.idle(bench)
        bench.models.begin_round(algorithm.aside(bench.facts, work.round_index))
        bench.arrivals.clear()
    elif work.kind == "train":
        metrics = algorithm.train(bench)
    elif work.kind == "end_step":
        bench.facts = algorithm.end_step(bench)
        bench.arrivals.clear()
    elif work.kind == "close":
        bench.facts = algorithm.close(bench)
        bench.models.drop_asides()
        if work.evaluate:
            metrics = algorithm.evaluate(bench)
        if "cluster_index" in bench.facts:
            metrics["cluster_index"] = bench.facts["cluster_index"]
    elif work.kind == "adopt":
        bench.models.drop_asides()
        bench.facts = algorithm.adopt(bench)
    else:
        personalized, metrics = algorithm.final(bench)
        bench.personalized = personalized
    return WorkDone(work.kind, dict(bench.facts), metrics, {PHASE_OF[work.kind]: clock() - began})
