"""The stages of a peer's run and the transitions between them, in one table. Pure.

A pair (stage, trigger) that is not in `TRANSITIONS` is a bug of ours and raises LocalProtocolError.
"""

from __future__ import annotations

from enum import StrEnum
from typing import get_args

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.effects import WorkKind


class Stage(StrEnum):
    """Where a peer is in its run."""

    JOINING = "joining"  # handshakes, until the start rule is met
    CATCHING_UP = "catching_up"  # pulling and adopting the models of neighbors that are ahead
    ASSIGNING = "assigning"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    ENDING_STEP = "ending_step"
    CLOSING = "closing"
    FINISHING = "finishing"
    LINGERING = "lingering"  # all rounds done; neighbors may still need our last models
    LEAVING = "leaving"
    STOPPED = "stopped"


class Trigger(StrEnum):
    """What moves a peer to another stage: the work that is done, by its kind, or a decision between two pieces of work."""

    BEGIN_ROUND = "begin_round"
    CATCH_UP = "catch_up"
    ROUNDS_OVER = "rounds_over"
    STEP_OVER = "step_over"
    ROUND_OVER = "round_over"
    LEAVE = "leave"
    STOP = "stop"
    ASSIGNED = "assign"
    SAT_OUT = "sit_out"  # `assign` is done, and this peer does not train in the round
    TRAINED = "train"
    STEP_ENDED = "end_step"
    CLOSED = "close"
    ADOPTED = "adopt"
    FINAL_DONE = "final"


_BETWEEN_ROUNDS = {
    Trigger.BEGIN_ROUND: Stage.ASSIGNING,
    Trigger.CATCH_UP: Stage.CATCHING_UP,
    Trigger.ROUNDS_OVER: Stage.FINISHING,
    Trigger.LEAVE: Stage.LEAVING,
}
TRANSITIONS: dict[Stage, dict[Trigger, Stage]] = {
    Stage.JOINING: {**_BETWEEN_ROUNDS, Trigger.STOP: Stage.STOPPED},
    Stage.CATCHING_UP: {**_BETWEEN_ROUNDS, Trigger.ADOPTED: Stage.CATCHING_UP, Trigger.STOP: Stage.STOPPED},
    Stage.ASSIGNING: {Trigger.ASSIGNED: Stage.TRAINING, Trigger.SAT_OUT: Stage.EXCHANGING},
    Stage.TRAINING: {Trigger.TRAINED: Stage.EXCHANGING, Trigger.STOP: Stage.STOPPED},
    Stage.EXCHANGING: {
        Trigger.STEP_OVER: Stage.ENDING_STEP,
        Trigger.ROUND_OVER: Stage.CLOSING,
        Trigger.STOP: Stage.STOPPED,
    },
    Stage.ENDING_STEP: {Trigger.STEP_ENDED: Stage.EXCHANGING},
    Stage.CLOSING: {**_BETWEEN_ROUNDS, Trigger.CLOSED: Stage.CLOSING},
    Stage.FINISHING: {Trigger.FINAL_DONE: Stage.LINGERING},
    Stage.LINGERING: {Trigger.STOP: Stage.STOPPED},
    Stage.LEAVING: {Trigger.STOP: Stage.STOPPED},
    Stage.STOPPED: {},
}

# what a `WorkDone` triggers
WORK = {trigger.value: trigger for trigger in Trigger if trigger.value in get_args(WorkKind)}
OPEN = (Stage.TRAINING, Stage.EXCHANGING)  # arrivals are read and folded; the tensors of other work stand still
WORKING = (Stage.ASSIGNING, Stage.ENDING_STEP, Stage.CLOSING, Stage.FINISHING)  # the models change


def next_stage(stage: Stage, trigger: Trigger) -> Stage:
    """Return the stage that follows.

    Raises:
        LocalProtocolError: the table has no such transition.
    """
    try:
        return TRANSITIONS[stage][trigger]
    except KeyError:
        raise LocalProtocolError(f"a peer that is {stage} cannot take '{trigger}'") from None
