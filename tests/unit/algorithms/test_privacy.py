"""The Gaussian mechanism on a sent update: clipping, noise, and what is said about it (invariant 37)."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from peer.algorithms.privacy import Privacy

MECHANISM = Privacy(epsilon=50.0, delta=0.01, clip_norm=1.0, samples_min=10)
START = np.random.default_rng(1).normal(size=200_000).astype(np.float32)


def moved(norm: float) -> np.ndarray:
    step = np.random.default_rng(2).normal(size=START.size)
    return (START + step * (norm / np.linalg.norm(step))).astype(np.float32)


def test_sigma_is_the_formula():
    assert math.sqrt(2 * math.log(1.25 / 0.01)) == pytest.approx(3.1075, abs=1e-4)  # the paper's number
    assert MECHANISM.sigma == pytest.approx(3.1075 * 2 * 1.0 / 10 / 50, rel=1e-4)
    assert Privacy(10.0, 0.01, 1.0, 10).sigma == pytest.approx(5 * MECHANISM.sigma)


@pytest.mark.parametrize(("norm", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (40.0, 1.0)])
def test_an_update_is_clipped_before_noise(norm, expected):
    trained = moved(norm)
    before = trained.copy()
    update = MECHANISM.clipped(START, trained).astype(np.float64) - START
    assert np.linalg.norm(update) == pytest.approx(expected, abs=1e-3)
    assert trained.tobytes() == before.tobytes()


@pytest.mark.parametrize("epsilon", [10.0, 50.0, 100.0])
def test_noise_has_the_stated_deviation(epsilon):
    mechanism = Privacy(epsilon, 0.01, 1.0, 10)
    noise = mechanism.sent(START, moved(3.0)).astype(np.float64) - mechanism.clipped(START, moved(3.0))
    assert noise.std() == pytest.approx(mechanism.sigma, rel=0.02)
    assert abs(noise.mean()) < 5 * mechanism.sigma / math.sqrt(START.size)


def test_noise_is_no_function_of_anything_that_a_neighbor_knows():
    first, second = (MECHANISM.sent(START, moved(0.5)) for _ in range(2))
    assert not np.array_equal(first, second)
    draws = [MECHANISM.sent(START, moved(0.5), np.random.Generator(np.random.Philox(7))) for _ in range(2)]
    assert draws[0].tobytes() == draws[1].tobytes()


def test_the_statement_gives_every_number_and_its_unit():
    said = MECHANISM.statement(rounds=40, models_first_round=2)
    for part in (
        "epsilon 50",
        "delta 0.01",
        "each sent update of each round",
        "L = 1",
        "at least 10 samples",
        "41 updates",
    ):
        assert part in said
    assert "epsilon 2050" in said and "not sample-level DP-SGD" in said and "private" not in said


def test_the_statement_says_what_epsilon_rests_on():
    said = MECHANISM.statement(rounds=40)
    assert "at most 2 C / m: clipping alone bounds that by 2 C, so epsilon may be 10 times larger" in said
    assert f"epsilon {MECHANISM.proved(0.2):,.1f} with the assumption, {MECHANISM.proved(2.0):,.1f} without it" in said


def test_from_a_clean_own_center_epsilon_holds_in_the_first_round_only():
    said = MECHANISM.statement(rounds=40, models_first_round=2, noisy_self=False)
    assert "for the sent updates of the first round only" in said and "nor a composition holds" in said
    assert "each round" not in said and "2050" not in said


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0])
def test_the_proved_epsilon_is_enough_at_any_size_and_the_formula_is_not(epsilon):
    """Beside the exact delta of Gaussian noise (Balle and Wang 2018, Theorem 8)."""
    mechanism = Privacy(epsilon, 0.01, 1.0, 10)
    mu = mechanism.sensitivity / mechanism.sigma

    def delta(spent: float) -> float:
        return ndtr(mu / 2 - spent / mu) - np.exp(spent + log_ndtr(-mu / 2 - spent / mu))

    assert delta(mechanism.proved(mechanism.sensitivity)) <= 0.01
    assert (delta(epsilon) > 0.01) == (epsilon >= 10)
