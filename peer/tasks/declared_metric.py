"""A task whose metrics are declared as `Metric` objects, and picked by name from what other code has computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from coordinator_free_bootstrap.errors import TaskError
from peer.core.metric import Metric
from peer.tasks.task import Task


class DeclaredMetric(Task):
    """The task of a program or library that trains and evaluates by itself.

    Args:
        metric: that the run reports.
        more_metrics: besides.
    """

    kind = "regression"  # no labels are looked at

    def __init__(self, metric: Metric, more_metrics: Iterable[Metric]) -> None:
        self._metric, self.more_metrics = metric, tuple(more_metrics)

    @property
    @override
    def metric_name(self) -> str:
        return self._metric.name

    @property
    @override
    def higher_is_better(self) -> bool:
        return self._metric.higher_is_better

    @property
    @override
    def metric_is_share(self) -> bool:
        return self._metric.share

    def picked(self, found: Mapping[str, Any], prefixes: Sequence[str]) -> dict[str, float]:
        """Return the declared metrics, and the loss if there is one, from values by name.

        Args:
            found: values that a library has computed, also others.
            prefixes: that a name may have there, the preferred one first.

        Raises:
            TaskError: a metric is missing.
        """
        names = [self.metric_name, *(metric.name for metric in self.more_metrics)]
        picked = {name: _first(found, name, prefixes) for name in [*names, "loss"]}
        if missing := [name for name in names if picked[name] is None]:
            expected = ", ".join(f"{prefix}{name}" for name in missing for prefix in prefixes)
            raise TaskError(
                f"evaluate: expected one of {expected}, got {', '.join(found) or 'nothing'}. Declare the metric by a name that "
                "is computed, as in Metric('accuracy')."
            )
        return {name: value for name, value in picked.items() if value is not None}


def _first(found: Mapping[str, Any], name: str, prefixes: Sequence[str]) -> float | None:
    return next((float(found[prefix + name]) for prefix in prefixes if prefix + name in found), None)
