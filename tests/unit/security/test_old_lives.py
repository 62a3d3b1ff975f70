"""Old incarnations are dead for good, also after a restart of the peer that remembers them."""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import check_hello, make_graph
from coordinator_free_bootstrap.errors import Refusal
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from peer.algorithms.registry import algorithm_named
from peer.core import events as ev
from peer.core.engine import Engine, make_hello
from peer.core.messages import Hello

GRAPH = make_graph("ring", 3)
DIGESTS = {"wire_version": "1", "manifest": "m", "graph": "g", "schema": "s", "initial_models": ""}


def engine_of(peer_id: int, incarnation: int, resume=None) -> Engine:
    algorithm = algorithm_named("dfca")(GRAPH.manifest, peer_id, GRAPH)
    return Engine(peer_id, GRAPH, algorithm, incarnation, model_bytes=64, facts={"trained": [0]}, resume=resume)


def hello_of(incarnation: int) -> Hello:
    return make_hello(engine_of(1, incarnation), DIGESTS, "{}", 0)


def test_a_restarted_peer_remembers_which_lives_are_over():
    first = engine_of(0, 1)
    first.step(ev.Tick(), 0.0)
    first.step(ev.Greeted(hello_of(50), answered=False), 1.0)
    assert first.admits(1, 49).code is Refusal.OLD_INCARNATION and first.admits(1, 50) is None
    second = engine_of(0, 2, resume=first.state())
    assert second.admits(1, 49).code is Refusal.OLD_INCARNATION
    assert second.admits(1, 50).code is Refusal.NO_HANDSHAKE  # the same life may go on, after a handshake
    second.step(ev.Tick(), 0.0)
    before = second.state()
    second.step(ev.Greeted(hello_of(49), answered=False), 1.0)
    assert second.views[1].incarnation == 0 and second.state() == before
    mine = make_hello(second, DIGESTS, "{}", 1)
    assert mine.seen_incarnation == 50  # so that a peer without its disk can go above it
    code, sentence = check_hello(mine, hello_of(49), neighbors=(1, 2), last_incarnation=50)
    assert code is Refusal.OLD_INCARNATION and "take 51 or higher" in sentence
    second.step(ev.Greeted(hello_of(50), answered=False), 2.0)
    assert second.admits(1, 50) is None


@pytest.mark.parametrize(
    ("incarnation", "fits"), [(1, True), (INCARNATION_MAX, True), (0, False), (INCARNATION_MAX + 1, False)]
)
def test_incarnations_at_the_limit_and_past_it(incarnation, fits):
    mine = make_hello(engine_of(0, 1), DIGESTS, "{}", 1)
    theirs = replace(hello_of(1), incarnation=incarnation)
    found = check_hello(mine, theirs, neighbors=(1, 2))
    assert (found is None) is fits and (fits or found[0] is Refusal.MALFORMED)
