"""The privacy accountant against closed forms, numeric integration, and the accountant of Opacus as an oracle."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from peer.core.accountant import ORDERS, Mechanism, as_rows, epsilon, noise_for, of_rows, renyi

RATES, NOISES = (0.001, 0.02, 0.1, 0.5), (0.6, 1.0, 2.5, 20.0)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("order", [1.2, 2.0, 7.5, 64.0])
def test_without_sampling_it_is_the_gaussian_mechanism(noise: float, order: float) -> None:
    """Mironov 2017, Corollary 3: alpha / (2 sigma^2)."""
    assert renyi(Mechanism(1.0, noise), order) == pytest.approx(order / (2 * noise**2))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rate", RATES)
def test_order_two_has_a_closed_form(rate: float, noise: float) -> None:
    """A_2 = 1 + q^2 (exp(1 / sigma^2) - 1)."""
    expected = math.log1p(rate**2 * math.expm1(1 / noise**2))
    assert renyi(Mechanism(rate, noise), 2.0) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("noise", [0.8, 2.0])
@pytest.mark.parametrize("order", [1.5, 2.5, 3.0, 8.3])
def test_moments_equal_their_integral(rate: float, noise: float, order: float) -> None:
    """A_alpha = E over N(0, sigma^2) of ((1 - q) + q exp((2 z - 1) / (2 sigma^2)))^alpha."""
    z = np.linspace(-40 * noise, 40 * noise + 20, 2_000_001)
    density = np.exp(-(z**2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    ratio = (1 - rate) + rate * np.exp((2 * z - 1) / (2 * noise**2))
    moment = np.trapezoid(density * ratio**order, z)
    assert renyi(Mechanism(rate, noise), order) == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.filterwarnings("ignore:Optimal order is")  # a bound all the same, and the same one
@pytest.mark.parametrize("steps", [1, 300, 5000])
def test_epsilon_equals_that_of_opacus(rate: float, noise: float, steps: int) -> None:
    from opacus.accountants.analysis import rdp

    divergences = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=ORDERS)
    expected, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=divergences, delta=1e-5)
    assert epsilon({Mechanism(rate, noise): steps}, 1e-5) == pytest.approx(max(0.0, expected), rel=1e-6, abs=1e-6)


def test_composition_is_a_sum() -> None:
    """A ledger of two halves costs what one of the whole costs, and what a restart has read back costs the same."""
    training, choices = Mechanism(0.1, 1.1), Mechanism(1.0, 30.0)
    first, second = Counter({training: 120, choices: 4}), Counter({training: 80, choices: 2})
    whole = epsilon({training: 200, choices: 6}, 1e-5)
    assert epsilon(of_rows(as_rows(first)) + second, 1e-5) == whole > epsilon(first, 1e-5) > 0


def test_nothing_used_costs_nothing() -> None:
    assert epsilon({}, 1e-5) == epsilon({Mechanism(0.1, 1.0): 0}, 1e-5) == 0.0
    assert epsilon({Mechanism(0.1, 0.0): 1}, 1e-5) == math.inf


def test_more_noise_fewer_samples_and_larger_delta_cost_less() -> None:
    def cost(rate: float = 0.1, noise: float = 1.0, steps: int = 100, delta: float = 1e-5) -> float:
        return epsilon({Mechanism(rate, noise): steps}, delta)

    assert (
        cost(noise=1.5) < cost() and cost(rate=0.05) < cost() and cost(steps=50) < cost() and cost(delta=1e-3) < cost()
    )


@pytest.mark.parametrize("target", [0.5, 1.0, 3.0, 8.0])
def test_noise_for_a_target_is_the_least(target: float) -> None:
    def ledger(noise: float) -> dict[Mechanism, int]:
        return {Mechanism(0.1, noise): 300, Mechanism(1.0, 20 * noise): 30}

    noise = noise_for(target, 1e-5, ledger)
    assert epsilon(ledger(noise), 1e-5) <= target < epsilon(ledger(noise * 0.998), 1e-5)


def test_target_that_no_noise_reaches() -> None:
    with pytest.raises(ValueError, match="no noise multiplier"):
        noise_for(1.0, 1e-5, lambda noise: {Mechanism(1.0, 1.0): 1000})
