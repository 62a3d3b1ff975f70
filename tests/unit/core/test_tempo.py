"""The tempo that a peer keeps while it is cut off."""

import pytest

from peer.core.tempo import ROUNDS, Tempo


@pytest.mark.parametrize(
    ("lengths", "least"),
    [
        ([], 0.0),
        ([60.0], 0.0),
        ([60.0, 3.0], 3.0),
        ([60.0, 1.0, 2.0, 3.0, 4.0], 4.0),
        ([60.0] + [1.0] * 7 + [9.0], 1.0),
        ([9.0] * ROUNDS + [1.0] * ROUNDS, 1.0),
    ],
)
def test_the_upper_quartile_of_the_last_rounds_but_not_the_first_in_which_all_warms_up(lengths, least):
    tempo = Tempo()
    for seconds in lengths:
        tempo.add(seconds)
    assert tempo.least_s() == least
