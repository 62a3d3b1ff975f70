"""The line of `peer status` about one peer."""

import pytest

from peer.observe.ask import sentence

STATUS = {
    "round_index": 7,
    "rounds_total": 60,
    "stage": "exchanging",
    "neighbors": {"1": "alive", "2": "suspect"},
    "neighbor_rounds": {"1": 6, "2": 7},
    "silent_s": {"1": 0.1, "2": 3.2},
    "suspicion_s": 5.0,
    "waiting_for": [],
    "owed_to": [],
    "waiting_s": 0.0,
    "storage_error": "",
}


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "1 of 2 neighbors alive (2 suspect)"),
        ({"waiting_for": [1], "waiting_s": 4.04}, "; has waited 4.0 s for models of 1, in round 6"),
        (
            {"waiting_for": [1, 2], "waiting_s": 4.0},
            "; has waited 4.0 s for models of 1, in round 6; for models of 2, silent for 3.2 s and marked dead after 5 s",
        ),
        ({"owed_to": [1], "waiting_s": 4.0}, "; has waited 4.0 s for 1 to accept our models"),
        ({"storage_error": "no space left"}, "; no space left"),
    ],
)
def test_the_line_has_round_stage_neighbors_and_what_the_peer_waits_for(changes, end):
    said = sentence(STATUS | changes)
    assert said.startswith("round 7 of 60, exchanging; 1 of 2 neighbors alive")
    assert said.endswith(end)
