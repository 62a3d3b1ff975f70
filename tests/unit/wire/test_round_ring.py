"""The last round records of a peer: each is sent once, in order, and what is not kept any more is said."""

import json

import numpy as np

from peer.wire import convert
from peer.wire.round_ring import BATCH_CHARACTERS, BATCH_RECORDS, RecordBatch, RoundRing


def ring_of(*rounds: int, size: int = 8, rounds_from: int = 0) -> RoundRing:
    ring = RoundRing(rounds_from, size)
    for index in rounds:
        ring.add({"kind": "round", "round_index": index, "metric_value": np.float32(0.5), "state": {"mixture": [1.0]}})
    return ring


def rounds_in(batch: RecordBatch) -> list[int]:
    return [json.loads(text)["round_index"] for text in batch.records]


def test_records_come_once_and_in_order():
    ring = ring_of(0, 1, 2)
    first = ring.batch(1)
    assert rounds_in(first) == [1, 2] and not first.more
    assert rounds_in(ring.batch(1, first.after)) == []
    ring.add({"round_index": 3})
    assert rounds_in(ring.batch(1, first.after)) == [3]


def test_how_data_are_distributed_is_told_only_where_the_owner_allows_it():
    line = {"round_index": 0, "state": {"mixture": np.array([0.25, 0.75]), "weights": [1, 2], "collaborators": [3]}}
    for clusters, told in ((False, None), (True, {"mixture": [0.25, 0.75], "collaborators": [3]})):
        ring = RoundRing(clusters=clusters)
        ring.add(line)
        assert json.loads(ring.batch(0).records[0]).get("state") == told


def test_a_full_ring_says_from_which_round_on_it_has_records():
    ring = ring_of(*range(20))
    batch = ring.batch(0)
    assert (batch.rounds_from, rounds_in(batch)) == (12, list(range(12, 20)))
    assert ring_of(rounds_from=7).batch(0).rounds_from == 7


def test_many_records_come_in_several_batches():
    ring = ring_of(*range(2 * BATCH_RECORDS + 1), size=1000)
    after, sizes = -1, []
    while True:
        batch = ring.batch(0, after)
        sizes.append(len(batch.records))
        after = batch.after
        if not batch.more:
            break
    assert sizes == [BATCH_RECORDS, BATCH_RECORDS, 1]


def test_a_batch_is_limited_in_characters_too():
    ring = RoundRing()
    for index in range(3):
        ring.add({"round_index": index, "missing": ["x" * (BATCH_CHARACTERS // 2)]})
    assert len(ring.batch(0).records) == 1 and ring.batch(0).more


def test_the_state_of_the_algorithm_is_not_told():
    assert json.loads(ring_of(0).batch(0).records[0]) == {"round_index": 0, "metric_value": 0.5}


def test_a_reply_carries_status_and_records():
    batch = ring_of(5, 6, rounds_from=5).batch(0)
    status, found = convert.unpack_watched(convert.pack_status({"peer_id": 3}, batch))
    assert (status, found.records, found.rounds_from) == ({"peer_id": 3}, batch.records, 5)
