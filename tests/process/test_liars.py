"""Goal: a neighbor that lies in its models moves honest peers by no more than invariant I4 says, in every round.

Method: four honest peers in processes of their own and one liar with a true key, on a complete graph; they average one model.
The liar writes down what everybody had at the start of each round, had trained, was told, and had at the end. From that, not
from the code that screens, follows how its model counted. Row of the fault table: Byzantine neighbor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tools import invariants
from tools.beds import Bed, WarmParent
from tools.liar import Liar, Lie

from coordinator_free_bootstrap.errors import Refusal
from peer.core.averaging import Vector
from peer.core.messages import Outcome

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
ROUNDS, LIAR, HONEST = 6, 2, (0, 1, 3, 4)
EVERYBODY = len(HONEST) + 1  # models in each average
RADIUS = 1.0  # a little more than lies between an honest model and its receiver's, so that honest models count in full
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "peers": EVERYBODY,
    "kind": "complete",
    "late": (LIAR,),
    "insecure": False,
    "start": {"deadline_s": 60.0},  # nobody begins without the liar
    "algorithm": "dfedavg",
    "mix": "uniform",
    "clusters": 1,
    "split": "iid",
    "batch_size": 20,
    "local_epochs": 1,
}


def the_truth(model: Vector, _round: int, _to: int) -> Vector:
    return model


def thousandfold(model: Vector, _round: int, _to: int) -> Vector:
    with np.errstate(over="ignore"):  # where nothing screens, its own model is soon as large as its lies
        return model * np.float32(1000)


def sign_flipped(model: Vector, _round: int, _to: int) -> Vector:
    return -model


def two_faced(model: Vector, _round: int, to: int) -> Vector:
    return model if to % 2 == 0 else -model


def nan_every_other_round(model: Vector, round_index: int, _to: int) -> Vector:
    said = model.copy()
    if round_index % 2:
        said[round_index] = np.nan
    return said


LIES = pytest.mark.parametrize("lie", [thousandfold, sign_flipped, two_faced])


def _played(run: Bed, lie: Lie) -> Liar:
    """Let the liar take part; hold what holds for the honest in any run."""
    liar = Liar(run, LIAR, lie)
    assert liar.take_part()["failed"] == {}
    invariants.completed(run, *HONEST)
    invariants.check(run, *HONEST)
    assert len(liar.said) == len(liar.heard) == ROUNDS * len(HONEST)
    return liar


def _folded_in(run: Bed, peer_id: int) -> list[int]:
    """Return the rounds in which a peer has folded the liar's model."""
    return [r for r, line in run.last_rounds(peer_id).items() if LIAR in {sender for sender, *_ in line["folded"]}]


def _every_lie_was_folded(run: Bed, liar: Liar) -> None:
    assert {answer.outcome for answer in liar.answers.values()} == {Outcome.FOLDED}
    for peer_id in HONEST:
        assert _folded_in(run, peer_id) == list(range(ROUNDS))


def _exact(model: Vector) -> NDArray[np.float64]:
    return model.astype(np.float64)


def _length(vector: NDArray[Any]) -> float:
    return float(np.linalg.norm(vector))


def _places() -> Iterator[tuple[int, int]]:
    return ((round_index, peer_id) for round_index in range(ROUNDS) for peer_id in HONEST)


@pytest.fixture(scope="module")
def undisturbed(warm_parent: WarmParent, tmp_path_factory: pytest.TempPathFactory) -> dict[int, NDArray[np.float64]]:
    """Each honest peer's way from the first model to the last, where nobody lies."""
    with Bed(warm_parent, tmp_path_factory.mktemp("undisturbed"), **SETTINGS) as run:
        liar = _played(run, the_truth)
    return {p: _exact(liar.began[ROUNDS, p]) - liar.began[0, p] for p in HONEST}


def _astray(liar: Liar, undisturbed: dict[int, NDArray[np.float64]]) -> list[float]:
    """Return how far each honest peer has ended from where it would have, in lengths of its undisturbed way."""
    ways = {p: _exact(liar.began[ROUNDS, p]) - liar.began[0, p] for p in HONEST}
    return [_length(ways[p] - way) / _length(way) for p, way in undisturbed.items()]


