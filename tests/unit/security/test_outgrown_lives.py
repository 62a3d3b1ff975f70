"""A peer whose disk was lost goes above the life that a neighbor has seen, once, and only as far as can be true."""

import logging
from types import SimpleNamespace

import pytest

from coordinator_free_bootstrap.identity import SEEN_MAX
from peer.core.events import Outgrown
from peer.shell.speaking import Speaking
from peer.store.identity_files import IncarnationFile


@pytest.fixture
def peer(tmp_path):
    incarnations = IncarnationFile(tmp_path)
    engine = SimpleNamespace(incarnation=incarnations.claim(1))
    history = SimpleNamespace(incarnation=engine.incarnation)
    parts = SimpleNamespace(incarnations=incarnations)
    events = []
    return SimpleNamespace(engine=engine, history=history, parts=parts, events=events, post=events.append)


def test_it_goes_above_and_the_file_says_so_first(peer):
    seen = peer.engine.incarnation + 5
    Speaking._outgrow(peer, 1, seen)
    claimed = peer.parts.incarnations.read()
    assert claimed > seen + 1
    assert peer.events == [Outgrown(claimed)] and peer.history.incarnation == claimed


@pytest.mark.parametrize("seen", [0, SEEN_MAX + 1, 1 << 63])
def test_a_lower_or_an_impossible_claim_changes_nothing(peer, seen, caplog):
    before = peer.engine.incarnation
    with caplog.at_level(logging.ERROR, logger="peer"):
        Speaking._outgrow(peer, 1, seen)
    assert peer.history.incarnation == peer.parts.incarnations.read() == before and not peer.events
    assert ("cannot be gone above" in caplog.text) == (seen > before)
