"""Deliberate bugs, each a few lines, that the simulation must find: the measure of what its invariants are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator_free_bootstrap.membership import Membership, NeighborState
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import FedSpdDecisions
from peer.core import averaging, model_store
from peer.core import effects as do
from peer.core.engine import Engine
from peer.core.inbox import Inbox
from peer.core.model_store import ModelStore
from peer.core.neighbors import NeighborView
from peer.core.outbox import Outbox
from peer.core.sending import Sending
from peer.core.state import Stage

Patch = Callable[[Any], None]  # takes pytest's monkeypatch

PLANTED: dict[str, Patch] = {}


def plant(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of (original, self, ...) as a bug that replaces ``owner.name``."""

    def register(buggy: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        def patch(monkeypatch: Any) -> None:
            monkeypatch.setattr(owner, name, lambda *args, **kw: buggy(original, *args, **kw))

        PLANTED[buggy.__name__] = patch
        return buggy

    return register


@plant(Inbox, "is_duplicate")
def duplicates_are_not_noticed(original, inbox, header):
    return False


@plant(Inbox, "is_duplicate")
def the_same_step_is_no_duplicate(original, inbox, header):
    mark = inbox.marks.get((header.sender, header.slot))
    return mark is not None and mark > (header.round_index, header.step)


@plant(Inbox, "restore")
def marks_are_not_read_from_the_checkpoint(original, inbox, rows):
    pass


@plant(Inbox, "buffers")
def buffers_that_wait_are_not_counted(original, inbox):
    return len(inbox.reading) + len(inbox.folding)


@plant(Engine, "admits")
def old_lives_are_heard(original, engine, sender, incarnation):
    view = engine.views.get(sender)
    return None if view is not None and 0 < incarnation <= view.incarnation else original(engine, sender, incarnation)


@plant(Engine, "_turn")
def models_are_folded_as_they_come(original, engine):
    return None


@plant(Engine, "_complete")
def one_model_less_is_enough(original, engine, neighbor):
    place = (engine.round_index, engine.step_index)
    view = engine.views[neighbor]
    return original(engine, neighbor) or len(view.delivered.get(place, ())) >= view.totals.get(place, 2) - 1


@plant(Engine, "_complete")
def who_has_announced_has_delivered(original, engine, neighbor):
    view = engine.views[neighbor]
    held = any(h.sender == neighbor for h in [*engine.inbox.held.values(), *engine.inbox.reading.values()])
    return original(engine, neighbor) or (held and view.round_index >= engine.round_index)


@plant(Outbox, "repost")
def a_new_life_is_not_told_again(original, outbox, neighbor, from_round):
    return 0


@plant(Outbox, "failed")
def what_failed_is_not_repeated(original, outbox, neighbor, now):
    lane = outbox._lanes[neighbor]
    original(outbox, neighbor, now)
    if lane.queue:
        lane.queue.popleft()


@plant(Outbox, "overdue")
def what_is_lost_without_a_word_is_not_sent_again(original, outbox, neighbor, now, patience_s):
    return False


@plant(Outbox, "clear")
def who_leaves_is_forgotten(original, outbox, neighbor):
    outbox._lanes[neighbor].queue.clear()
    outbox._lanes[neighbor].kept.clear()


@plant(Engine, "_leave")
def who_is_asked_to_leave_while_it_closes_a_round_stays(original, engine, now, out):
    if engine.stage is not Stage.LEAVING:
        original(engine, now, out)


@plant(Outbox, "owes")
def a_step_ends_while_offers_are_under_way(original, outbox, neighbor, place):
    return False


@plant(ModelStore, "_writable")
def a_snapshot_is_folded_into(original, store, slot):
    return store._slots[slot]


@plant(ModelStore, "merge")
def the_second_average_counts_as_one_model(original, store, slot, self_weight=1.0):
    if slot in store._asides and not store._batch:
        store._asides[slot].weight = min(1.0, store._asides[slot].weight)
    original(store, slot, self_weight)


@plant(ModelStore, "begin_round")
def weights_live_on_from_round_to_round(original, store, trained):
    weights = store._weights
    original(store, trained)
    store._weights = weights


@plant(model_store, "fold")
def the_counter_is_used_before_it_rises(original, average, weight_sum, arrival, weight=1.0):
    return averaging.fold(average, max(weight_sum - 1.0, 1e-9), arrival, weight) + 1.0


@plant(Engine, "_persist")
def nobody_waits_for_the_disk(original, engine, out):
    original(engine, out)
    engine.persisting = None


@plant(Engine, "state")
def a_checkpoint_has_no_marks(original, engine):
    return original(engine) | {"marks": []}


@plant(Membership, "tick")
def silence_is_no_sign_of_death(original, membership, now):
    return []


@plant(Membership, "heard")
def who_is_heard_is_alive(original, membership, neighbor, incarnation, now):
    return membership.answered(neighbor, incarnation, now)


@plant(Membership, "answered")
def the_dead_stay_dead(original, membership, neighbor, incarnation, now):
    dead = membership.state(neighbor) is NeighborState.DEAD and incarnation == membership.incarnation(neighbor)
    return [] if dead else original(membership, neighbor, incarnation, now)


@plant(Engine, "_ahead")
def nobody_catches_up(original, engine):
    return []


@plant(Engine, "_pass_round")
def skipped_rounds_are_not_passed(original, engine, round_index):
    pass


@plant(Engine, "_judge_held")
def unread_streams_are_never_answered(original, engine, out):
    pass


@plant(Engine, "_hang_up")
def streams_of_the_dead_stay_open(original, engine, view, out):
    pass


@plant(Engine, "_beat")
def no_beat_is_sent(original, engine, view, now, out):
    view.said_at = now


@plant(Engine, "_admit")
def models_are_folded_before_they_are_complete(original, engine, now, out):
    original(engine, now, out)
    for stream in [stream for stream in engine.inbox.reading if stream % 7 == 3]:
        engine.inbox.waiting[stream] = engine.inbox.reading.pop(stream)


@plant(NeighborView, "heard_round")
def the_last_word_on_a_round_wins(original, view, round_index, *, anew=False):
    view.round_index = round_index


def _closes_early(monkeypatch: Any) -> None:
    """`_exchange` looks at ``inbox.folding``; an inbox that hides it lets a step close beside a fold."""
    exchange = Engine._exchange

    def buggy(engine: Engine, now: float, out: list[do.Effect]) -> None:
        folding, engine.inbox.folding = engine.inbox.folding, {}
        exchange(engine, now, out)
        engine.inbox.folding = folding | engine.inbox.folding

    monkeypatch.setattr(Engine, "_exchange", buggy)


PLANTED["a_step_closes_while_a_fold_is_under_way"] = _closes_early


@plant(Engine, "_take")
def arrivals_are_booked_to_the_wrong_sender(original, engine, stream, header, out):
    before = len(out)
    original(engine, stream, header, out)
    for index in range(before, len(out)):
        effect = out[index]
        if isinstance(effect, do.Fold) and header.slot == 0:
            out[index] = replace(effect, header=replace(header, sender=engine.peer_id))


@plant(ModelStore, "snapshot")
def what_is_sent_is_a_model_of_zeros(original, store, key, model=None):
    original(store, key, np.zeros_like(store.model(key.slot)) if key.round_index == 2 else model)


# ---- a cluster is announced before training, and exchanged with co-selectors only (FedSPD) ------------------------------


@plant(Engine, "_unannounced")
def nobody_waits_for_announcements(original, engine):
    return []


@plant(FedSpdDecisions, "offers")
def models_go_to_those_that_selected_another_cluster(
    original, algorithm, facts, round_index, step, neighbor, announced
):
    if announced is not None and facts["selected"] >= 0:
        announced = replace(announced, selected=facts["selected"])
    return original(algorithm, facts, round_index, step, neighbor, announced)


@plant(FedSpdDecisions, "targets")
def a_model_is_folded_into_the_cluster_that_is_trained(original, algorithm, facts, header):
    found = original(algorithm, facts, header)
    unlike = algorithm.selecting(header.round_index) and facts["selected"] not in (-1, header.slot)
    return (do.Target(facts["selected"]),) if unlike else found


@plant(FedSpdDecisions, "agrees")
def co_selectors_are_not_counted(original, algorithm, facts, round_index, announced):
    return {}


@plant(FedSpdDecisions, "selects")
def what_is_announced_is_not_what_is_trained(original, algorithm, facts, round_index):
    said = original(algorithm, facts, round_index)
    return said and replace(said, selected=(said.selected + (round_index == 2)) % algorithm.slots)


@plant(Sending, "_announced_by")
def offers_follow_the_selection_of_the_round_before(original, sending, neighbor):
    before = sending.views[neighbor].announced.get((sending.round_index - 1, 0))
    return before or original(sending, neighbor)


@plant(FedSpd, "_relabeled")
def the_mixture_is_never_made_anew(original, algorithm, bench, z):
    return original(algorithm, bench, z) | {
        "mixture": bench.facts.get("mixture", [1 / algorithm.slots] * algorithm.slots)
    }
