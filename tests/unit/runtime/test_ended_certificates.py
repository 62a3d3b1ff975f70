"""A certificate that ends during the run is named at both ends when a call fails; TLS itself tells only one of them."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from coordinator_free_bootstrap import make_graph
from coordinator_free_bootstrap.errors import NeighborUnavailable, RefusalCode, RemoteProtocolError
from peer.core import events as ev
from peer.identity.certificates import make_certificate
from peer.identity.files import KeyPair
from peer.identity.pinning import pin
from peer.runtime.world import AsyncioWorld
from peer.wire.security import MutualTls

ENDED = datetime.now(UTC) - timedelta(days=10)


def tls_of(own_ended, other_ended):
    """Return the TLS of peer 0 of two, whose certificates have ended or not."""
    found = []
    for peer_id, ended in enumerate((own_ended, other_ended)):
        key, certificate = make_certificate(
            "federation", peer_id, days=9 if ended else 90, now=ENDED if ended else None
        )
        found.append(KeyPair(key, certificate, certificate.pem()))
    return MutualTls(pin(make_graph("line", 2), [pair.certificate for pair in found]), 0, found[0])


@pytest.mark.parametrize(
    ("own_ended", "other_ended", "words"),
    [
        (True, False, "own certificate: expired on "),
        (False, True, "certificate of peer 1: expired on "),
        (False, False, ""),
    ],
)
@pytest.mark.parametrize(
    "error", [NeighborUnavailable("closed"), RemoteProtocolError(RefusalCode.IDENTITY_MISMATCH, "other")]
)
def test_hello_that_fails_names_a_certificate_that_has_ended(own_ended, other_ended, words, error, caplog):
    async def hello(_neighbor, _hello):
        raise error

    posted = []
    world = SimpleNamespace(
        host=SimpleNamespace(hello_to=lambda neighbor: None),
        post=posted.append,
        _edges=SimpleNamespace(hello=hello),
        _tls=tls_of(own_ended, other_ended),
        _certificates_logged=set(),
    )
    world.log = lambda line: AsyncioWorld.log(world, line)
    world._log_certificates = lambda neighbor: AsyncioWorld._log_certificates(world, neighbor)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            asyncio.run(AsyncioWorld._hello(world, 1))
    assert [type(event) for event in posted] == [ev.HandshakeFailed] * 3
    found = [line for line in caplog.messages if "certificate" in line]
    assert len(found) == bool(words) and all(line.startswith(f"peer 1 cannot be called: {words}") for line in found)
