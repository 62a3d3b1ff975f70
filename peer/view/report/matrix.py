"""The matrix of a run: the model of peer i, as of the last round, on the test samples of peer j, from what each peer wrote.

Of one state directory it has one column: what this peer tested.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from coordinator_free_bootstrap.strict_json import finite, printable
from peer.core.metric import Metric
from peer.core.model_tests import REASONS
from peer.store.files import storage_errors, write_atomic
from peer.view.state.model_tests import TestResult, results
from peer.view.state.run_files import RunFiles

NAMES = ("model_of", "data_of", "slot", "round_index", "metric_value", "loss", "missing")
CSV_NAME = "matrix.csv"


def matrix(run: RunFiles) -> dict[str, Any] | None:
    """Return the tests of all peers; None where no peer has any.

    ``tests``: a row for each test, with the peer whose model it is (``model_of``) and the peer that tested it (``data_of``).
    ``own_mean``, ``others_mean``: mean of the metric over the results of own models, and of models of neighbors, one for each
    pair of peers; ``missing``: how many pairs have none, by reason.
    """
    found = columns_of(run)
    if not found:
        return None
    tests = [
        {"model_of": test["model_of"], "data_of": peer.peer_id} | dict(test)
        for peer in run.peers
        for test in peer.last.get("model_tests") or ()
    ]
    own = [r.value for tester, column in found.items() for r in column if r.model_of == tester]
    others = [r.value for tester, column in found.items() for r in column if r.model_of != tester]
    reasons = [r.missing for column in found.values() for r in column if r.missing]
    return {
        "tests": sorted(tests, key=lambda test: (test["model_of"], test["data_of"], test.get("slot", 0))),
        "own_mean": _mean(own),
        "others_mean": _mean(others),
        "missing": {word: reasons.count(word) for word in sorted(set(reasons))},
    }


def columns_of(run: RunFiles) -> dict[int, list[TestResult]]:
    """Return the results of each peer that has some."""
    found = {peer.peer_id: results(peer.last.get("model_tests")) for peer in run.peers}
    return {tester: column for tester, column in found.items() if column}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def reason(word: str) -> str:
    """Return a word of a record as a sentence about the peer whose model is missing."""
    return REASONS.get(word, printable(word, 32).replace("_", " "))


def matrix_text(values: dict[str, Any], metric: Metric) -> str:
    """Return the means, and how many results are missing for which reason."""
    text = f"own {metric.text(values['own_mean'])}, of neighbors {metric.text(values['others_mean'])} (means)"
    missing = "; ".join(f"{count} {word}: {reason(word)}" for word, count in values["missing"].items())
    return f"{text}; missing: {missing}" if missing else text


# ---- files --------------------------------------------------------------------------------------------------------------


def save_matrix(run: RunFiles, directory: Path) -> list[Path]:
    """Write `CSV_NAME`, a line for each test, and return its path; [] without tests.

    Raises:
        StorageError: it cannot be written.
    """
    values = matrix(run)
    if values is None:
        return []
    text = io.StringIO()
    writer = csv.DictWriter(text, _names(values["tests"]), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(test) for test in finite(values["tests"]))
    with storage_errors("write the matrix to", directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / CSV_NAME, text.getvalue().encode())
    return [directory / CSV_NAME]


def _flat(test: dict[str, Any]) -> dict[str, Any]:
    more = {f"metrics.{name}": value for name, value in (test.get("metrics") or {}).items()}
    return {key: value for key, value in test.items() if key != "metrics"} | more


def _names(tests: list[dict[str, Any]]) -> list[str]:
    more = {name: None for test in tests for name in _flat(test) if name not in NAMES}
    return [*NAMES, *more]
