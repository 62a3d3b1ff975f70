"""One secure sum among its parts: what opens it after each death, and what a receiver does not get.

Method: `Parties` delivers message by message. A test of an attack plays the receiver, and ends without an answer that opens it.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from peer.core.messages import Opening
from peer.secure_sum.arithmetic import SECRET_BYTES, SEED_BYTES, TAG_BYTES
from peer.secure_sum.roster import Roster, members_min, threshold
from peer.secure_sum.sent import SEALED_BYTES
from tests.tools.sums import RECEIVER, Parties, complete, summed


def parties(neighbors: int = 5, **fields) -> Parties:
    return Parties(complete(neighbors), **fields)


def answers(played: Parties, kind: Opening) -> list[tuple[int, int, Opening, bytes]]:
    """Return what is under way of a kind, and take it from there."""
    found = [each for each in played.outbox if each[2] is kind]
    played.outbox = [each for each in played.outbox if each[2] is not kind]
    return found


# ---- sums that are opened -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbors", [3, 4, 5, 8, 12])
def test_the_receiver_reads_the_sum_bit_by_bit(neighbors):
    played = summed(parties(neighbors))
    played.fix()
    played.settle()
    assert played.opened().tobytes() == played.expected(played.neighbors).tobytes()


def test_models_of_other_weights_are_averaged_by_weight():
    played = parties(4)
    played.weights = {1: 0.25, 2: 0.2, 3: 0.2, 4: 0.125}
    summed(played, (1, 2, 4))
    played.fix()
    played.settle()
    assert played.opened().tobytes() == played.expected((1, 2, 4)).tobytes()


@pytest.mark.parametrize(("neighbors", "dead"), [(4, 1), (5, 1), (8, 1), (8, 2)])
def test_peers_that_die_before_they_send_are_left_out(neighbors, dead):
    played = summed(parties(neighbors), range(1 + dead, neighbors + 1))
    played.fix()
    played.settle(dead=range(1, 1 + dead))
    assert played.opened().tobytes() == played.expected(range(1 + dead, neighbors + 1)).tobytes()


@pytest.mark.parametrize("phase", [Opening.MEMBERS, Opening.AGREES, Opening.AGREED, Opening.REVEALS])
@pytest.mark.parametrize("neighbors", [3, 4, 6])
def test_a_peer_that_dies_after_it_has_sent_stays_in_the_sum(neighbors, phase):
    """Whichever message is the first that does not come from it, or does not reach it."""
    played = summed(parties(neighbors))
    played.fix()
    order = [*Opening]
    while played.outbox:
        sender, to, kind, data = played.outbox.pop(0)
        if not (2 in (sender, to) and order.index(kind) >= order.index(phase)):
            assert played.take(sender, to, kind, data) == ""
    assert played.opened().tobytes() == played.expected(played.neighbors).tobytes()


def test_a_peer_that_is_away_when_the_round_begins_has_no_mask_to_recover():
    played = parties(5)
    played.begin(there=(1, 2, 4, 5))
    for n in (1, 2, 4, 5):
        assert played.join(n) == ""
        played.deliver(n)
    played.fix()
    played.settle()
    assert played.opened().tobytes() == played.expected((1, 2, 4, 5)).tobytes()
    reveals = [data for _, _, kind, data in played.log if kind is Opening.REVEALS]
    assert {len(data) for data in reveals} == {TAG_BYTES + 4 * SECRET_BYTES}, "no seed of two peers"


def test_a_death_costs_one_exchange_of_less_than_a_kilobyte():
    played = summed(parties(8), range(2, 9))
    played.fix()
    played.settle(dead={1})
    both_ways = sum(len(data) for sender, to, _, data in played.log if 5 in (sender, to))
    with_all = summed(parties(8))
    with_all.fix()
    with_all.settle()
    assert {kind for sender, to, kind, _ in played.log if 5 in (sender, to)} == {*Opening}
    assert both_ways < 1024
    assert both_ways < sum(len(data) for sender, to, _, data in with_all.log if 5 in (sender, to)), "no message more"


# ---- sums that are not opened -------------------------------------------------------------------------------------------


def test_too_few_members_are_asked_nothing():
    played = summed(parties(5), (1, 2, 3))
    played.fix()
    assert played.outbox == [] and not played.receiver.is_open
    assert played.receiver.problem.startswith("models of neighbors: expected 4 or more, got 3 of the 5")


def test_too_few_reveals_open_nothing():
    played = summed(parties(6))
    played.fix()
    played.settle(dead={1, 2, 3})
    for n in (1, 2, 3):
        played.receiver.lose(n)
    assert not played.receiver.is_open and played.receiver.awaited == {}
    assert played.receiver.problem == "members that reveal masks: expected 4, got 3"


def test_with_a_peer_that_sent_nothing_each_member_must_reveal():
    played = summed(parties(6), range(2, 7))
    played.fix()
    played.settle(dead={1, 2})
    assert played.receiver.awaited == {2: 1}
    played.receiver.lose(2)
    assert "expected 5, all of them as peers [1] have delivered nothing, got 4" in played.receiver.problem


def test_a_member_that_does_not_answer_is_named():
    played = summed(parties(6))
    played.fix()
    played.settle(dead={1, 2, 3})
    played.receiver.give_up()
    assert played.receiver.problem == "members [1, 2, 3] did not answer in time"


def test_a_wrong_share_opens_nothing():
    played = summed(parties(4))
    played.fix()
    while played.outbox:
        sender, to, kind, data = played.outbox.pop(0)
        if kind is Opening.REVEALS and sender == 2:
            data = data[:-1] + bytes([data[-1] ^ 1])
        played.take(sender, to, kind, data)
    assert not played.receiver.is_open
    assert played.receiver.problem.startswith("the shares that members [1, 2, 3] revealed do not give the mask of peer")


# ---- receivers that lie -------------------------------------------------------------------------------------------------


def asked(played: Parties, members, of=None) -> list[tuple[int, bytes]]:
    """Return what a receiver asks each member, as `fix` says it of these members."""
    own = played.receiver._received
    own.members = None
    kept, own._shares = own._shares, {n: own._shares[n] for n in members}
    found = own.fix()
    own._shares = kept
    return [(n, own.roster.tag + data) for n, data in found.items()]


def test_a_peer_agrees_to_one_set_of_members():
    played = summed(parties(5))
    first, second = dict(asked(played, (1, 2, 3, 4, 5))), dict(asked(played, (1, 2, 3, 4)))
    assert played.take(RECEIVER, 1, Opening.MEMBERS, first[1]) == ""
    said = played.take(RECEIVER, 1, Opening.MEMBERS, second[1])
    assert said == "members of the sum of round 3: members: expected [1, 2, 3, 4, 5], as before, got [1, 2, 3, 4]"
    assert played.take(RECEIVER, 1, Opening.MEMBERS, first[1]) == "", "the same again, as a retry"


def test_two_sets_for_two_groups_are_not_revealed():
    """The receiver wants peer 5 alone: it shows the others a set without it, and it a set with it, and passes on all tags."""
    played = summed(parties(5))
    with_5, without_5 = dict(asked(played, (1, 2, 3, 4, 5))), dict(asked(played, (1, 2, 3, 4)))
    for n in (1, 2, 3):
        assert played.take(RECEIVER, n, Opening.MEMBERS, without_5[n]) == ""
    for n in (4, 5):
        assert played.take(RECEIVER, n, Opening.MEMBERS, with_5[n]) == ""
    roster = played.receiver._received.roster
    tags = {sender: data[TAG_BYTES:] for sender, _, kind, data in answers(played, Opening.AGREES)}
    shown = {n: (1, 2, 3, 4) if n < 4 else (1, 2, 3, 4, 5) for n in tags}

    def tag(sender: int, to: int) -> bytes:
        others = [n for n in shown[sender] if n != sender]
        return tags[sender][TAG_BYTES * others.index(to) : TAG_BYTES * (others.index(to) + 1)]

    for to in (1, 4, 5):
        for count in range(1, 5):
            for signers in itertools.combinations([n for n in shown if n != to and to in shown[n]], count):
                data = roster.tag + roster.as_bits(signers) + b"".join(tag(sender, to) for sender in signers)
                assert played.take(RECEIVER, to, Opening.AGREED, data) != ""
    assert answers(played, Opening.REVEALS) == []


def test_nothing_is_revealed_before_the_members_are_agreed_to():
    played = summed(parties(4))
    roster = played.receiver._received.roster
    said = played.take(RECEIVER, 1, Opening.AGREED, roster.tag + roster.as_bits(()))
    assert "expected members to agree to, got what they agree to" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "bytes of sealed shares of 3 members"),
        (lambda data: data + b"x", "bytes of sealed shares of 3 members"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "a share that peer 4 has not sealed for this sum"),
        (lambda data: data[:TAG_BYTES] + b"\xff" + data[TAG_BYTES + 1 :], "a bit of no peer of the roster"),
        (
            lambda data: data[:TAG_BYTES] + b"\x0e" + data[TAG_BYTES + 1 :],
            "expected 3 or more with peer 1, got [2, 3, 4]",
        ),
        (
            lambda data: data[:TAG_BYTES] + b"\x03" + data[TAG_BYTES + 1 :][:SEALED_BYTES],
            "expected 3 or more with peer 1, got [1, 2]",
        ),
    ],
)
def test_members_that_cannot_be_right_are_refused(change, words):
    played = summed(parties(4))
    asked_of = dict(asked(played, (1, 2, 3, 4)))
    assert words in played.take(RECEIVER, 1, Opening.MEMBERS, change(asked_of[1]))
    assert played.outbox == []


def test_a_forged_tag_reveals_nothing():
    played = summed(parties(4))
    played.fix()
    for sender, to, kind, data in answers(played, Opening.MEMBERS):
        played.take(sender, to, kind, data)
    for sender, to, kind, data in answers(played, Opening.AGREES):
        played.take(sender, to, kind, data)
    (data,) = [data for _, to, _, data in answers(played, Opening.AGREED) if to == 4]
    forged = data[:-1] + bytes([data[-1] ^ 1])
    assert "by which peer 3 does not agree to members [1, 2, 3, 4]" in played.take(RECEIVER, 4, Opening.AGREED, forged)
    short = data[: TAG_BYTES + 1 + TAG_BYTES]
    assert "bytes of tags of members" in played.take(RECEIVER, 4, Opening.AGREED, short)
    one = data[:TAG_BYTES] + b"\x01" + data[TAG_BYTES + 1 :][:TAG_BYTES]
    assert "agreement: expected that of 3 members, got that of 2" in played.take(RECEIVER, 4, Opening.AGREED, one)
    assert answers(played, Opening.REVEALS) == []
    assert played.take(RECEIVER, 4, Opening.AGREED, data) == ""
    assert len(answers(played, Opening.REVEALS)) == 1


def test_a_second_roster_of_a_round_and_one_of_an_earlier_round_are_not_joined():
    played = summed(parties(5))
    before = played.peers[1].shares(RECEIVER, 3)
    played.begin(there=(1, 2, 3, 4))
    assert played.join(1) == "a sum of peer 0 in round 3 has been joined before"
    assert played.peers[1].shares(RECEIVER, 3) == before, "its masks stay those of the first"
    played.round_index = 2
    played.begin()
    assert "has been joined before" in played.join(1)
    assert played.peers[1].shares(RECEIVER, 2) == b""


def test_messages_of_another_sum_are_not_answered():
    played = summed(parties(5))
    played.fix()
    old = answers(played, Opening.MEMBERS)
    played.receiver._received = None
    played.begin(there=(1, 2, 3, 4))
    assert played.take(RECEIVER, 5, Opening.MEMBERS, played.receiver._received.roster.tag + bytes(200)) == ""
    assert played.outbox == [], "peer 5 knows the first roster only"
    assert played.take(*old[0]) == "" and len(played.outbox) == 1


def test_a_restarted_peer_opens_nothing_that_it_masked_before():
    played = summed(parties(4))
    played.fix()
    played.peers[2] = played.new(2, life=2)
    played.settle(dead={1, 3, 4})
    assert [sender for sender, _, kind, _ in played.log if kind is Opening.AGREES] == []
    assert played.join(2, incarnation=2) == "this peer's present key is not among those of the sum"
    assert played.peers[2].shares(RECEIVER, 3) == b""


@pytest.mark.parametrize("there", [(1, 2), (1, 2, 3)])
def test_a_roster_of_too_few_is_not_joined(there):
    played = parties(5)
    played.begin(there=there)
    assert played.join(1) == f"a sum of peer 0 needs 4 of its neighbors, and {len(there)} are there"


def test_a_roster_with_a_stranger_is_not_joined():
    played = Parties(complete(5))
    played.begin()
    own = played.receiver._received.roster.peers
    stranger = played.peers[RECEIVER]._keys.announcement(1)
    played.roster = Roster.of(played.receiver._keys, RECEIVER, 3, [*own, stranger]).packed
    assert played.join(1) == "peers [0] are no neighbors of peer 0"


def test_rosters_of_another_form_are_refused():
    played = parties(4)
    packed = played.begin()
    rejects = played.peers[1].rejects_roster
    assert "bytes at the end of the keys" in rejects(RECEIVER, 3, packed + b"x").reason
    assert "a signature of" in rejects(RECEIVER, 3, packed[:-2] + b"\x00\x09").reason
    half = len(packed) // 4
    assert "in another order, or twice" in rejects(RECEIVER, 3, packed[half:] + packed[:half]).reason
    assert "in another order, or twice" in rejects(RECEIVER, 3, packed + packed[-half:]).reason


# ---- what a receiver can know -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [(), (3,)])
def test_what_receiver_and_colluders_see_leaves_each_honest_model_free(dead):
    """For any other model of peer 3 with the same sum, there are masks with which the receiver sees the same.

    The views are linear in the models and in the masks that are not revealed. So it is enough that the matrix
    of the masks has the rank of all views but one: that of the sum. With entries of 1 and -1 that is so modulo 2^32 too.
    """
    honest = [n for n in (3, 4, 5, 6) if n not in dead]
    pairs = list(itertools.combinations(honest, 2))  # masks with a colluder or a dead peer are known
    rows = []
    for sender in honest:
        row = [0] * len(pairs)
        for at, (a, b) in enumerate(pairs):
            row[at] = (1 if sender == a else -1) if sender in (a, b) else 0
        rows.append(row)
    rank = np.linalg.matrix_rank(np.array(rows))
    assert rank == len(rows) - 1
    total = np.ones(len(rows)) @ np.array(rows)
    assert not total.any(), "the one combination without a mask is the sum of the honest models"


@pytest.mark.parametrize("neighbors", range(3, 40))
def test_two_groups_that_agree_share_an_honest_peer(neighbors):
    needed, least = threshold(neighbors), members_min(neighbors)
    colluders_max = 2 * needed - neighbors - 1
    assert least >= 3 and colluders_max < needed
    if neighbors > 3:  # of three all are members, so there is one set
        assert 2 * needed - neighbors > colluders_max >= 0
        assert neighbors - least >= 1, "one may die"


def test_sizes_of_messages():
    played = summed(parties(8), range(2, 9))
    played.fix()
    played.settle(dead={1})
    sizes = {kind: len(data) for _, to, kind, data in played.log if to in (RECEIVER, 8)}
    assert sizes[Opening.MEMBERS] == TAG_BYTES + 1 + 6 * SEALED_BYTES
    assert sizes[Opening.AGREES] == TAG_BYTES + 6 * TAG_BYTES
    assert sizes[Opening.REVEALS] == TAG_BYTES + 7 * SECRET_BYTES + SEED_BYTES
