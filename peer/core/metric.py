"""The metric of a task: its name, its direction and its format. Logs, tables, pictures and JSON files take them from here.

Values of the metric have the same keys for every task: ``metric_value`` in a record, ``metric_mean``, ... over peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Required

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

MORE_METRICS_MAX = 32  # of a task, beside its metric
_ACCURACY = "accuracy"


class MetricRecord(TypedDict, total=False):
    """A metric in a start line or a report, and in a status or a summary with its last value."""

    name: Required[Annotated[str, Field(min_length=1, max_length=64)]]
    higher_is_better: Required[bool]
    share: Required[bool]
    value: Annotated[float, Field(allow_inf_nan=False)] | None


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: what tables show.
        higher_is_better: false for an error.
        share: whether the values are in [0, 1], which experiment tables show in percent.
    """

    name: str = _ACCURACY
    higher_is_better: bool = True
    share: bool = True

    @property
    def is_accuracy(self) -> bool:
        """Whether the metric is the accuracy, which tables of experiments show as plain percent."""
        return self.name == _ACCURACY

    @property
    def label(self) -> str:
        """The name, with the direction if lower is better."""
        return self.name if self.higher_is_better else f"{self.name} (lower is better)"

    def text(self, value: float | None, digits: int = 3) -> str:
        """Return a value as text: a share with `digits` decimals, another metric with four significant digits."""
        if value is None:
            return "-"
        return f"{value:.{digits}f}" if self.share and (value == 0 or abs(value) >= 10**-digits) else f"{value:.4g}"

    # ---- tables of experiments, beside published numbers: shares in percent ---------------------------------------------

    @property
    def factor(self) -> float:
        """Factor from a value to the number in a table of experiments."""
        return 100.0 if self.share else 1.0

    @property
    def column(self) -> str:
        """The unit in the header of a table of experiments: ``%`` for the accuracy, else the name."""
        return "%" if self.is_accuracy else f"{self.name}, %" if self.share else self.name

    def scaled_text(self, scaled: float | None, digits: int = 1) -> str:
        """Return a number that is multiplied by `factor` already as text, "" for None."""
        return "" if scaled is None else f"{scaled:.{digits}f}" if self.share else f"{scaled:.4g}"

    # ---- statistics -----------------------------------------------------------------------------------------------------

    def worst(self, values: np.ndarray) -> float:
        """Return the worst of the values."""
        return float(values.min() if self.higher_is_better else values.max())

    def best(self, values: np.ndarray) -> float:
        """Return the best of the values."""
        return float(values.max() if self.higher_is_better else values.min())

    def worst_tenth(self, values: np.ndarray) -> float:
        """Return the 10th percentile of the values, or the 90th if lower is better."""
        if self.higher_is_better:
            return float(np.percentile(values, 10, method="lower"))
        return float(np.percentile(values, 90, method="higher"))

    def reaches(self, values: np.ndarray, target: float) -> np.ndarray:
        """Return which values are at least as good as a target, bool [n]."""
        return values >= target if self.higher_is_better else values <= target

    # ---- JSON -----------------------------------------------------------------------------------------------------------

    def as_json(self) -> MetricRecord:
        """Return the metric as the JSON object ``metric`` of start lines, summaries, statuses and reports."""
        return {"name": self.name, "higher_is_better": self.higher_is_better, "share": self.share}

    @classmethod
    def from_json(cls, value: MetricRecord) -> Metric:
        """Return the metric of a JSON object that is checked already."""
        return cls(value["name"], value["higher_is_better"], value["share"])
