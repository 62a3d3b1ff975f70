"""Schedules of the learning rate, over the rounds of a run or the epochs of its final phase: the text of a key, and its rates.

    KIND[:KEY=VALUE,...]        constant, step:factor=0.8,every=5, cosine, cosine:end=0.01,warm_up=10

With ``warm_up = w`` the rate of round t < w is (t + 1) / (w + 1) of the whole one; what follows begins in round w. Then, with
u = t - w of U = T - w rounds left:

    constant   1
    step       factor ^ floor(u / every)
    cosine     end + (1 - end) (1 + cos(pi u / U)) / 2

Sources: the cosine without restarts of Ilya Loshchilov and Frank Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts",
2017, arXiv 1608.03983, Eq. 5; the gradual warm-up of Priya Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1
Hour", 2017, arXiv 1706.02677, Section 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator
from typing_extensions import override

from coordinator_free_bootstrap.strict_json import shown

KEYS = {  # of each kind
    "constant": ("warm_up",),
    "step": ("factor", "every", "warm_up"),
    "cosine": ("end", "warm_up"),
}
WHOLE = {"every": 1, "warm_up": 0}  # keys with whole numbers, and the least of each
COUNT_MAX = 1_000_000  # of rounds, as run.rounds
EXAMPLES = "step:factor=0.8,every=5 or cosine:end=0.01,warm_up=10"


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """The rate of each round, as a share of the whole one; rounds may be epochs.

    Attributes:
        kind: what it does after the warm-up, one of `KEYS`.
        factor: step: of the rate, above 0 and below 1.
        every: step: rounds from one factor to the next.
        end: cosine: the share to which it falls, from 0 on and below 1; the round after the last one would have it.
        warm_up: first rounds, in which the rate rises linearly.
    """

    kind: str = "constant"
    factor: float = 1.0
    every: int = 1
    end: float = 0.0
    warm_up: int = 0

    def share(self, index: int, count: int) -> float:
        """Return the share of round ``index``, 0-based, of ``count`` rounds: above 0, at most 1."""
        if index < self.warm_up:
            return (index + 1) / (self.warm_up + 1)
        at, left = index - self.warm_up, count - self.warm_up
        if self.kind == "step":
            return self.factor ** (at // self.every)
        if self.kind == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * at / left)) / 2
        return 1.0

    def changes(self, count: int) -> bool:
        """Return whether some of ``count`` rounds has another rate than the whole one."""
        first = {"step": self.every, "cosine": 1}.get(
            self.kind, count
        )  # round whose rate is another one, without a warm-up
        return bool(self.warm_up) or first < count

    @override
    def __str__(self) -> str:
        """Return the text without what is a default, so that equal schedules have equal texts."""
        plain = RateSchedule(self.kind)
        given = [name for name in KEYS[self.kind] if getattr(self, name) != getattr(plain, name)]
        return self.kind + ":" * bool(given) + ",".join(f"{name}={getattr(self, name)!r}" for name in given)


@lru_cache(maxsize=64)
def schedule_of(text: str) -> RateSchedule:
    """Return the schedule that a text names.

    Raises:
        ValueError: it names none; the message says what is expected.
    """
    kind, colon, rest = text.partition(":")
    if kind not in KEYS:
        raise ValueError(f"expected constant, step or cosine, as in {EXAMPLES}, got {shown(text)}")
    given: dict[str, Any] = {}
    for pair in rest.split(",") if colon else []:
        key, _, value = pair.partition("=")
        if key not in KEYS[kind] or key in given:
            keys = ", ".join(f"{name}=..." for name in KEYS[kind])
            raise ValueError(f"expected {kind} with {keys}, each at most once, got {shown(text)}")
        given[key] = _number(key, value, text)
    if kind == "step" and "factor" not in given:
        raise ValueError(f"expected a factor, as in step:factor=0.8,every=5, got {shown(text)}")
    return RateSchedule(kind, **given)


def _number(key: str, value: str, text: str) -> float | int:
    least = WHOLE.get(key)
    try:
        number = float(value) if least is None else int(value)
    except ValueError:
        number = -1
    if least is not None and not least <= number <= COUNT_MAX:
        raise ValueError(f"expected a whole number from {least} to {COUNT_MAX} as {key}, got {shown(text)}")
    if least is None and not (0 < number < 1 or (key == "end" and number == 0)):
        range_of = "from 0 to below 1" if key == "end" else "above 0 and below 1"
        raise ValueError(f"expected a number {range_of} as {key}, got {shown(text)}")
    return number


ScheduleText = Annotated[str, AfterValidator(lambda text: str(schedule_of(text)))]
