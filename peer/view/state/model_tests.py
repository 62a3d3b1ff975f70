"""What a peer found when it tested the models of the last round, one result for each peer whose model it is.

`peer.core.model_tests` says which models these are, and why one is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from peer.store.records import ModelTest


class TestResult(NamedTuple):
    """A model of a peer on the test samples of another, or of the same.

    Attributes:
        model_of: the peer.
        value: of the task's metric; None: not tested, or not defined.
        loss: mean.
        slot: of the model.
        round_index: in which it was trained.
        missing: why there is none; "": there is one.
    """

    model_of: int
    value: float | None
    loss: float | None
    slot: int | None
    round_index: int | None
    missing: str


def results(tests: Iterable[ModelTest] | None) -> list[TestResult]:
    """Return a peer's results by `model_of`, ascending; of several models of one peer that with the lowest loss.

    Args:
        tests: field ``model_tests`` of its end line or summary.
    """
    best: dict[int, TestResult] = {}
    for test in tests or ():
        found = TestResult(
            test["model_of"],
            test.get("metric_value"),
            test.get("loss"),
            test.get("slot"),
            test.get("round_index"),
            test.get("missing", ""),
        )
        other = best.get(found.model_of)
        if other is None or _rank(found) < _rank(other):
            best[found.model_of] = found
    return [best[model_of] for model_of in sorted(best)]


def _rank(result: TestResult) -> tuple[bool, float]:
    return bool(result.missing), math.inf if result.loss is None else result.loss
