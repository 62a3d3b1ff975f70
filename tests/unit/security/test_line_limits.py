"""Log lines that a neighbor causes are rate-limited by neighbor and kind, so that it cannot fill the disk."""

from coordinator_free_bootstrap.errors import RefusalCode
from peer.host.line_limits import CHANGES_PER_MINUTE_MAX, LINES_PER_MINUTE_MAX, SENDERS_MAX, LineLimits


def test_lines_are_limited_per_minute_by_neighbor_and_kind():
    lines = LineLimits()
    found = [lines.take(0.0, 1, RefusalCode.MALFORMED) for _ in range(LINES_PER_MINUTE_MAX + 2)]
    assert found == [True] * 6 + [False] * 2
    others = [(2, RefusalCode.MALFORMED), (1, RefusalCode.NON_FINITE), (None, RefusalCode.MALFORMED)]
    assert all(lines.take(0.0, *other) for other in others)
    assert sum(lines.take(0.0, 1, "state", CHANGES_PER_MINUTE_MAX) for _ in range(1000)) == CHANGES_PER_MINUTE_MAX
    assert not lines.take(59.9, 1, RefusalCode.MALFORMED)
    assert lines.take(60.0, 1, RefusalCode.MALFORMED)


def test_unlimited_claimed_senders_share_one_limit():
    lines = LineLimits()
    taken = sum(lines.take(0.0, sender, RefusalCode.NOT_A_NEIGHBOR) for sender in range(10 * SENDERS_MAX))
    assert taken == SENDERS_MAX + LINES_PER_MINUTE_MAX
