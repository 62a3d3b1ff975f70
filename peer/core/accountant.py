"""Rényi differential privacy of Gaussian noise on sums of samples that are drawn at random, and what composes of it. Pure.

Neighboring data sets differ in one sample, which one of them has and the other lacks. A *mechanism* (q, sigma) draws each sample
with probability q, adds up vectors of norm at most C and adds Gaussian noise of deviation sigma C.

Sources: Ilya Mironov, Kunal Talwar and Li Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019, arXiv
1908.10530, Section 3.3, for the moments; composition, Ilya Mironov, "Rényi Differential Privacy", 2017, arXiv 1702.07476,
Proposition 1; conversion to (epsilon, delta), Borja Balle, Gilles Barthe, Marco Gaboardi, Justin Hsu and Tetsuya Sato,
"Hypothesis Testing Interpretations and Rényi Differential Privacy", 2019, arXiv 1905.09982, Theorem 21.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

# Of Rényi divergences, above 1: fine where epsilon is large, coarse where it is small.
ORDERS = (
    *(1 + step / 10 for step in range(2, 100)),
    *map(float, range(11, 65)),
    80.0,
    96.0,
    128.0,
    192.0,
    256.0,
    512.0,
)
SERIES_END = -30.0  # log of a term that changes no digit that matters, of a sum of 1 or more
TERMS_MAX = 10_000
NOISE_MAX = 1e6  # a larger noise multiplier leaves nothing to learn


class Mechanism(NamedTuple):
    """Gaussian noise on the sum of sampled vectors.

    Attributes:
        rate: q, the probability of each sample, above 0, up to 1.
        noise: sigma, deviation of the noise as a multiple of the largest norm of a sample's vector.
    """

    rate: float
    noise: float


Ledger = Counter[Mechanism]  # how often each mechanism was used


@lru_cache(4096)
def renyi(mechanism: Mechanism, order: float) -> float:
    """Return the Rényi divergence of one use at an order above 1; infinity without noise, or where it is not known.

    >>> renyi(Mechanism(1.0, 2.0), 8.0)
    1.0
    """
    q, sigma = mechanism
    if q == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    if q == 1:
        return order / (2 * sigma**2)
    log_moment = _whole_order(q, sigma, int(order)) if order == int(order) else _any_order(q, sigma, order)
    return max(0.0, log_moment) / (order - 1)


def epsilon(ledger: Mapping[Mechanism, int], delta: float) -> float:
    """Return the least epsilon that is known for a delta after all that a ledger has; 0 if it is empty.

    >>> round(epsilon({Mechanism(1.0, 5.0): 1}, 1e-5), 3)
    0.795
    """
    used = [(mechanism, count) for mechanism, count in ledger.items() if count]
    if not used:
        return 0.0
    return min(_converted(order, sum(n * renyi(each, order) for each, n in used), delta) for order in ORDERS)


def noise_for(target: float, delta: float, ledger_of: Callable[[float], Mapping[Mechanism, int]]) -> float:
    """Return the least noise multiplier, up to 0.1 percent, with which a run spends at most an epsilon.

    Args:
        target: epsilon, above 0.
        delta: of the guarantee.
        ledger_of: returns all uses of a run for a noise multiplier.

    Raises:
        ValueError: no noise multiplier up to `NOISE_MAX` is enough.
    """
    low, high = 0.0, 1.0
    while epsilon(ledger_of(high), delta) > target:
        low, high = high, 2 * high
        if high > NOISE_MAX:
            raise ValueError(f"no noise multiplier up to {NOISE_MAX:g} gives epsilon {target:g}")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if epsilon(ledger_of(middle), delta) > target:
            low = middle
        else:
            high = middle
    return high


def as_rows(ledger: Mapping[Mechanism, int]) -> list[list[float]]:
    """Return a ledger as JSON values: [rate, noise, count] of each mechanism, sorted."""
    return [[each.rate, each.noise, count] for each, count in sorted(ledger.items())]


def of_rows(rows: Iterable[Iterable[float]]) -> Ledger:
    """Return what `as_rows` was given."""
    return Counter({Mechanism(float(rate), float(noise)): int(count) for rate, noise, count in rows})


def _converted(order: float, divergence: float, delta: float) -> float:
    """Return epsilon for a delta, of the divergence at one order (Balle et al. 2019, Theorem 21)."""
    if math.isinf(divergence):
        return math.inf
    return max(0.0, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def _whole_order(q: float, sigma: float, order: int) -> float:
    """Return log A at a whole order: a binomial sum (Mironov et al. 2019, Section 3.3, first case)."""
    total = -math.inf
    for k in range(order + 1):
        term = _log_binomial(order, k) + k * math.log(q) + (order - k) * math.log1p(-q)
        total = _log_add(total, term + (k * k - k) / (2 * sigma**2))
    return total


def _any_order(q: float, sigma: float, order: float) -> float:
    """Return log A at another order: two series (Mironov et al. 2019, Section 3.3, second case); infinity if too long."""
    below = above = -math.inf
    middle = sigma**2 * math.log(1 / q - 1) + 0.5
    log_size, sign = (
        0.0,
        1.0,
    )  # of the generalized binomial coefficient (order over i), which is below 0 by turns once i > order
    for i in range(TERMS_MAX):
        rest = order - i
        first = log_size + i * math.log(q) + rest * math.log1p(-q)
        first += (i * i - i) / (2 * sigma**2) + _log_half_erfc((i - middle) / (math.sqrt(2) * sigma))
        second = log_size + rest * math.log(q) + i * math.log1p(-q)
        second += (rest * rest - rest) / (2 * sigma**2) + _log_half_erfc((middle - rest) / (math.sqrt(2) * sigma))
        below, above = (_log_sum(each, term, sign) for each, term in ((below, first), (above, second)))
        if i > order and max(first, second) < SERIES_END:
            return _log_add(below, above)
        log_size += math.log(abs(order - i)) - math.log(i + 1)
        sign = -sign if order < i else sign
    return math.inf


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_add(a: float, b: float) -> float:
    """Return log(e^a + e^b)."""
    large, small = (a, b) if a > b else (b, a)
    return large if small == -math.inf else large + math.log1p(math.exp(small - large))


def _log_sum(total: float, term: float, sign: float) -> float:
    """Return log(e^total + sign e^term); the sum is positive."""
    if sign > 0:
        return _log_add(total, term)
    share = math.exp(term - total)
    return total + math.log1p(-share) if share < 1 else -math.inf


def _log_half_erfc(x: float) -> float:
    """Return log(erfc(x) / 2); above 25 by its asymptotic series, since erfc(x) is below the smallest float64 there."""
    if x < 25:
        return math.log(math.erfc(x)) - math.log(2)
    square = x * x
    series = 1 - 0.5 / square + 0.75 / square**2 - 1.875 / square**3 + 6.5625 / square**4
    return -square - math.log(x) - 0.5 * math.log(math.pi) - math.log(2) + math.log(series)
