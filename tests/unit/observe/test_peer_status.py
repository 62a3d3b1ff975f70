"""A status is plain JSON and one sentence."""

import json

from peer.observe.status import NeighborStatus, PeerStatus

STATUS = PeerStatus(
    peer_id=3,
    incarnation=1 << 32,
    phase="running",
    round_index=7,
    rounds_total=60,
    activity="exchanging",
    waiting_for=(2, 5),
    waiting_s=1.25,
    neighbors=(NeighborStatus(2, "suspect", silent_s=2.0), NeighborStatus(5, "alive")),
    problems=("the disk is full",),
)


def test_to_dict_is_json():
    found = json.loads(json.dumps(STATUS.to_dict()))
    assert found["waiting_for"] == [2, 5] and found["neighbors"][0]["silent_s"] == 2.0


def test_sentence():
    assert STATUS.sentence() == (
        "peer 3 running, round 7 of 60, exchanging, waiting 1.2 s for 2, 5; 1 of 2 neighbors alive; the disk is full"
    )
    assert PeerStatus(1, 1, "finished", 60, 60).sentence() == "peer 1 finished, round 60 of 60; 0 of 0 neighbors alive"
