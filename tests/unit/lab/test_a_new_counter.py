"""A counter is one line in the table of counters and the line that counts: everything else follows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from peer.core.counters import Totals

PROGRAM = Path(__file__).parents[2] / "tools" / "one_more_counter.py"


def test_a_counter_is_one_line_and_its_use(tmp_path):
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "history": [1, 1, 0],
        "observers": [1, 1],
        "metrics": True,
        "warnings": [],
        "report": [6, 2, 2, 2],
        "printed": True,
        "summary": 2,
        "status": 2,
        "state": [6, 2, 2, 2],
        "checkpoint": 2,
        "documents": [
            "| `rounds_closed` | rounds | rounds that were closed |",
            "| `peer_rounds_closed_total` | counter | rounds that were closed |",
        ],
        "a wrong count": "rounds_closed: expected a count, got -1",
    }


def test_a_counter_that_is_not_in_the_table_is_an_error():
    """Before, a misspelled counter counted under its own name, which nobody read."""
    totals = Totals()
    with pytest.raises(AttributeError, match="model_sent"):
        totals["model_sent"] += 1
    with pytest.raises(AttributeError, match="model_sent"):
        totals.model_sent = 1
