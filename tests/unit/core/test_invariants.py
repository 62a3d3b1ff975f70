"""Each invariant of the engine fires on a state that breaks it, holds on the same state before, and is checked by every step."""

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

import peer
from peer.core import effects as do
from peer.core import events as ev
from peer.core import invariants
from peer.core.arrivals import Arrival
from peer.core.engine import Engine
from peer.core.invariants import ALWAYS, BY_STAGE, InvariantBroken, check
from peer.core.messages import Numbers, Pass, Select
from peer.core.neighbor import SELECTIONS_MAX
from peer.core.sites import Sites
from peer.core.stages import Stage
from tests.unit.core.test_pace import Driven, header
from tests.unit.core.test_privacy_budget import budget_of

ALL = {function.__name__: function for function in (*ALWAYS, *(f for row in BY_STAGE.values() for f in row))}


# ---- a peer in each stage -----------------------------------------------------------------------------------------------


def joining():
    return Driven("lockstep")


def catching_up():
    driven = Driven("lockstep", peers=4)
    driven.hello(2, 2), driven.hello(1), driven.hello(3)
    return driven


def assigning():
    driven = Driven("lockstep")
    driven.hello(1), driven.hello(2)
    return driven


def paying():
    """The checkpoint with the charge of round 0 is being written."""
    driven = Driven("lockstep", budget=budget_of())
    driven.hello(1), driven.hello(2)
    return driven


def training_privately():
    driven = paying()
    driven.step(ev.CheckpointWritten(0)), driven.work("assign")
    return driven


def training():
    driven = assigning()
    driven.work("assign")
    return driven


def exchanging(**run):
    driven = Driven("lockstep", **run)
    driven.exchange()
    return driven


def folding():
    driven = exchanging(clusters=1)
    arrival = Arrival(header(1), stream=1)
    driven.step(ev.ArrivalOffered(arrival)), driven.step(ev.ArrivalComplete(arrival))
    return driven


def async_folding():
    driven = Driven("async", clusters=1)
    for n in (1, 2):
        driven.hello(n)
    driven.work("assign")
    arrival = Arrival(header(1), stream=1)
    driven.step(ev.ArrivalOffered(arrival)), driven.step(ev.ArrivalComplete(arrival))
    driven.work("train")
    return driven


def ending_step():
    driven = exchanging()
    driven.state.plan = replace(driven.state.plan, steps=2)
    driven.take_all(1, 2), driven.passes(1), driven.passes(2)
    return driven


def closing():
    driven = exchanging()
    driven.take_all(1, 2), driven.passes(1), driven.passes(2)
    return driven


def saving():
    """The checkpoint of round 1 is being written."""
    driven = closing()
    driven.work("close")
    return driven


def offering():
    driven = saving()
    driven.work("assign"), driven.work("train")
    return driven


def finishing():
    driven = Driven("lockstep", rounds=1, checkpoint_rounds=0)
    driven.exchange(), driven.take_all(1, 2), driven.passes(1), driven.passes(2)
    driven.work("close")
    return driven


def leaving():
    driven = closing()
    driven.step(ev.LeaveRequested())
    driven.work("close")
    return driven


def stopped():
    driven = joining()
    driven.step(ev.LeaveRequested())
    return driven


# ---- how each is broken -------------------------------------------------------------------------------------------------


def effect_of(driven, effect):
    driven.state.effects = [*driven.state.effects, effect]


def put(table, stream, sender=1):
    return lambda driven: getattr(driven.state.arrivals, table).update({stream: Arrival(header(sender), stream=stream)})


def in_two_tables(driven):
    for table in ("offered", "reading"):
        put(table, 7)(driven)


def two_readers(driven):
    put("reading", 7)(driven), put("reading", 8)(driven)


def all_buffers(driven):
    most = driven.state.constants.concurrent_receives
    for stream in range(most + 1):
        put("complete", 10 + stream)(driven)


def many_selections(driven):
    driven.state.neighbors[1].selections = {t: Select(1, 1, t) for t in range(SELECTIONS_MAX + 1)}


def many_messages(driven):
    for _ in range(100):
        driven.state.neighbors[1].outbox.post(Pass(0, 1, 0, 0))


def setting(path, value):
    def break_it(driven):
        *parents, name = path.split(".")
        owner = driven.state
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)

    return break_it


def in_the_plan(**changes):
    return lambda driven: setattr(driven.state, "plan", replace(driven.state.plan, **changes))


def all_delivered(driven):
    for n in (1, 2):
        driven.state.neighbors[n].note_pass(Pass(n, 1, 0, 0))
        driven.state.neighbors[n].outbox = type(driven.state.neighbors[n].outbox)(0, n)


def unasked(driven):
    in_the_plan(asking=True, asked=frozenset({2}))(driven)
    driven.state.planner.plan = lambda t: driven.state.plan
    effect_of(driven, do.FoldArrival(Arrival(header(1), stream=1), ()))
    driven.state.arrivals.mark_folded(header(1))


def of_a_later_step(driven):
    effect_of(driven, do.FoldArrival(Arrival(header(1, 1), stream=1), ()))
    driven.state.arrivals.mark_folded(header(1, 1))


def forgotten(driven):
    effect_of(driven, do.FoldArrival(Arrival(header(1), stream=1), ()))
    driven.state.arrivals.folded.clear()


