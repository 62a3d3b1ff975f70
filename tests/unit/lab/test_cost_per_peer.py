"""What one peer does is not work over all peers: counted, not timed."""

import gc

import pytest

from coordinator_free_bootstrap import apply_settings, make_graph, parse_manifest
from peer.lab.network import VirtualNetwork
from peer.lab.simulated import SimulatedSettings, simulated_peers


class CountedIds(tuple):
    """The ids of a graph; counts how often all of them are looked at."""

    looks = 0

    def __iter__(self):
        CountedIds.looks += 1
        return super().__iter__()

    def __contains__(self, peer_id):
        CountedIds.looks += 1
        return super().__contains__(peer_id)


class CountedPeers(dict):
    """The peers of a network; counts how often all of them are looked at."""

    looks = 0

    def values(self):
        self.looks += 1
        return super().values()


def run(peers, *settings):
    """Simulate a ring of peers; return (looks at all ids of the graph, looks at all peers of the network)."""
    manifest = parse_manifest(apply_settings({}, ["run.rounds=3", "run.split=iid", *settings]), "test")
    graph = make_graph("ring", peers, manifest=manifest)
    graph.__dict__["ids"] = CountedIds(graph.ids)
    network = VirtualNetwork()
    network.peers = CountedPeers()
    CountedIds.looks = 0
    simulated_peers(graph, SimulatedSettings(), network)
    network.run()
    assert {peer.status for peer in dict.values(network.peers)} == {"completed"}
    return CountedIds.looks, network.peers.looks


@pytest.mark.parametrize(
    "settings",
    [
        ["run.algorithm=dfedavg"],
        ["run.algorithm=dfca"],
        ["run.algorithm=fedspd", "run.options.initialization=local"],
        ["run.algorithm=cgpfl", "run.options.clusters=auto"],
        ["run.algorithm=dpfl"],
    ],
    ids=lambda settings: settings[0],
)
def test_no_peer_looks_at_all_ids(settings):
    few, _ = run(5, *settings)
    many, _ = run(10, *settings)
    # once for all peers, and for the diameter of a small graph one search from each
    assert many - few <= 5
    assert few <= 2 * 5 + 4


def test_the_network_looks_at_all_peers_only_at_its_start():
    _, looks = run(6, "run.algorithm=dfedavg")
    assert looks == 2


def test_collections_of_garbage_do_not_look_at_the_objects_of_all_peers(monkeypatch, thawed):
    told = []
    freeze, unfreeze, tick = gc.freeze, gc.unfreeze, VirtualNetwork.later
    monkeypatch.setattr(gc, "freeze", lambda: (told.append("freeze"), freeze()))
    monkeypatch.setattr(gc, "unfreeze", lambda: (told.append("unfreeze"), unfreeze()))
    monkeypatch.setattr(VirtualNetwork, "later", lambda *arguments: (told.append("work"), tick(*arguments)))
    run(6, "run.algorithm=dfedavg")
    begun, ended = told.index("freeze"), told.index("unfreeze")
    assert {*told[begun + 1 : ended]} == {"work"} and "work" not in told[ended:]


class Waiting:
    """A host that only notes the ticks it gets."""

    def __init__(self, peer_id, ticks):
        self.peer_id, self._ticks = peer_id, ticks

    def connect(self, world):
        self.world = world

    def post(self, event):
        self._ticks.append((self.world.now(), self.peer_id))


def test_timers_ring_in_order_of_time_and_peer_and_the_last_one_set_counts():
    ticks = []
    network = VirtualNetwork()
    peers = [network.add(Waiting(peer_id, ticks)) for peer_id in range(4)]
    for peer, times in zip(peers, [(5.0,), (2.0, 5.0), (9.0, 3.0), (4.0,)], strict=True):
        for at in times:
            peer.set_timer(at)
    peers[3].stop("left")

    for idle in range(1, 6):  # one more than there are timers: it changes nothing
        network._advance_clock(idle)
        while network._calls:
            network._calls.popleft()()
    assert ticks == [(3.0, 2), (5.0, 0), (5.0, 1)]
    assert network.now == 5.0
