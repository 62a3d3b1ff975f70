"""Incarnations only grow, also after a lost disk; certificate URIs have two forms."""

import pytest

from coordinator_free_bootstrap.errors import IdentityError
from coordinator_free_bootstrap.identity import INCARNATION_MAX, SEEN_MAX, next_incarnation, parse_spiffe_id, spiffe_id


@pytest.mark.parametrize(
    ("stored", "seen", "result"),
    [(0, 0, 1), (7, 0, 8), (7, 7, 8), (40, 7, 41), (INCARNATION_MAX - 1, 0, INCARNATION_MAX)],
)
def test_a_restart_with_the_state_directory_adds_one(stored, seen, result):
    assert next_incarnation(stored, seen, entropy=12345) == result


def test_a_start_without_a_state_directory_is_above_the_seen_incarnation():
    first, second = next_incarnation(None, 0, entropy=1), next_incarnation(None, 0, entropy=2)
    assert 0 < first < second
    assert second - first > 1_000_000  # restarts with a disk count up from here
    assert next_incarnation(None, second, entropy=1) > second


@pytest.mark.parametrize("stored", [None, 7])
def test_incarnations_that_absent_neighbors_saw_are_not_reused(stored):
    """Incarnations 41 and 42 were seen by neighbors that are absent now; the neighbor that answers saw 40."""
    seen = next_incarnation(None, 0, entropy=3) + 39
    result = next_incarnation(stored, seen, entropy=1)
    assert result > seen + 1_000_000
    assert next_incarnation(stored, seen, entropy=2) != result


def test_a_false_claim_cannot_use_up_the_incarnations():
    with pytest.raises(IdentityError, match="If the neighbor is honest"):
        next_incarnation(1, SEEN_MAX + 1, entropy=0)
    assert next_incarnation(1, SEEN_MAX, entropy=-1) < INCARNATION_MAX


def test_only_the_low_bits_of_the_entropy_are_used():
    assert next_incarnation(None, 0, entropy=(1 << 64) - 1) < INCARNATION_MAX
    assert next_incarnation(None, 0, entropy=(1 << 64) + 5) == next_incarnation(None, 0, entropy=5)


@pytest.mark.parametrize(
    ("stored", "seen"), [(INCARNATION_MAX, 0), (0, INCARNATION_MAX), (None, 1 << 64), (-1, 0), (3, -1)]
)
def test_out_of_range_incarnations_are_refused(stored, seen):
    with pytest.raises(IdentityError, match=r"incarnation: expected from 0 to .*, got"):
        next_incarnation(stored, seen, entropy=0)


def test_a_spiffe_id_is_parsed_back():
    assert spiffe_id("my-lab.example", 3) == "spiffe://my-lab.example/peer/3"
    assert parse_spiffe_id("spiffe://my-lab.example/peer/30") == ("my-lab.example", 30)


@pytest.mark.parametrize(
    "text",
    (
        *(
            "",
            "spiffe://a/peer/",
            "spiffe://a/peer/03",
            "spiffe://a/peer/-3",
            "spiffe://a/peer/3/",
            "spiffe://a/peer/3\n",
        ),
        *("spiffe:///peer/3", "spiffe://A/peer/3", "spiffe://a/peer/٣", "https://a/peer/3", " spiffe://a/peer/3"),
    ),
)
def test_uris_of_another_form_are_refused(text):
    with pytest.raises(IdentityError, match="expected spiffe://"):
        parse_spiffe_id(text)


@pytest.mark.parametrize(("federation", "peer_id"), [("a/b", 3), ("", 3), ("a", -1)])
def test_subjects_that_a_uri_cannot_hold_are_refused(federation, peer_id):
    with pytest.raises(IdentityError):
        spiffe_id(federation, peer_id)
