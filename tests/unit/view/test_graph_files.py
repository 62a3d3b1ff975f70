"""An observer sees which peers have which graph file of their federation."""

import pytest

from peer.view.state.graph_files import graph_files
from peer.view.state.peer_state import PeerState


def peer(peer_id, revision=None, digest="", silent=""):
    state = PeerState(peer_id)
    state.answer = {} if revision is None else {"revision": revision, "graph_file": digest}
    state.silent = silent
    return state


@pytest.mark.parametrize(
    ("peers", "phrases"),
    [
        ([peer(0, 0, "aa"), peer(1, 0, "aa")], []),
        ([peer(0), PeerState(1)], []),
        ([peer(0, 2, "cc"), peer(1, 2, "cc")], ["graph file 3 (cc): peer 0, 1"]),
        (
            [peer(0, 1, "bb"), peer(1, 2, "cc"), peer(2, 2, "cc"), peer(3), peer(4, 0, "aa", silent="no answer")],
            ["graph file 3 (cc): peer 1, 2", "graph file 2 (bb): peer 0"],
        ),
    ],
    ids=[
        "the first file",
        "no word of it",
        "all have the third",
        "in a change, with an older release and a silent peer",
    ],
)
def test_peers_are_listed_by_their_file_the_last_one_first(peers, phrases):
    assert graph_files(peers) == phrases
