"""The transition table: what is in it leads from joining to stopped, and what is not in it raises."""

import itertools
import re
from dataclasses import dataclass

import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import engine
from peer.core.stages import GUARDS, OPEN, TRANSITIONS, WORKING, Stage, Trigger, may_take, next_stage


@dataclass
class Conditions:
    leaving: bool = False
    saving: bool = False
    behind: bool = False
    folding: bool = False
    trains: bool = True


EVERY = [Conditions(*values) for values in itertools.product((False, True), repeat=5)]
PAIRS = [(stage, trigger) for stage in Stage for trigger in Trigger]


def reached_from(stage):
    """Return every stage that some sequence of triggers leads to, the first included."""
    found, new = {stage}, [stage]
    while new:
        following = set(TRANSITIONS[new.pop()].values()) - found
        found |= following
        new += following
    return found


@pytest.mark.parametrize(("stage", "trigger"), [(s, t) for s, t in PAIRS if t not in TRANSITIONS[s]])
def test_trigger_that_is_not_in_the_table_raises(stage, trigger):
    for peer in EVERY:
        with pytest.raises(LocalProtocolError, match=f"a peer that is {stage} cannot take '{trigger}'$"):
            next_stage(stage, trigger, peer)


@pytest.mark.parametrize(("stage", "trigger"), [(s, t) for s, t in PAIRS if t in TRANSITIONS[s]])
def test_trigger_in_the_table_leads_to_its_stage_if_its_guard_holds(stage, trigger):
    allowed = [may_take(stage, trigger, peer) for peer in EVERY]
    assert any(allowed) and all(allowed) == (trigger not in GUARDS)
    for peer, holds in zip(EVERY, allowed, strict=True):
        if holds:
            assert next_stage(stage, trigger, peer) is TRANSITIONS[stage][trigger]
        else:
            with pytest.raises(LocalProtocolError, match=f"a peer that is {stage} cannot take '{trigger}' now"):
                next_stage(stage, trigger, peer)


def taken(stage, **conditions):
    """Return what a peer may take in a stage, apart from the ends of work."""
    return {t for t in TRANSITIONS[stage] if t in GUARDS and may_take(stage, t, Conditions(**conditions))}


@pytest.mark.parametrize(
    ("stage", "conditions", "triggers"),
    [
        (Stage.TRAINING, {}, {Trigger.STOP}),
        (Stage.TRAINING, {"leaving": True}, {Trigger.STOP}),
        (Stage.TRAINING, {"leaving": True, "behind": True}, set()),  # its round is closed with what has come
        (Stage.OFFERING, {"saving": True}, set()),
        (Stage.OFFERING, {"leaving": True, "behind": True}, {Trigger.CUT_SHORT}),
        (Stage.OFFERING, {"leaving": True, "behind": True, "folding": True}, set()),
        (Stage.EXCHANGING, {"leaving": True}, {Trigger.STOP}),
        (Stage.EXCHANGING, {"leaving": True, "behind": True}, {Trigger.CUT_SHORT}),
        (Stage.CLOSING, {"leaving": True}, {Trigger.LEAVE}),
        (Stage.LEAVING, {"leaving": True, "behind": True, "saving": True}, set()),
        (Stage.LEAVING, {"leaving": True, "behind": True}, {Trigger.SAVE}),
        (Stage.LEAVING, {"leaving": True}, {Trigger.STOP}),
        (Stage.LINGERING, {"behind": True}, {Trigger.STOP}),  # without checkpoints
        (Stage.LINGERING, {"leaving": True, "behind": True}, {Trigger.SAVE}),
    ],
)
def test_a_leaving_peer_stops_as_soon_as_disk_and_models_agree(stage, conditions, triggers):
    assert taken(stage, **conditions) == triggers


@pytest.mark.parametrize("stage", [s for s in Stage if s not in (*WORKING, Stage.STOPPED)])
def test_a_leaving_peer_is_never_stuck_unless_something_is_under_way(stage):
    for behind in (False, True):
        may = taken(stage, leaving=True, behind=behind)
        assert may or (stage, behind) == (Stage.TRAINING, True) or stage in (Stage.JOINING, Stage.CATCHING_UP)


def test_every_stage_can_be_reached_from_joining():
    assert reached_from(Stage.JOINING) == set(Stage)


@pytest.mark.parametrize("stage", Stage)
def test_stopped_can_be_reached_from_every_stage(stage):
    assert Stage.STOPPED in reached_from(stage)


def test_stopped_is_final():
    assert TRANSITIONS[Stage.STOPPED] == {}


@pytest.mark.parametrize("trigger", Trigger)
def test_every_trigger_is_in_the_table(trigger):
    assert any(trigger in row for row in TRANSITIONS.values())


def test_models_do_not_change_while_arrivals_are_folded():
    assert not set(OPEN) & set(WORKING)


def test_diagram_of_the_engine_names_every_stage():
    head = engine.__doc__.split("The parts:")[0]
    named = set(re.findall(r"[a-z_]+", head))
    assert {str(stage) for stage in Stage} <= named
    diagram = re.search(r"joining -> (.+?)\n\n", head, re.DOTALL).group(1)
    drawn = {"joining", *re.findall(r"[a-z_]+", diagram)}
    assert drawn == {str(stage) for stage in Stage} - {"leaving"}, "a peer may leave in any stage"
