"""Certificates that end soon: named by `peer graph check` and at the start of a peer, unless a newer one is pinned too."""

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from coordinator_free_bootstrap import make_graph, save_graph
from peer.cli.main import app
from peer.identity.certificates import make_certificate
from peer.identity.expiry import ending_soon, ends_in
from peer.identity.pinning import pin

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def pinned(*days, graph=None, rotate=False):
    """Return a ring in which the certificate of peer i ends after ``days[i]``."""
    made = [make_certificate("federation", i, days=each, now=NOW)[1] for i, each in enumerate(days) if each]
    return pin(graph or make_graph("ring", 3), made, rotate=rotate)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (29.5, "the certificate of peer 1 ends on 2026-12-24 12:00 UTC, in 30 days"),
        (1, "ends on 2026-11-26 00:00 UTC, in 1 day;"),
        (-0.5, "the certificate of peer 1 ended on 2026-11-24 12:00 UTC"),
    ],
)
def test_a_certificate_that_ends_within_thirty_days_is_named(days, words):
    """Before, nothing told of it until the day on which its neighbors refused the peer."""
    (sentence,) = ending_soon(ends_in(pinned(400, days, 31)), NOW)
    assert sentence.startswith(words) or words in sentence
    assert "peer keygen --id 1" in sentence and "peer graph pin --rotate" in sentence


def test_while_a_key_is_rotated_the_newer_certificate_counts():
    old = pinned(400, 10, 400)
    assert ending_soon(ends_in(pinned(None, 400, graph=old, rotate=True)), NOW) == []


def test_the_first_to_end_comes_first_and_observers_are_named():
    graph = pin(pinned(20, 10, 400), [make_certificate("federation", "me", days=5, now=NOW)[1]])
    found = [sentence.split(" e")[0] for sentence in ending_soon(ends_in(graph), NOW)]
    assert found == [f"the certificate of {who}" for who in ("observer me", "peer 1", "peer 0")]
    assert ending_soon(ends_in(make_graph("ring", 3))) == []


def test_graph_check_warns(tmp_path):
    soon = datetime.now(UTC) + timedelta(days=3)
    made = make_certificate("federation", 2, days=3)[1]
    save_graph(pin(make_graph("ring", 3), [made]), tmp_path / "g.json")
    done = CliRunner().invoke(app, ["graph", "check", str(tmp_path / "g.json")])
    assert done.exit_code == 0
    assert f"warning: {tmp_path}/g.json: the certificate of peer 2 ends on {soon:%Y-%m-%d}" in done.stderr
