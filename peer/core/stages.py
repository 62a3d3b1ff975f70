"""The stages of a peer's run and the transitions between them, in one table, with their guards. Pure.

A pair (stage, trigger) that is not in `TRANSITIONS`, or whose guard does not hold, is a bug of ours: LocalProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, get_args

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core.effects import WorkKind


class Stage(StrEnum):
    """Where a peer is in its run."""

    __hash__ = str.__hash__  # in C: the table is read in every step

    JOINING = "joining"  # handshakes, until the start rule is met
    CATCHING_UP = "catching_up"  # at the start: pulling the models of neighbors that are ahead
    ADOPTING = "adopting"  # the host puts pulled models in place
    PAYING = "paying"  # before a private round: its charge is being written
    ASSIGNING = "assigning"
    TRAINING = "training"
    OFFERING = "offering"  # a step's offers wait for the last checkpoint and for selections
    EXCHANGING = "exchanging"  # they are in the outboxes
    ENDING_STEP = "ending_step"
    CLOSING = "closing"
    FINISHING = "finishing"
    LINGERING = "lingering"  # all rounds done; neighbors may still need our last models
    LEAVING = "leaving"  # between two rounds, the last checkpoint being written
    STOPPED = "stopped"


class Trigger(StrEnum):
    """What moves a peer to another stage: the work that is done, by its kind, or a decision between two pieces of work."""

    __hash__ = str.__hash__

    PULL = "pull"
    ADOPT = "begin_adopt"
    PAY = "pay"
    BEGIN_ROUND = "begin_round"
    OFFERED = "offered"
    STEP_OVER = "step_over"
    ROUND_OVER = "round_over"
    ROUNDS_OVER = "rounds_over"
    CUT_SHORT = "cut_short"  # a leaving peer closes its round with what has come
    LEAVE = "leave"
    SAVE = "save"  # a leaving peer writes a checkpoint
    STOP = "stop"
    ASSIGNED = "assign"
    SAT_OUT = "sit_out"  # `assign` is done, and this peer does not train in the round
    TRAINED = "train"
    STEP_ENDED = "end_step"
    CLOSED = "close"
    ADOPTED = "adopt"
    FINAL_DONE = "final"


_BETWEEN_ROUNDS = {
    Trigger.PAY: Stage.PAYING,
    Trigger.BEGIN_ROUND: Stage.ASSIGNING,
    Trigger.ADOPT: Stage.ADOPTING,
    Trigger.ROUNDS_OVER: Stage.FINISHING,
    Trigger.LEAVE: Stage.LEAVING,
}
_CUT_SHORT = {Trigger.CUT_SHORT: Stage.CLOSING, Trigger.STOP: Stage.STOPPED}
TRANSITIONS: dict[Stage, dict[Trigger, Stage]] = {
    Stage.JOINING: {**_BETWEEN_ROUNDS, Trigger.PULL: Stage.CATCHING_UP, Trigger.STOP: Stage.STOPPED},
    Stage.CATCHING_UP: {**_BETWEEN_ROUNDS, Trigger.STOP: Stage.STOPPED},
    Stage.ADOPTING: {**_BETWEEN_ROUNDS, Trigger.ADOPTED: Stage.ADOPTING},
    Stage.PAYING: {**_BETWEEN_ROUNDS, Trigger.SAVE: Stage.PAYING, Trigger.STOP: Stage.STOPPED},
    Stage.ASSIGNING: {Trigger.ASSIGNED: Stage.TRAINING, Trigger.SAT_OUT: Stage.OFFERING},
    Stage.TRAINING: {Trigger.TRAINED: Stage.OFFERING, Trigger.STOP: Stage.STOPPED},
    Stage.OFFERING: {**_CUT_SHORT, Trigger.OFFERED: Stage.EXCHANGING},
    Stage.EXCHANGING: {**_CUT_SHORT, Trigger.STEP_OVER: Stage.ENDING_STEP, Trigger.ROUND_OVER: Stage.CLOSING},
    Stage.ENDING_STEP: {Trigger.STEP_ENDED: Stage.OFFERING},
    Stage.CLOSING: {**_BETWEEN_ROUNDS, Trigger.CLOSED: Stage.CLOSING},
    Stage.FINISHING: {Trigger.FINAL_DONE: Stage.LINGERING},
    Stage.LINGERING: {Trigger.SAVE: Stage.LINGERING, Trigger.STOP: Stage.STOPPED},
    Stage.LEAVING: {Trigger.SAVE: Stage.LEAVING, Trigger.STOP: Stage.STOPPED},
    Stage.STOPPED: {},
}

# what a `WorkDone` triggers
WORK = {trigger.value: trigger for trigger in Trigger if trigger.value in get_args(WorkKind)}
EXCHANGE = (Stage.OFFERING, Stage.EXCHANGING)
OPEN = (Stage.TRAINING, *EXCHANGE)  # arrivals are read and folded; no other work reads the tensors
WORKING = (Stage.ADOPTING, Stage.ASSIGNING, Stage.ENDING_STEP, Stage.CLOSING, Stage.FINISHING)  # the models change


class Conditions(Protocol):
    """What guards ask, beside the stage."""

    @property
    def leaving(self) -> bool:
        """Whether this peer was asked to stop, or gives up."""

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written."""

    @property
    def behind(self) -> bool:
        """Whether the disk lacks the models with which the present round began."""

    @property
    def folding(self) -> bool:
        """Whether an arrival is being folded."""

    @property
    def trains(self) -> bool:
        """Whether this peer trains in the present round."""


Guard = Callable[[Conditions], bool]


def _stays(peer: Conditions) -> bool:
    return not peer.leaving


def _leaves_in_the_round(peer: Conditions) -> bool:
    """A checkpoint stands between two rounds: in the middle of one the models hold what the engine's state does not name."""
    return peer.leaving and peer.behind and not (peer.saving or peer.folding)


def _may_stop(peer: Conditions) -> bool:
    return not (peer.saving or peer.folding or (peer.leaving and peer.behind))


GUARDS: dict[Trigger, Guard] = {
    **dict.fromkeys((Trigger.PULL, Trigger.ADOPT, Trigger.PAY, Trigger.BEGIN_ROUND, Trigger.ROUNDS_OVER), _stays),
    **dict.fromkeys((Trigger.STEP_OVER, Trigger.ROUND_OVER), _stays),
    Trigger.ASSIGNED: lambda peer: peer.trains and not peer.leaving,
    Trigger.OFFERED: lambda peer: not (peer.saving or peer.leaving),
    **dict.fromkeys((Trigger.CUT_SHORT, Trigger.SAVE), _leaves_in_the_round),
    Trigger.LEAVE: lambda peer: peer.leaving,
    Trigger.STOP: _may_stop,
}


def may_take(stage: Stage, trigger: Trigger, peer: Conditions) -> bool:
    """Return whether the table has a transition and its guard holds."""
    return trigger in TRANSITIONS[stage] and (trigger not in GUARDS or GUARDS[trigger](peer))


def next_stage(stage: Stage, trigger: Trigger, peer: Conditions) -> Stage:
    """Return the stage that follows.

    Raises:
        LocalProtocolError: the table has no such transition, or its guard does not hold.
    """
    if may_take(stage, trigger, peer):
        return TRANSITIONS[stage][trigger]
    why = " now" if trigger in TRANSITIONS[stage] else ""
    raise LocalProtocolError(f"a peer that is {stage} cannot take '{trigger}'{why}")
