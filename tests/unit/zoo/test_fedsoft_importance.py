"""FedSoft: how often a peer divides its samples between the centers anew."""

import pytest

from tests.oracle import fedsoft as oracle
from tests.tools.simulated import finish, peers_of
from tests.unit.zoo.test_fedsoft import WHOLE, data_of, graph_of


@pytest.mark.parametrize("every", [1, 3])
def test_importance_is_computed_every_so_many_rounds(every):
    peers = peers_of(graph_of(options={"importance_every": every}, rounds=6, **WHOLE))
    data = data_of(peers)

    def computed():
        return {i: oracle.importance(peer.models[:-1], data[i], 1e-4) for i, peer in enumerate(peers)}

    fresh, used = [computed()], []  # what round t would compute, and what it used

    def note(t):
        used.append({i: peer.state["importance"] for i, peer in enumerate(peers)})
        fresh.append(computed())

    finish(peers, note)
    for t, importance in enumerate(used):
        for i, expected in (used[t - 1] if t % every else fresh[t]).items():
            assert importance[i] == pytest.approx(expected, abs=1e-9), f"round {t}, peer {i}"
    assert fresh[1] != fresh[0] and used[3] != used[2], "the division never moves"