@LIES
def test_without_screening_a_liar_leads_everybody_astray(bed: Make, undisturbed: dict, lie: Lie) -> None:
    run = bed(**SETTINGS)
    liar = _played(run, lie)
    _every_lie_was_folded(run, liar)
    assert min(_astray(liar, undisturbed)) > 1.5
    if lie is sign_flipped:
        assert max(run.summary(p)["accuracy"] for p in HONEST) < 0.3


@LIES
def test_a_clipped_liar_moves_an_average_by_two_radii_over_the_count_at_most(
    bed: Make, undisturbed: dict, lie: Lie
) -> None:
    """I4: its model counts as one within the radius around the receiver's own, whatever it says and would have said."""
    run = bed(**SETTINGS, screening={"clip": RADIUS})
    liar = _played(run, lie)
    _every_lie_was_folded(run, liar)
    clipped = 0
    for place in _places():
        round_index, peer_id = place
        start, end = _exact(liar.began[place]), _exact(liar.began[round_index + 1, peer_id])
        honest = {p: _exact(liar.heard[round_index, p]) for p in HONEST}
        assert max(_length(honest[p] - start) for p in HONEST if p != peer_id) < RADIUS, place
        counted_as = EVERYBODY * end - sum(honest.values())
        # So whatever it had said instead, the average would be at most 2 RADIUS / EVERYBODY away.
        assert _length(counted_as - start) < RADIUS * 1.001, place
        said = _exact(liar.said[place])
        if _length(said - start) < RADIUS:
            assert _length(counted_as - said) < RADIUS / 1000, place
        else:
            clipped += 1
            assert _length(counted_as - start) > RADIUS * 0.999, f"{place}: the lie has not counted"
    assert clipped == ROUNDS * len(HONEST) // (2 if lie is two_faced else 1)
    assert max(_astray(liar, undisturbed)) < 0.6
    assert min(run.summary(p)["accuracy"] for p in HONEST) > 0.7


@LIES
def test_a_trimmed_liar_leaves_each_coordinate_between_two_honest_ones(bed: Make, undisturbed: dict, lie: Lie) -> None:
    """I4 with a share that trims one of five at each end, and no more lies than that."""
    run = bed(**SETTINGS, screening={"trimmed_mean": 0.25})
    liar = _played(run, lie)
    _every_lie_was_folded(run, liar)
    for place in _places():
        round_index, peer_id = place
        honest, said = [liar.heard[round_index, p] for p in HONEST], liar.said[place]
        low, high, end = np.min(honest, axis=0), np.max(honest, axis=0), liar.began[round_index + 1, peer_id]
        assert ((said < low) | (said > high)).any(), f"{place}: it has not lied"
        assert (low <= end).all() and (end <= high).all(), place
        middle = np.sort([*honest, said], axis=0)[1:-1].mean(axis=0, dtype=np.float64)
        assert np.allclose(end, middle, rtol=1e-6, atol=1e-6), place
    assert max(_astray(liar, undisturbed)) < 0.3
    assert min(run.summary(p)["accuracy"] for p in HONEST) > 0.7


def test_a_nan_is_refused_and_counted_and_its_senders_other_models_still_serve(bed: Make) -> None:
    run = bed(**SETTINGS)
    liar = _played(run, nan_every_other_round)
    bad = list(range(1, ROUNDS, 2))
    for place, answer in liar.answers.items():
        expected = (Outcome.REFUSED, Refusal.NON_FINITE) if place[0] in bad else (Outcome.FOLDED, None)
        assert (answer.outcome, answer.refusal) == expected, place
    for peer_id in HONEST:
        assert run.summary(peer_id)["refusals"] == {Refusal.NON_FINITE: len(bad)}
        told = [(line["neighbor"], line["code"]) for line in run.history(peer_id, "refused")]
        assert told == [(LIAR, Refusal.NON_FINITE)] * len(bad)
        assert _folded_in(run, peer_id) == list(range(0, ROUNDS, 2))
    for round_index, peer_id in _places():
        models = [liar.heard[round_index, p] for p in HONEST]
        if round_index not in bad:
            models.append(liar.said[round_index, peer_id])
        end = liar.began[round_index + 1, peer_id]
        assert np.allclose(end, np.mean(models, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6), (round_index, peer_id)
