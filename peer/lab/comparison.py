"""What a table may claim: intervals over seeds, differences between rows over equal seeds, and what a comparison lacks."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Result = dict[str, Any]  # of one run, as its JSON file has it
CONFIDENCE = 0.95
SEEDS_MIN = 3
RIVALS = ("local", "dfedavg")  # the simplest ones: what training alone, and plain averaging, reach


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean, t s / sqrt(n) with Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # takes a second to import

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def difference(row: Sequence[Result], best: Sequence[Result]) -> tuple[float, float | None] | None:
    """Return the mean difference of two rows over the seeds that both have, and half of its 95 % interval.

    None without a common seed. Seeds share data, graph and first models, so differences vary less than the values.
    """
    of_best = {result["seed"]: float(result["measured"]) for result in best if result.get("measured") is not None}
    pairs = [
        float(result["measured"]) - of_best[result["seed"]]
        for result in row
        if result.get("measured") is not None and result["seed"] in of_best
    ]
    return (statistics.fmean(pairs), half_width(pairs)) if pairs else None


def data_of(result: Result) -> str:
    """Return the data of a result as text: rows of other data cannot be compared."""
    return json.dumps(result["data"], sort_keys=True)


def cautions(rows: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the sentences that a reader of a table needs before comparing its rows, by case name."""
    found = []
    counts = {case: len({result["seed"] for result in results}) for case, results in rows.items()}
    if len(set(counts.values())) > 1:
        found.append(
            f"Rows have between {min(counts.values())} and {max(counts.values())} seeds: compare equal ones only."
        )
    if min(counts.values()) < SEEDS_MIN:
        found.append(f"Fewer than {SEEDS_MIN} seeds: no difference is a finding.")
    for case, results in rows.items():
        known = min(result.get("metric_peers") or result["peers"] for result in results)
        if known < (peers := results[0]["peers"]):
            found.append(f"{case}: means over {known} of {peers} peers: the others have no value of the metric.")
    algorithms = {result["algorithm"] for results in rows.values() for result in results}
    if missing := [name for name in RIVALS if name not in algorithms]:
        found.append(f"No row of {' and '.join(missing)}: without the simplest rivals a number says little.")
    return found
