"""Deliberate bugs, each a few lines, that the simulation must find: they measure what its invariants are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.handshake import Compared
from peer.algorithms import outer_step
from peer.algorithms.fedspd import FedSpd
from peer.algorithms.fedspd_decisions import FedSpdDecisions
from peer.core import averaging, encoding, model_store
from peer.core import contacts as contacts_module
from peer.core import effects as do
from peer.core import plan as plan_module
from peer.core.agreement import Agreement
from peer.core.arrivals import Arrivals
from peer.core.asynchronous import Async
from peer.core.catch_up import CatchUp
from peer.core.contacts import Contacts
from peer.core.deltas import DeltaReceiver, Publication, name_of
from peer.core.encoding import ErrorFeedback
from peer.core.ending import Ending
from peer.core.liveness import Liveness, NeighborState
from peer.core.lockstep import Lockstep
from peer.core.messages import Outcome
from peer.core.model_store import ModelStore
from peer.core.neighbor import Neighbor, Outbox
from peer.core.receiver import Receiver
from peer.core.rounds import RoundCycle
from peer.core.sender import Sender
from peer.core.stages import Stage
from peer.core.state import State
from peer.core.waiting import Start
from peer.host import host as host_module
from peer.host import receiving as receiving_module
from peer.host import sending as sending_module
from peer.host.host import PeerHost
from peer.host.receiving import Receiving
from tests.simulation.network import Network

Patch = Callable[[Any], None]  # takes pytest's monkeypatch

PLANTED: dict[str, Patch] = {}


def plant(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of (original, self, ...) as a bug that replaces ``owner.name``."""

    def register(buggy: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)
        taken, given = signature(buggy).parameters, signature(original).parameters
        assert len(taken) == len(given) + 1, f"{buggy.__name__} must take what {name} takes, and the original before it"

        def patch(monkeypatch: Any) -> None:
            monkeypatch.setattr(owner, name, lambda *args, **kw: buggy(original, *args, **kw))

        PLANTED[buggy.__name__] = patch
        return buggy

    return register


# ---- arrivals: exactly once, complete, in order ------------------------------------------------------------------------


@plant(Arrivals, "is_duplicate")
def duplicates_are_not_noticed(original, arrivals, header):
    return False


@plant(Arrivals, "is_duplicate")
def the_same_step_is_no_duplicate(original, arrivals, header):
    last = arrivals.folded.get((header.sender, header.slot))
    return last is not None and last > (header.round_index, header.step)


@plant(Arrivals, "restore")
def folded_models_are_not_read_from_the_checkpoint(original, arrivals, rows):
    pass


@plant(State, "checkpoint")
def a_checkpoint_omits_folded_models(original, state):
    return original(state) | {"folded": []}


@plant(Arrivals, "buffers")
def complete_arrivals_are_not_counted_as_buffers(original, arrivals):
    return len(arrivals.reading) + len(arrivals.folding)


@plant(Receiver, "rejects_sender")
def old_incarnations_are_accepted(original, receiver, sender, incarnation):
    known = receiver._state.neighbors.get(sender)
    accepted = known is not None and known.connected and 0 < incarnation <= known.incarnation
    return None if accepted else original(receiver, sender, incarnation)


@plant(Lockstep, "turn")
def models_are_folded_as_they_come(original, pace):
    return None


@plant(State, "has_delivered")
def one_model_less_is_enough(original, state, n):
    neighbor, place = state.neighbors[n], state.round.current
    return original(state, n) or len(neighbor.delivered.get(place, ())) >= neighbor.totals.get(place, 2) - 1


@plant(State, "has_delivered")
def an_offer_counts_as_a_delivery(original, state, n):
    arrivals = state.arrivals
    offers = any(each.sender == n for each in [*arrivals.offered.values(), *arrivals.reading.values()])
    return original(state, n) or (offers and state.neighbors[n].round_index >= state.round.index)


@plant(Receiver, "_answer_unread")
def unread_offers_are_never_answered(original, receiver):
    pass


@plant(Receiver, "_read_offered")
def models_are_folded_before_they_are_complete(original, receiver, now):
    original(receiver, now)
    arrivals = receiver._state.arrivals
    for stream in [stream for stream in arrivals.reading if stream % 7 == 3]:
        arrivals.complete[stream] = arrivals.reading.pop(stream)


@plant(Receiver, "_fold")
def arrivals_are_booked_to_the_wrong_sender(original, receiver, arrival):
    state, header = receiver._state, arrival.header
    before = len(state.effects)
    original(receiver, arrival)
    for index in range(before, len(state.effects)):
        effect = state.effects[index]
        if isinstance(effect, do.FoldArrival) and header.slot == 0:
            state.effects[index] = replace(
                effect, arrival=replace(arrival, header=replace(header, sender=state.peer_id))
            )


