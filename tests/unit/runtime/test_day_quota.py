"""Bytes of a day on an injected clock: what counts, when a peer may go on, and what a restart knows."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import PolicyError
from peer.runtime.day_quota import DayQuota

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def quota(most: int, history: Path = Path("none")) -> DayQuota:
    return DayQuota(most, "policy.toml, line 4, bytes_a_day", history)


def test_a_round_may_begin_while_one_as_large_as_the_largest_fits() -> None:
    limit = quota(100)
    assert limit.closed(NOON) == ""
    for sent, closed in ((30, False), (40, True)):  # then 30 are left, and a round may have 40
        limit.count({"wire_bytes_sent": sent}, NOON)
        assert bool(limit.closed(NOON)) is closed
    assert limit.closed(NOON) == (
        "70 bytes sent today, and the next round could pass the 100 of the owner's policy (policy.toml, line 4, bytes_a_day)"
    )


def test_the_next_day_begins_at_zero() -> None:
    limit = quota(100)
    limit.count({"wire_bytes_sent": 60}, NOON)
    assert limit.closed(NOON)
    assert limit.closed(NOON + DAY) == ""
    limit.count({"wire_bytes_sent": 60}, NOON + DAY)
    assert limit.closed(NOON + DAY) and not limit.closed(NOON + 2 * DAY)


def test_the_first_round_has_what_one_needs_at_least() -> None:
    limit = quota(100)
    limit.expect(60)
    assert limit.closed(NOON) == ""
    limit.count({"wire_bytes_sent": 41}, NOON)
    assert limit.closed(NOON)
    limit.require_a_round()
    limit.expect(101)
    with pytest.raises(
        PolicyError, match="bytes_a_day: expected at least 101, the bytes of this run's largest round, got 100"
    ):
        limit.require_a_round()


def test_a_restarted_peer_knows_what_it_has_sent_today(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    lines = [
        {"kind": "round", "time": (NOON - DAY).isoformat(), "wire_bytes_sent": 50},
        {"kind": "round", "time": NOON.isoformat(), "wire_bytes_sent": 30},
        {"kind": "checkpoint", "time": NOON.isoformat(), "bytes": 10**9},
        {"kind": "round", "time": "yesterday", "wire_bytes_sent": 10**9},
        {"kind": "leave", "time": NOON.isoformat(), "wire_bytes_sent": 21},
    ]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert quota(101, history).closed(NOON) == "", "51 today, and the largest round had 50"
    assert quota(100, history).closed(NOON)
    assert quota(100, history).closed(NOON + DAY) == ""
