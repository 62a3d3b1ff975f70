"""Constants of the protocol that are not worth a manifest key. Tests and benchmarks vary them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """The numbers of the protocol; a peer of every run has the same.

    Attributes:
        wait_rounds_behind: a live neighbor up to this many rounds behind is waited for; one further behind catches up.
        rate_window_rounds: lockstep: recent rounds whose upper quartile is the round duration that a partitioned peer keeps.
        retry_after_suspicions: a push unanswered for this many suspicion times is sent again.
        concurrent_receives: models received at the same time, from all neighbors.
        rounds_ahead: lockstep: rounds that a neighbor may be ahead.
        models_per_round: async: models of one neighbor and slot folded in a round; peers of equal speed drift by one.
        stale_rounds: highest age, in rounds, of an arrival that is folded; 0 where ``run.stale_weight`` is 0.
        weight_max: largest weight or sample count accepted from a neighbor.
        weight_min: smallest weight; a model of less weight is not sent.
    """

    wait_rounds_behind: int = 8
    rate_window_rounds: int = 8
    retry_after_suspicions: float = 4.0
    concurrent_receives: int = 2
    rounds_ahead: int = 2
    models_per_round: int = 2
    stale_rounds: int = 1
    weight_max: float = 1e6
    weight_min: float = 1e-9


DEFAULTS = Constants()
