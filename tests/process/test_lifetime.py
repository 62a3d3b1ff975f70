"""Goal: a federation outlives every change: joins, leaves, other edges, keys, addresses and releases, with a kill in each.

Method: `benchmarks/lifetime.py` with few rounds: real processes over TLS, of which one begins with an earlier commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lifetime import CHANGES, LEAVER, REMOVED, STAYERS, live

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
ALONE = 60.0  # percent: a peer has 6 of 10 digits


def test_every_change_is_outlived_with_a_kill_in_each(tmp_path: Path, earlier: Path) -> None:
    outcome = live(tmp_path, 60, earlier=earlier)
    assert outcome.codes == {**dict.fromkeys((*STAYERS, 5), 0), LEAVER: REMOVED}
    assert [kill.change for kill in outcome.kills] == list(CHANGES), "each change has had its kill"
    lines = [json.loads(line) for line in (tmp_path / "site-3" / "state" / "audit.jsonl").read_text().splitlines()]
    releases = [line["release"] for line in lines if line["kind"] == "start"]
    assert "+" in releases[0] and "+" not in releases[-1], "it began with the earlier commit"
    assert outcome.folded_twice == 0
    assert min(outcome.accuracy.values()) > ALONE + 20.0, "the stayers have each other's digits"
