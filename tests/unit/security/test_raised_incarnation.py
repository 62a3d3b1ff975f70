"""A peer that lost its disk takes an incarnation above the one that a neighbor knows, within the possible range."""

import logging
from dataclasses import replace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import Refusal, RefusalCode
from coordinator_free_bootstrap.identity import SEEN_MAX
from peer.core.events import HandshakeFailed, IncarnationRaised
from peer.core.messages import HelloReply
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.world import AsyncioWorld
from tests.simulation.options import manifest


@pytest.fixture
def world(tmp_path, monkeypatch):
    graph = make_graph("line", 2, manifest=manifest(algorithm="dfca"))
    parts = assemble(0, graph, LocalSettings.at(tmp_path, insecure=True))
    made = AsyncioWorld(parts)
    made.events = []
    monkeypatch.setattr(made.host, "post", made.events.append)
    yield made
    made.history.close()
    parts.lock.release()


def answer(world, seen):
    """Let neighbor 1 refuse a hello, because it knows incarnation ``seen`` of this peer."""
    theirs = replace(world.host.hello_to(1), sender=1, seen_incarnation=seen)
    world.host.hello_answered(1, HelloReply(theirs, Refusal(RefusalCode.OLD_INCARNATION, "old")))


def test_raised_incarnation_is_written_to_disk_first(world):
    seen = world.host.state.incarnation + 5
    answer(world, seen)
    claimed = world.parts.incarnations.read()
    assert claimed > seen + 1
    assert world.events == [IncarnationRaised(claimed), HandshakeFailed(1, "old")]
    assert world.history.incarnation == claimed


@pytest.mark.parametrize("seen", [0, SEEN_MAX + 1, 1 << 63])
def test_lower_or_impossible_incarnation_changes_nothing(world, seen, caplog):
    before = world.host.state.incarnation
    with caplog.at_level(logging.ERROR, logger="peer"):
        answer(world, seen)
    assert world.history.incarnation == world.parts.incarnations.read() == before
    assert world.events == [HandshakeFailed(1, "old")]
    assert ("cannot persist an incarnation" in caplog.text) == (seen > before)
