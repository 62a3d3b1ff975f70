"""Goal: a Byzantine neighbor moves the models of honest peers no further than invariant I4 allows, in every round.

Method: four honest peers in separate processes and one attacker with a pinned key, on a complete graph; they average one model.
The attacker records each peer's model at the start of each round, the trained models, the models that it sent, and the results.
The weight of its model follows from these records, not from the code that screens. Row of the fault table: Byzantine neighbor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tools import invariants
from tools.beds import Bed
from tools.byzantine import Attack, ByzantinePeer
from tools.warm_parent import WarmParent

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.averaging import Vector
from peer.core.messages import Outcome

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
ROUNDS, ATTACKER, HONEST = 6, 2, (0, 1, 3, 4)
PEERS = len(HONEST) + 1  # models in each average
RADIUS = 1.0  # a little more than the distance between an honest model and its receiver's: honest models count in full
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "peers": PEERS,
    "kind": "complete",
    "late": (ATTACKER,),
    "insecure": False,
    "start": {"deadline_s": 60.0},  # no peer begins without the attacker
    "algorithm": "dfedavg",
    "mix": "uniform",
    "clusters": 1,
    "split": "iid",
    "batch_size": 20,
    "local_epochs": 1,
}


def unchanged(model: Vector, _round: int, _receiver: int) -> Vector:
    return model


def scaled_by_1000(model: Vector, _round: int, _receiver: int) -> Vector:
    with np.errstate(over="ignore"):  # without screening its own model soon becomes as large as the ones it sends
        return model * np.float32(1000)


def sign_flipped(model: Vector, _round: int, _receiver: int) -> Vector:
    return -model


def two_faced(model: Vector, _round: int, receiver: int) -> Vector:
    return model if receiver % 2 == 0 else -model


def nan_every_other_round(model: Vector, round_index: int, _receiver: int) -> Vector:
    sent = model.copy()
    if round_index % 2:
        sent[round_index] = np.nan
    return sent


ATTACKS = pytest.mark.parametrize(
    "attack", [pytest.param(scaled_by_1000, marks=pytest.mark.slow), sign_flipped, two_faced]
)


def _run(bed: Bed, attack: Attack) -> ByzantinePeer:
    """Run the attacker to its end; check that the honest peers completed and kept their invariants."""
    attacker = ByzantinePeer(bed, ATTACKER, attack)
    assert attacker.take_part()["failed"] == {}
    invariants.completed(bed, *HONEST)
    invariants.check(bed, *HONEST)
    assert len(attacker.sent) == len(attacker.received) == ROUNDS * len(HONEST)
    return attacker


def _rounds_with_attacker(run: Bed, peer_id: int) -> list[int]:
    """Return the rounds in which a peer folded the attacker's model."""
    return [r for r, line in run.last_rounds(peer_id).items() if ATTACKER in {sender for sender, *_ in line["folded"]}]


def _check_that_all_were_folded(run: Bed, attacker: ByzantinePeer) -> None:
    assert set(attacker.replies.values()) == {Outcome.FOLDED}
    for peer_id in HONEST:
        assert _rounds_with_attacker(run, peer_id) == list(range(ROUNDS))


def _float64(model: Vector) -> NDArray[np.float64]:
    return model.astype(np.float64)


def _norm(vector: NDArray[Any]) -> float:
    return float(np.linalg.norm(vector))


def _places() -> Iterator[tuple[int, int]]:
    return ((round_index, peer_id) for round_index in range(ROUNDS) for peer_id in HONEST)


def _total_changes(attacker: ByzantinePeer) -> dict[int, NDArray[np.float64]]:
    """Return the final model minus the initial model of each honest peer."""
    return {p: _float64(attacker.at_start[ROUNDS, p]) - attacker.at_start[0, p] for p in HONEST}


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, NDArray[np.float64]]:
    """The total change of each honest peer's model in a run without an attack."""
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), **SETTINGS) as run:
        return _total_changes(_run(run, unchanged))


def _errors(attacker: ByzantinePeer, undisturbed: dict[int, NDArray[np.float64]]) -> list[float]:
    """Return the relative error of each honest peer's total change: |change - undisturbed| / |undisturbed|."""
    changes = _total_changes(attacker)
    return [_norm(changes[p] - expected) / _norm(expected) for p, expected in undisturbed.items()]