@plant(Receiver, "advance")
def a_step_stays_open_though_its_last_model_is_answered(original, receiver, now):
    original(receiver, now)
    return False


def _closes_early(monkeypatch: Any) -> None:
    """`exchange` reads ``arrivals.folding``; a state that hides it lets a step close beside a fold."""
    exchange = RoundCycle.exchange

    def buggy(rounds: RoundCycle, now: float) -> None:
        arrivals = rounds._state.arrivals
        folding, arrivals.folding = arrivals.folding, {}
        exchange(rounds, now)
        arrivals.folding = folding | arrivals.folding

    monkeypatch.setattr(RoundCycle, "exchange", buggy)


PLANTED["a_step_closes_while_a_fold_is_under_way"] = _closes_early


@plant(Lockstep, "numbers")
def numbers_of_a_later_step_are_read(original, pace):
    return Async.numbers(pace)


# ---- one edge a round, and the outer step -------------------------------------------------------------------------------


@plant(plan_module, "neighbors_in_round")
def the_one_edge_is_that_of_the_next_round(original, graph, round_index, peer_id):
    return original(graph, round_index + (graph.manifest.edges == "one"), peer_id)


@plant(plan_module, "neighbors_in_round")
def a_peer_without_an_edge_in_the_round_exchanges_with_all(original, graph, round_index, peer_id):
    return original(graph, round_index, peer_id) or graph.neighbors(peer_id)


@plant(outer_step, "forget")
def catching_up_keeps_the_momentum_of_the_outer_step(original, workspace):
    pass


# ---- sending -----------------------------------------------------------------------------------------------------------


@plant(Outbox, "repost")
def a_restarted_neighbor_gets_nothing_again(original, outbox, from_round):
    pass


@plant(Outbox, "failed")
def failed_messages_are_not_retried(original, outbox, now):
    original(outbox, now)
    if outbox._queue:
        outbox._queue.popleft()


@plant(Outbox, "is_overdue")
def stalled_pushes_are_not_retried(original, outbox, now, patience_s):
    return False


@plant(Outbox, "clear")
def a_goodbye_clears_the_kept_messages(original, outbox):
    outbox._queue.clear()
    outbox._kept.clear()


@plant(Outbox, "owes")
def a_step_ends_while_offers_are_under_way(original, outbox, round_step, from_round):
    return False


@plant(Sender, "post_passes")
def skipped_rounds_are_not_passed(original, sender, round_index):
    pass


# ---- models ------------------------------------------------------------------------------------------------------------


@plant(ModelStore, "_writable")
def a_snapshot_is_folded_into(original, store, slot):
    return store._slots[slot]


@plant(ModelStore, "merge")
def the_second_average_counts_as_one_model(original, store, slot, self_weight=1.0):
    if slot in store._deferred and not store._batch:
        store._deferred[slot].weight = min(1.0, store._deferred[slot].weight)
    original(store, slot, self_weight)


@plant(ModelStore, "begin_round")
def weights_are_kept_from_round_to_round(original, store, trained):
    weights = store._weights
    original(store, trained)
    store._weights = weights


@plant(model_store, "fold")
def the_weight_sum_is_used_before_it_rises(original, average, weight_sum, arrival, weight=1.0):
    return averaging.fold(average, max(weight_sum - 1.0, 1e-9), arrival, weight) + 1.0


@plant(ModelStore, "take_snapshot")
def a_model_of_zeros_is_sent(original, store, key, model=None):
    original(store, key, np.zeros_like(store.model(key.slot)) if key.round_index == 2 else model)


# ---- screening and encodings -------------------------------------------------------------------------------------------


@plant(receiving_module, "clip")
def clipping_pulls_towards_zero(original, arrival, center, radius):
    return original(arrival, np.zeros_like(center), radius)


@plant(receiving_module, "clip")
def clipping_moves_by_the_radius(original, arrival, center, radius):
    distance = float(np.linalg.norm(arrival - center))
    if distance > radius:
        arrival += np.float32(radius / distance) * (center - arrival)
    return 1.0


@plant(Receiving, "fold")
def clipping_is_forgotten(original, receiving, effect):
    receiving._centers = {}
    original(receiving, effect)


@plant(receiving_module, "check_norm")
def the_norm_bound_is_not_squared(original, norm_squared, own_norm_squared, bound):
    return original(norm_squared, own_norm_squared, None if bound is None else bound**0.5)


