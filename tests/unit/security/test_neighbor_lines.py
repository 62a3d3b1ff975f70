"""A hostile neighbor cannot fill the disk: its refusals are told a few times a minute, each kind by itself."""

from coordinator_free_bootstrap.errors import Refusal
from peer.neighbor_lines import CHANGES_PER_MINUTE_MAX, LINES_PER_MINUTE_MAX, SENDERS_MAX, NeighborLines


def test_at_the_limit_and_past_it_and_again_a_minute_later():
    now = [0.0]
    lines = NeighborLines(lambda: now[0])
    assert [lines.take(1, Refusal.MALFORMED) for _ in range(LINES_PER_MINUTE_MAX + 2)] == [True] * 6 + [False] * 2
    others = [(2, Refusal.MALFORMED), (1, Refusal.NON_FINITE), (None, Refusal.MALFORMED)]
    assert all(lines.take(*other) for other in others)
    assert sum(lines.take(1, "state", CHANGES_PER_MINUTE_MAX) for _ in range(1000)) == CHANGES_PER_MINUTE_MAX
    now[0] = 59.9
    assert not lines.take(1, Refusal.MALFORMED)
    now[0] = 60.0
    assert lines.take(1, Refusal.MALFORMED)


def test_claimed_senders_without_end_share_one_allowance():
    lines = NeighborLines(lambda: 0.0)
    told = sum(lines.take(sender, Refusal.NOT_A_NEIGHBOR) for sender in range(10 * SENDERS_MAX))
    assert told == SENDERS_MAX + LINES_PER_MINUTE_MAX
