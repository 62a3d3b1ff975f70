"""Frames to a neighbor are small until its link has shown a rate; and what a slow transfer may take."""

import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node, Relay
from coordinator_free_bootstrap.manifest import Timeouts
from coordinator_free_bootstrap.rates import FRAME_BYTES_MIN
from peer.wire.frame_sizes import BUFFERED_BYTES, FIRST_BYTES, FrameSizes
from peer.wire.pacing import Pacing

MOST = 1 << 20


def test_frames_grow_to_half_a_second_of_the_rate_that_a_reply_proves():
    sizes = FrameSizes()
    assert sizes.next(1, MOST) == FIRST_BYTES and not sizes.is_fast(1)
    sizes.answered(1, 300_000, 10.0)
    assert sizes.next(1, MOST) == 15_000
    sizes.answered(1, 300_000, 60.0)
    assert sizes.next(1, MOST) == 15_000, "a reply that waited proves nothing"
    sizes.answered(1, 300_000, 0.01)
    assert sizes.next(1, MOST) == MOST and sizes.is_fast(1) and sizes.next(2, MOST) == FIRST_BYTES


def test_frames_that_arrive_soon_grow_fourfold_until_the_link_is_known_as_fast():
    sizes, found = FrameSizes(), []
    while not sizes.is_fast(1):
        found.append(sizes.next(1, MOST))
        sizes.arrived(1, found[-1], 0.001)
    assert found == [FIRST_BYTES << shift for shift in (0, 2, 4, 6)]


@pytest.mark.parametrize("rate", [8_000, 40_000, 300_000])
def test_frames_that_arrive_one_by_one_find_the_rate_of_a_slow_link(rate):
    """Also after a first one that a buffer took at once."""
    sizes = FrameSizes()
    sizes.arrived(1, sizes.next(1, MOST), 0.0)
    for _ in range(8):
        size = sizes.next(1, MOST)
        sizes.arrived(1, size, size / rate)
    assert not sizes.is_fast(1)
    assert sizes.next(1, MOST) == pytest.approx(max(FRAME_BYTES_MIN, 0.5 * rate), abs=4)


def test_short_last_frame_does_not_make_frames_smaller():
    sizes = FrameSizes()
    sizes.arrived(1, 100, 0.1)
    assert sizes.next(1, MOST) == FIRST_BYTES


def test_small_frames_of_the_manifest_prove_a_fast_link_all_the_same():
    sizes = FrameSizes()
    for _ in range(8):
        sizes.arrived(1, sizes.next(1, 4096), 0.001)
    assert sizes.is_fast(1) and sizes.next(1, 4096) == 4096


def test_what_the_buffers_take_at_once_proves_no_rate():
    sizes = FrameSizes()
    sizes.wrote(1, BUFFERED_BYTES, 0.01)
    assert sizes.next(1, MOST) == FIRST_BYTES
    sizes.wrote(1, BUFFERED_BYTES + 4_000_000, 2.0)
    assert sizes.next(1, MOST) == 1_000_000


def test_failed_transfers_make_frames_smaller_down_to_the_least():
    sizes = FrameSizes()
    sizes.answered(1, 300_000, 0.01)
    sizes.failed(1)
    assert sizes.next(1, MOST) == FIRST_BYTES and not sizes.is_fast(1), "the rate has to be shown again"
    found = []
    while sizes.next(1, MOST) > FRAME_BYTES_MIN:
        sizes.failed(1)
        found.append(sizes.next(1, 1 << 40))
    assert found == sorted(found, reverse=True) and all(size % 4 == 0 for size in found)


def pacing(**limits):
    return Pacing.of(Graph((Node(1, "a:1"), Node(2, "a:2", **limits)), ((1, 2),), Manifest()), 1)


def advice(own):
    return own.advice(2, 3_000_000, Timeouts())


def test_advice_has_the_measured_rate_the_time_of_a_model_and_the_deadline():
    own = pacing()
    own.arrived(2, FIRST_BYTES, FIRST_BYTES / 4_000)
    assert "has shown 4000 bytes/s, at which 3000000 bytes take 750 s; run.timeouts.round_deadline_s is 600" in advice(
        own
    )
    assert own.is_too_slow(2, 3_000_000, Timeouts()) and not own.is_too_slow(2, 300_000, Timeouts())


@pytest.mark.parametrize("limits", [{}, {"upload_limit": 8_000}, {"download_limit": 8_000}])
def test_frames_to_a_slow_neighbor_arrive_one_by_one_also_where_it_declares_its_limit(limits):
    own = pacing(**limits)
    assert own.is_unproven(2) and own.frame_bytes(2, MOST) == (
        FRAME_BYTES_MIN if limits.get("download_limit") else FIRST_BYTES
    )
    for _ in range(9):
        own.arrived(2, own.frame_bytes(2, MOST), 0.001)
    assert not own.is_unproven(2) and own.frame_bytes(2, MOST) == MOST


def test_frames_at_an_own_limit_are_spaced_by_it_and_do_not_wait_for_each_other():
    graph = Graph((Node(1, "a:1", upload_limit=8_000), Node(2, "a:2")), ((1, 2),), Manifest())
    assert not Pacing.of(graph, 1).is_unproven(2) and Pacing.of(graph, 1).frame_bytes(2, MOST) == FRAME_BYTES_MIN


def test_frames_at_a_moderate_declared_limit_do_not_wait_for_each_other():
    assert not pacing(download_limit=200_000).is_unproven(2)


@pytest.mark.parametrize(("rate", "largest"), [(80_000, 50_000), (5_000_000, MOST), (50_000_000, None)])
def test_frames_over_a_slow_relay_arrive_one_by_one_however_fast_they_come(rate, largest):
    hub, ends = Node(0, "a:1", relay=Relay(rate, 8)), [Node(i, "", dials_only=True) for i in (1, 2)]
    own = Pacing.of(Graph((hub, *ends), ((0, 1), (0, 2), (1, 2)), Manifest(), via=((1, 2, 0),)), 1)
    for _ in range(9):
        own.arrived(2, own.frame_bytes(2, MOST), 0.001)
    assert own.is_unproven(2) == (largest is not None)
    assert own.frame_bytes(2, MOST) == (largest or MOST)


@pytest.mark.parametrize(("limits", "size"), [({}, FIRST_BYTES), ({"download_limit": 200_000}, 20_000)])
def test_declared_limit_decides_where_there_is_one(limits, size):
    own = pacing(**limits)
    assert own.frame_bytes(2, MOST) == size
    assert bool(advice(own)) == (not limits)
    own.answered(2, 10_000_000, 0.1)
    assert own.frame_bytes(2, MOST) == (20_000 if limits else MOST) and not advice(own)


@pytest.mark.parametrize(
    ("seconds", "received", "goes_on"),
    [(50, 0, True), (120, 1_000_000, True), (120, 100_000, False), (599, 2_000_000, True), (601, 2_900_000, False)],
)
def test_transfer_that_goes_on_steadily_may_last_until_the_round_deadline(seconds, received, goes_on):
    """3 MB at 32 KiB/s and the idle time are 102 s; at 2 KiB/s each byte buys time."""
    assert (seconds < pacing().may_last_s(2, 3_000_000, received, Timeouts())) == goes_on