@plant(Receiving, "screen")
def the_norm_bound_is_ignored(original, receiving, arrival):
    rejection: Refusal | None = original(receiving, arrival)
    return None if rejection is not None and rejection.code == "norm_bound" else rejection


@plant(model_store, "trimmed_mean")
def nothing_is_trimmed(original, models, weights, share, out):
    original(models, weights, 0.0, out)


@plant(model_store, "trimmed_mean")
def only_the_largest_are_trimmed(original, models, weights, share, out):
    cut = int(share * len(models))
    order = np.argsort(np.stack(models), axis=0, kind="stable")[: len(models) - cut]
    kept = np.take_along_axis(np.stack(models), order, axis=0)
    out[:] = kept.mean(axis=0)


@plant(ErrorFeedback, "encode")
def what_int8_leaves_out_is_lost(original, feedback, theta, name):
    feedback.residual[:] = 0
    return original(feedback, theta, name)


@plant(ErrorFeedback, "encode")
def what_int8_leaves_out_is_subtracted(original, feedback, theta, name):
    feedback.residual *= np.float32(-1)
    return original(feedback, theta, name)


@plant(DeltaReceiver, "restore")
def a_delta_is_added_to_any_base(original, kept, header, payload):
    name, _ = kept._bases.get((header.sender, header.slot), (header.base, None))
    return original(kept, replace(header, base=name), payload)


@plant(DeltaReceiver, "keep")
def the_first_base_is_kept_forever(original, kept, header, model):
    if (header.sender, header.slot) not in kept._bases:
        original(kept, header, model)
    base = kept._bases[header.sender, header.slot][1]
    kept._bases[header.sender, header.slot] = name_of(model), base


@plant(Publication, "published")
def what_a_delta_leaves_out_is_taken_as_sent(original, offer, schema, name):
    snapshot = offer._source[0] if offer._source else None
    published = original(offer, schema, name)
    if snapshot is not None and published.change is not None:
        offer._published = replace(published, model=snapshot, name=name_of(snapshot))
    return offer._published


@plant(encoding, "_to_bfloat16")
def bfloat16_is_cut_and_not_rounded(original, theta):
    return (theta.view(np.uint32) >> 16).astype("<u2")


@plant(sending_module, "encode")
def float16_is_rounded_twice(original, theta, schema, name):
    if name == "float16":
        theta = (np.rint(theta * 64) / 64).astype(np.float32)
    return original(theta, schema, name)


@plant(receiving_module, "decode")
def int8_scales_are_swapped_for_their_magnitude(original, payload, schema, name):
    model = original(payload, schema, name)
    return np.abs(model) if name == "int8" else model


# ---- checkpoints and leaving -------------------------------------------------------------------------------------------


@plant(State, "write_checkpoint")
def offers_do_not_wait_for_the_checkpoint(original, state):
    original(state)
    state.disk.writing = None


@plant(Ending, "leave")
def a_leaving_peer_stays_while_it_closes_a_round(original, ending, now):
    if ending._state.stage is not Stage.LEAVING:
        original(ending, now)


# ---- neighbors ---------------------------------------------------------------------------------------------------------


@plant(contacts_module, "check_all")
def silent_neighbors_are_not_marked_dead(original, neighbors, now, heartbeat_s):
    return {}


@plant(Liveness, "heard")
def a_heard_neighbor_is_alive(original, liveness, now, restarted_as=None):
    return liveness.answered(now, restarted_as)


@plant(Liveness, "answered")
def dead_neighbors_stay_dead(original, liveness, now, restarted_as=None):
    dead = liveness.state is NeighborState.DEAD and restarted_as is None
    return None if dead else original(liveness, now, restarted_as)


@plant(CatchUp, "ahead")
def peers_do_not_catch_up(original, catch_up):
    return []


@plant(Contacts, "_hang_up")
def streams_of_dead_neighbors_stay_open(original, contacts, neighbor):
    pass


@plant(Contacts, "send_heartbeat")
def heartbeats_are_not_sent(original, contacts, neighbor, now):
    neighbor.sent_at = now


@plant(Neighbor, "note_round")
def the_last_round_heard_wins(original, neighbor, round_index):
    neighbor.round_index = round_index


# ---- a cluster is selected before training, and exchanged with co-selectors only (FedSPD) -----------------------------


@plant(Lockstep, "missing_selections")
def selections_are_not_waited_for(original, pace):
    return []


@plant(FedSpdDecisions, "offers")
def models_go_to_those_that_selected_another_cluster(original, algorithm, state, round_index, step, neighbor, select):
    if select is not None and state.selected >= 0:
        select = replace(select, selected=state.selected)
    return original(algorithm, state, round_index, step, neighbor, select)