@ATTACKS
def test_attack_without_screening_changes_every_honest_model(bed: Make, undisturbed: dict, attack: Attack) -> None:
    run = bed(**SETTINGS)
    attacker = _run(run, attack)
    _check_that_all_were_folded(run, attacker)
    assert min(_errors(attacker, undisturbed)) > 1.5
    if attack is sign_flipped:
        assert max(run.summary(p)["metric"]["value"] for p in HONEST) < 0.3


@ATTACKS
def test_clipped_model_moves_an_average_by_at_most_two_radii_over_the_count(
    bed: Make, undisturbed: dict, attack: Attack
) -> None:
    """I4: whatever the attacker sends, its model counts as one within the radius around the receiver's own."""
    run = bed(**SETTINGS, screening={"clip": RADIUS})
    attacker = _run(run, attack)
    _check_that_all_were_folded(run, attacker)
    clipped = 0
    for place in _places():
        round_index, peer_id = place
        start, end = _float64(attacker.at_start[place]), _float64(attacker.at_start[round_index + 1, peer_id])
        honest = {p: _float64(attacker.received[round_index, p]) for p in HONEST}
        assert max(_norm(honest[p] - start) for p in HONEST if p != peer_id) < RADIUS, place
        counted_as = PEERS * end - sum(honest.values())
        # So with any other model from the attacker, the average would be at most 2 RADIUS / PEERS away.
        assert _norm(counted_as - start) < RADIUS * 1.001, place
        sent = _float64(attacker.sent[place])
        if _norm(sent - start) < RADIUS:
            assert _norm(counted_as - sent) < RADIUS / 1000, place
        else:
            clipped += 1
            assert _norm(counted_as - start) > RADIUS * 0.999, f"{place}: the attacker's model did not count"
    assert clipped == ROUNDS * len(HONEST) // (2 if attack is two_faced else 1)
    assert max(_errors(attacker, undisturbed)) < 0.6
    assert min(run.summary(p)["metric"]["value"] for p in HONEST) > 0.7


@ATTACKS
def test_trimmed_mean_keeps_each_coordinate_between_two_honest_ones(
    bed: Make, undisturbed: dict, attack: Attack
) -> None:
    """I4 with a share that trims one of five models at each end, and one attacker."""
    run = bed(**SETTINGS, screening={"trimmed_mean": 0.25})
    attacker = _run(run, attack)
    _check_that_all_were_folded(run, attacker)
    for place in _places():
        round_index, peer_id = place
        honest, sent = [attacker.received[round_index, p] for p in HONEST], attacker.sent[place]
        low, high, end = np.min(honest, axis=0), np.max(honest, axis=0), attacker.at_start[round_index + 1, peer_id]
        assert ((sent < low) | (sent > high)).any(), f"{place}: the attacker sent an honest model"
        assert (low <= end).all() and (end <= high).all(), place
        middle = np.sort([*honest, sent], axis=0)[1:-1].mean(axis=0, dtype=np.float64)
        assert np.allclose(end, middle, rtol=1e-6, atol=1e-6), place
    assert max(_errors(attacker, undisturbed)) < 0.3
    assert min(run.summary(p)["metric"]["value"] for p in HONEST) > 0.7


def test_model_with_nan_is_refused_and_counted_and_finite_models_of_its_sender_are_folded(bed: Make) -> None:
    run = bed(**SETTINGS)
    attacker = _run(run, nan_every_other_round)
    bad = list(range(1, ROUNDS, 2))
    for place, reply in attacker.replies.items():
        if place[0] in bad:
            assert reply.code is RefusalCode.NON_FINITE, place
        else:
            assert reply is Outcome.FOLDED, place
    for peer_id in HONEST:
        assert run.summary(peer_id)["refusals"] == {RefusalCode.NON_FINITE: len(bad)}
        recorded = [(line["neighbor"], line["code"]) for line in run.history(peer_id, "refused")]
        assert recorded == [(ATTACKER, RefusalCode.NON_FINITE)] * len(bad)
        assert _rounds_with_attacker(run, peer_id) == list(range(0, ROUNDS, 2))
    for round_index, peer_id in _places():
        models = [attacker.received[round_index, p] for p in HONEST]
        if round_index not in bad:
            models.append(attacker.sent[round_index, peer_id])
        end = attacker.at_start[round_index + 1, peer_id]
        assert np.allclose(end, np.mean(models, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6), (round_index, peer_id)
