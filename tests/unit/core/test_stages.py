"""The transition table: what is in it leads from joining to stopped, and what is not in it raises."""

import re

import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.core import engine
from peer.core.stages import OPEN, TRANSITIONS, WORKING, Stage, Trigger, next_stage

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
    with pytest.raises(LocalProtocolError, match=f"a peer that is {stage} cannot take '{trigger}'"):
        next_stage(stage, trigger)


@pytest.mark.parametrize(("stage", "trigger"), [(s, t) for s, t in PAIRS if t in TRANSITIONS[s]])
def test_trigger_in_the_table_leads_to_its_stage(stage, trigger):
    assert next_stage(stage, trigger) is TRANSITIONS[stage][trigger]


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