@plant(FedSpdDecisions, "targets")
def a_model_is_folded_into_the_cluster_that_is_trained(original, algorithm, state, header):
    found = original(algorithm, state, header)
    unlike = algorithm.selecting(header.round_index) and state.selected not in (-1, header.slot)
    return (do.Target(state.selected),) if unlike else found


@plant(FedSpdDecisions, "agrees")
def co_selectors_are_not_counted(original, algorithm, state, round_index, selections):
    return state


@plant(FedSpdDecisions, "selects")
def the_selection_sent_is_not_the_cluster_trained(original, algorithm, state, round_index):
    select = original(algorithm, state, round_index)
    return select and replace(select, selected=(select.selected + (round_index == 2)) % algorithm.slots)


@plant(Lockstep, "selection_of")
def offers_follow_the_selection_of_the_round_before(original, pace, neighbor, round_index):
    return neighbor.selections.get(round_index - 1) or original(pace, neighbor, round_index)


@plant(FedSpd, "_set_labels")
def the_mixture_is_never_computed_again(original, algorithm, state, z):
    return replace(original(algorithm, state, z), mixture=state.mixture or (1 / algorithm.slots,) * algorithm.slots)


# ---- tunnels: an edge over which one end is called is an edge like any other ------------------------------------------


def _once(monkeypatch: Any) -> None:
    """What is lost, by `lose_tunnel` or with a process at one of its ends, stays lost; `heal` cannot open it."""
    lose, has_offer, lost = Network.lose_tunnel, Network._has_offer, set()

    def loses(network: Network, edge: tuple[int, int]) -> None:
        lose(network, edge)
        lost.update({(network, edge), (network, edge[::-1])})

    def has(network: Network, *edge: int) -> bool:
        before, found = network.links[edge].ends, has_offer(network, *edge)
        if before and None not in before and network.links[edge].ends != before:
            lost.add((network, edge))
        return found and (network, edge) not in lost

    monkeypatch.setattr(Network, "lose_tunnel", loses)
    monkeypatch.setattr(Network, "_has_offer", has)


PLANTED["a_lost_tunnel_is_never_opened_again"] = _once


@plant(Network, "push")
def a_tunnel_leads_to_another_neighbor_of_its_holder(original, network, sender, target, header, payload):
    held = sorted(
        edge[1] for edge, link in network.links.items() if edge[0] == sender.peer_id and link.holder is not None
    )
    return original(network, sender, held[-1] if target in held else target, header, payload)


@plant(Network, "_break")
def what_a_lost_tunnel_carried_is_taken_as_delivered(original, network, push, at_once=False):
    if at_once and network.links[push.source, push.target].holder is not None and push.sender is not None:
        push.sender_done = True
        push.sender.answered(push, Outcome.FOLDED)
    original(network, push, at_once)


# ---- the start ----------------------------------------------------------------------------------------------------------


@plant(Start, "fails")
def everyone_is_waited_for_until_the_deadline_only(original, start, now):
    return None


@plant(Agreement, "may_begin")
def everyone_is_the_neighbors_only(original, agreement, now):
    sites = agreement._state.sites
    return (sites is not None and sites.size == 0) or original(agreement, now)


# ---- another graph file ---------------------------------------------------------------------------------------------------


@plant(Compared, "revisions_after")
def files_far_apart_exchange(original, mine, theirs):
    after = original(mine, theirs)
    return after and max(-1, min(1, after))


@plant(Ending, "ask_for_change")
def the_round_of_a_change_is_ignored(original, ending, event):
    original(ending, replace(event, from_round=0))


@plant(Ending, "change")
def a_change_cuts_the_round_short(original, ending):
    if ending._state.change_is_due:
        ending.ask(ending._state.changes_as)


@plant(Ending, "exclude")
def a_peer_that_nobody_works_with_trains_on(original, ending, now):
    pass


@plant(host_module, "check_hello")
def former_peers_are_forgotten(original, mine, theirs, neighbors, last_incarnation=0, removed=(), one_graph=False):
    return original(mine, theirs, neighbors=neighbors, last_incarnation=last_incarnation, one_graph=one_graph)


@plant(State, "changing")
def a_neighbor_that_changes_in_the_same_round_is_not_waited_for(original, state):
    return []


# ---- the tests of the last round's models ------------------------------------------------------------------------------


@plant(Receiving, "_is_tested")
def a_model_of_an_earlier_round_is_tested(original, receiving, header):
    return header.step == 0


@plant(PeerHost, "checkpoint")
def a_restart_after_the_last_round_loses_the_tests(original, host, effect):
    kept = original(host, effect)
    return replace(kept, state={**kept.state, "model_tests": []})
