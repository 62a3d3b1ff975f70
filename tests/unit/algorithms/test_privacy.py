"""The Gaussian mechanism on a sent update: clipping, noise, and the privacy statement."""

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
    noise = mechanism.noisy(START, moved(3.0)).astype(np.float64) - mechanism.clipped(START, moved(3.0))
    assert noise.std() == pytest.approx(mechanism.sigma, rel=0.02)
    assert abs(noise.mean()) < 5 * mechanism.sigma / math.sqrt(START.size)


def test_noise_does_not_depend_on_the_seed_of_the_run():
    first, second = (MECHANISM.noisy(START, moved(0.5)) for _ in range(2))
    assert not np.array_equal(first, second)
    draws = [MECHANISM.noisy(START, moved(0.5), np.random.Generator(np.random.Philox(7))) for _ in range(2)]
    assert draws[0].tobytes() == draws[1].tobytes()


def test_the_statement_gives_every_number_and_its_unit():
    statement = MECHANISM.statement(rounds=40, models_first_round=2)
    for part in (
        "epsilon 50",
        "delta 0.01",
        "each sent update of each round",
        "L = 1",
        "at least 10 samples",
        "41 updates",
    ):
        assert part in statement
    assert "epsilon 2050" in statement and "not sample-level DP-SGD" in statement and "private" not in statement


def test_the_statement_names_the_assumptions_of_epsilon():
    statement = MECHANISM.statement(rounds=40)
    assert "at most 2 C / m. Clipping alone bounds it by 2 C, so epsilon can be 10 times larger" in statement
    assert (
        f"epsilon {MECHANISM.proved_epsilon(0.2):,.1f} with the assumption, {MECHANISM.proved_epsilon(2.0):,.1f} without it"
        in statement
    )


def test_without_noisy_self_epsilon_holds_in_the_first_round_only():
    statement = MECHANISM.statement(rounds=40, models_first_round=2, noisy_self=False)
    assert "for the sent updates of the first round only" in statement and "nor a composition holds" in statement
    assert "each round" not in statement and "2050" not in statement


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0])
def test_the_proved_epsilon_holds_at_any_size_and_the_formula_does_not(epsilon):
    """Compared with the exact delta of Gaussian noise (Borja Balle and Yu-Xiang Wang, 2018, arXiv 1805.06530, Theorem 8)."""
    mechanism = Privacy(epsilon, 0.01, 1.0, 10)
    mu = mechanism.sensitivity / mechanism.sigma

    def delta(spent: float) -> float:
        return ndtr(mu / 2 - spent / mu) - np.exp(spent + log_ndtr(-mu / 2 - spent / mu))

    assert delta(mechanism.proved_epsilon(mechanism.sensitivity)) <= 0.01
    assert (delta(epsilon) > 0.01) == (epsilon >= 10)