def no_timer(driven):
    driven.state.effects = [effect for effect in driven.state.effects if not isinstance(effect, do.SetTimer)]


def unknown_sites(driven):
    driven.state.sites = Sites(0, Numbers.of(1.0), (0, 1, 2), lambda numbers: "")


def live_stranger(driven):
    driven.state.neighbors[1].connected = False


BREAKS = [
    ("round_is_in_range", training, setting("round.step", 1)),
    ("round_is_in_range", training, setting("round.index", 41)),
    ("plan_is_of_the_round", training, setting("round.index", 3)),
    ("stream_is_in_one_table", training, in_two_tables),
    ("streams_are_of_neighbors", training, put("offered", 7, sender=9)),
    ("streams_are_of_neighbors", joining, put("offered", 7)),
    ("buffers_are_bounded", training, two_readers),
    ("buffers_are_bounded", training, all_buffers),
    ("messages_do_not_pile_up", training, many_selections),
    ("messages_do_not_pile_up", training, many_messages),
    ("sites_are_known", training, unknown_sites),
    ("live_neighbors_are_connected", training, live_stranger),
    ("disk_is_not_ahead", training, setting("disk.saved_round", 1)),
    ("disk_is_not_ahead", training, setting("disk.writing", 1)),
    ("nothing_unsaved_is_sent", saving, lambda d: effect_of(d, do.SendModel(1, header(0, 1)))),
    ("nothing_unsaved_is_sent", saving, lambda d: effect_of(d, do.SendControl(1, Select(0, 1, 1)))),
    ("folds_belong_to_open_steps", folding, of_a_later_step),
    ("folds_belong_to_open_steps", folding, unasked),
    ("folds_are_remembered", folding, forgotten),
    ("leaving_peer_is_not_idle", exchanging, setting("leaves_as", "left")),
    ("leaving_peer_is_not_idle", training, setting("leaves_as", "left")),
    ("no_round_has_begun", joining, setting("round.began_at", 1.0)),
    ("no_round_has_begun", catching_up, put("complete", 7)),
    ("pull_is_pending", catching_up, lambda d: d.engine.catch_up.pulling.clear()),
    *(("models_change_alone", stage, put("folding", 7)) for stage in (assigning, ending_step, closing, finishing)),
    ("models_change_alone", leaving, put("folding", 7)),
    ("nothing_is_decided_yet", assigning, setting("round.agreed", {})),
    ("nothing_is_decided_yet", assigning, in_the_plan(asked=frozenset())),
    ("charge_is_being_saved", paying, setting("disk.writing", None)),
    ("charge_is_being_saved", paying, put("folding", 7)),
    ("training_is_paid_for", training_privately, setting("budget.paid_round", -1)),
    ("peer_trains_in_the_round", training, in_the_plan(trains=False)),
    (
        "offers_wait_for_something",
        offering,
        lambda d: (setting("disk.writing", None)(d), setting("round.agreed", {})(d)),
    ),
    ("offers_are_allowed", exchanging, setting("disk.writing", 0)),
    ("offers_are_allowed", exchanging, setting("round.agreed", None)),
    ("step_waits_for_something", exchanging, all_delivered),
    ("step_waits_for_something", exchanging, no_timer),
    ("step_waits_for_something", async_folding, lambda d: d.state.arrivals.folding.clear()),
    ("another_step_follows", ending_step, in_the_plan(steps=1)),
    ("all_rounds_are_done", finishing, put("offered", 7)),
    ("all_rounds_are_done", finishing, lambda d: d.state.enter_round(0)),
    ("only_the_disk_is_waited_for", leaving, setting("leaves_as", None)),
    ("everything_is_answered", stopped, setting("effects", [])),
]


@pytest.mark.parametrize(
    ("name", "stage", "breaks"), BREAKS, ids=[f"{n}-{s.__name__}-{i}" for i, (n, s, _) in enumerate(BREAKS)]
)
def test_a_broken_invariant_is_found(name, stage, breaks):
    driven = stage()
    check(driven.engine.moment())
    breaks(driven)
    moment = driven.engine.moment()
    assert ALL[name](moment), "holds although it is broken"
    with pytest.raises(InvariantBroken):
        check(moment)


def test_every_invariant_is_broken_once():
    assert {name for name, _, _ in BREAKS} == set(ALL)
    defined = {n for n, f in inspect.getmembers(invariants, inspect.isfunction) if f.__module__ == invariants.__name__}
    assert defined == {*ALL, "check"}, "an invariant stands in no table"


def test_every_stage_has_invariants():
    assert set(BY_STAGE) == set(Stage) and all(BY_STAGE.values())


def test_every_step_ends_with_the_invariants_where_the_engine_validates(monkeypatch):
    driven = exchanging()
    driven.state.disk.saved_round = 5
    with pytest.raises(
        InvariantBroken, match=r"disk_is_not_ahead is broken .* in stage exchanging: .* round 5 in round 0"
    ):
        driven.step(ev.Tick())
    monkeypatch.setattr(Engine, "validate", False)
    driven.step(ev.Tick())


def test_tests_validate_and_no_code_of_the_product_does():
    assert Engine.validate
    root = Path(peer.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(target, "attr", "") for target in getattr(node, "targets", ())]
            assert "validate" not in names, path
