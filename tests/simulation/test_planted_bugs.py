"""Goal: the simulation is able to fail. Each planted bug must break an invariant, or the reference's bits, within few seeds.

The seed that found a bug when it was planted is tried first; should the simulation have changed since, the search continues.
"""

import pytest

from coordinator_free_bootstrap.errors import PeerError
from tests.simulation.bugs import PLANTED
from tests.simulation.options import draw
from tests.simulation.runner import run_one
from tests.simulation.small_runs import (
    assert_equals_reference,
    async_with_kills,
    former_peer,
    with_a_change,
    with_forgotten_pushes,
    with_restarts,
    without_faults,
)

pytestmark = pytest.mark.slow

SEEDS = 150  # of the swarm; four more in every ten have an encoding and screening
KILLS = 24
FOUND_AT = {
    "duplicates_are_not_noticed": "kill 1",
    "the_same_step_is_no_duplicate": "kill 1",
    "folded_models_are_not_read_from_the_checkpoint": "async kill 5",
    "complete_arrivals_are_not_counted_as_buffers": "kill 1",
    "old_incarnations_are_accepted": "seed 1",
    "a_restarted_neighbor_gets_nothing_again": "kill 1",
    "failed_messages_are_not_retried": "kill 1",
    "stalled_pushes_are_not_retried": "vanished 0",
    "a_goodbye_clears_the_kept_messages": "seed 179",
    "a_step_ends_while_offers_are_under_way": "kill 18",
    "a_snapshot_is_folded_into": "kill 1",
    "offers_do_not_wait_for_the_checkpoint": "seed 10",
    "a_checkpoint_omits_folded_models": "async kill 5",
    "silent_neighbors_are_not_marked_dead": "seed 1",
    "dead_neighbors_stay_dead": "seed 46",
    "skipped_rounds_are_not_passed": "seed 45",
    "unread_offers_are_never_answered": "seed 92",
    "streams_of_dead_neighbors_stay_open": "kill 17",
    "a_heard_neighbor_is_alive": "seed 1",
    "models_are_folded_before_they_are_complete": "kill 0",
    "a_delta_is_added_to_any_base": "seed 1953",
    "the_first_base_is_kept_forever": "seed 43",
    "what_a_delta_leaves_out_is_taken_as_sent": "seed 43",
    "the_last_round_heard_wins": "seed 1",
    "a_step_stays_open_though_its_last_model_is_answered": "fedspd 1",
    "selections_are_not_waited_for": "fedspd 0",
    "models_go_to_those_that_selected_another_cluster": "fedspd 0",
    "a_model_is_folded_into_the_cluster_that_is_trained": "fedspd 1",
    "co_selectors_are_not_counted": "fedspd 2",
    "the_selection_sent_is_not_the_cluster_trained": "fedspd 0",
    "offers_follow_the_selection_of_the_round_before": "seed 54",
    "the_mixture_is_never_computed_again": "fedspd 3",
    "a_lost_tunnel_is_never_opened_again": "seed 117",
    "a_tunnel_leads_to_another_neighbor_of_its_holder": "seed 4",
    "what_a_lost_tunnel_carried_is_taken_as_delivered": "seed 579",
    "the_one_edge_is_that_of_the_next_round": "seed 0",
    "a_peer_without_an_edge_in_the_round_exchanges_with_all": "seed 0",
    "catching_up_keeps_the_momentum_of_the_outer_step": "seed 94",
    "numbers_of_a_later_step_are_read": "seed 118",
    "peers_do_not_catch_up": "seed 4",
    "clipping_pulls_towards_zero": "seed 0",
    "clipping_moves_by_the_radius": "seed 0",
    "clipping_is_forgotten": "seed 0",
    "the_norm_bound_is_not_squared": "seed 10",
    "the_norm_bound_is_ignored": "seed 10",
    "nothing_is_trimmed": "seed 35",
    "only_the_largest_are_trimmed": "seed 8",
    "what_int8_leaves_out_is_lost": "seed 8",
    "what_int8_leaves_out_is_subtracted": "seed 8",
    "bfloat16_is_cut_and_not_rounded": "seed 10",
    "float16_is_rounded_twice": "seed 5",
    "int8_scales_are_swapped_for_their_magnitude": "seed 0",
    "a_leaving_peer_stays_while_it_closes_a_round": "seed 33",
    "everyone_is_waited_for_until_the_deadline_only": "seed 22",
    "everyone_is_the_neighbors_only": "seed 19",
    "the_round_of_a_change_is_ignored": "change 0",
    "a_change_cuts_the_round_short": "seed 27",
    "a_peer_that_nobody_works_with_trains_on": "former 0",
    "former_peers_are_forgotten": "former 0",
    "a_neighbor_that_changes_in_the_same_round_is_not_waited_for": "slow change 17",
    "files_far_apart_exchange": "seed 337",
}
SELECTING = ("fedspd", "fedspd, broadcast", "fedspd, metropolis", "fedspd, paper form")


def runs(name):
    """Every way to be caught: the seed that is known to do it, known results, then all seeds."""
    if name in FOUND_AT:
        yield FOUND_AT[name], run_at(FOUND_AT[name])
    yield "without faults", lambda: assert_equals_reference(without_faults("plain", 3))
    yield "without faults, relay", lambda: assert_equals_reference(without_faults("relay", 3))
    yield "long training", lambda: assert_equals_reference(without_faults("plain", 2, train_s=(3.0, 6.0)))
    everywhere = [f"{kind} {kill}" for kind in ("kill", "async kill", "fedspd") for kill in range(KILLS)]
    everywhere += [f"seed {seed}" for seed in range(SEEDS)]
    for where in everywhere:
        yield where, run_at(where)


def run_at(where):
    kind, _, number = where.rpartition(" ")
    return lambda: PLAY[kind](int(number))


def run_seed(seed):
    error = run_one(draw(seed)).error
    if error is not None:
        raise error


PLAY = {
    "seed": run_seed,
    "kill": lambda kill: assert_equals_reference(with_restarts(kill)),
    "async kill": async_with_kills,
    "fedspd": lambda seed: assert_equals_reference(without_faults(SELECTING[seed % 4], seed)),
    "vanished": with_forgotten_pushes,
    "change": lambda seed: assert_equals_reference(with_a_change(seed)),
    "slow change": lambda seed: assert_equals_reference(with_a_change(seed, train_s=(0.5, 9.0))),
    "former": former_peer,
}


def hunt(name):
    """Return how a bug is caught, or None."""
    for where, run in runs(name):
        try:
            run()
        except (AssertionError, PeerError) as error:  # a TypeError would be a fault of the bug itself
            return f"{where}: {type(error).__name__}: {str(error)[:120]}"
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name, monkeypatch):
    PLANTED[name](monkeypatch)
    found = hunt(name)
    print(f"{name}: {found}")
    assert found is not None, f"{SEEDS} seeds did not notice"
