"""Limits in bytes per second: their text, what neighbors expect, frame sizes, and the timeouts that they do not fit."""

from __future__ import annotations

import pytest

from coordinator_free_bootstrap import Graph, Manifest, Node, Relay, dump_graph, parse_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, GraphError
from coordinator_free_bootstrap.rates import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    RATE_EXPECTED,
    check_limits,
    expected_rate,
    frame_bytes,
    parse_rate,
    problems,
    round_s,
)


def star(manifest: Manifest | None = None, **limits: int) -> Graph:
    """Return peer 0, with limits, and four neighbors without."""
    nodes = (Node(0, "a:1", **limits), *(Node(i, f"a:{i + 1}") for i in range(1, 5)))
    return Graph(nodes, tuple((0, i) for i in range(1, 5)), manifest or Manifest())


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2MB", 2_000_000),
        ("250kB", 250_000),
        ("1.5 MB", 1_500_000),
        ("20000", 20_000),
        ("64KiB", 65_536),
        ("20000B", 20_000),
    ],
)
def test_rates_are_read(text: str, rate: int) -> None:
    assert parse_rate(text, "--limit") == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-2MB", "2MB/s", "1kB", "2Mbit", "1e6", "9" * 400 + "x"])
def test_another_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--limit: expected bytes per second such as 2MB.*, got .*"):
        parse_rate(text, "--limit")


def test_declared_limits_are_kept_in_the_graph_file_and_checked() -> None:
    graph = star(upload_limit=250_000, download_limit=500_000)
    assert parse_graph(dump_graph(graph)) == graph
    assert graph.digest == star().digest  # a peer may change them alone
    with pytest.raises(GraphError, match="node 0: upload_limit: expected bytes per second, 2000 or more, got 1999"):
        star(upload_limit=1_999)


def relayed(bytes_per_second: int, connections: int = 8) -> Graph:
    """Return a triangle in which peers 1 and 2 only dial and peer 0 relays between them."""
    hub = Node(0, "a:1", relay=Relay(bytes_per_second, connections))
    dialers = (Node(1, "", dials_only=True), Node(2, "", dials_only=True))
    return Graph((hub, *dialers), ((0, 1), (0, 2), (1, 2)), via=((1, 2, 0),))


def test_a_slow_relay_is_no_slow_neighbor() -> None:
    """Both directions of the relayed edge share the relay's limit; its other edges are not subject to it."""
    graph = relayed(80_000)
    assert expected_rate(graph, 1, 2) == expected_rate(graph, 2, 1) == 80_000 / (2 * 2)
    assert expected_rate(graph, 0, 1) == expected_rate(relayed(50_000_000), 1, 2) == RATE_EXPECTED
    assert frame_bytes(graph, 1, 2) == int(80_000 * 0.1) & ~3 < frame_bytes(graph, 0, 1)


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        (relayed(5_000_000), []),
        (
            relayed(50_000),
            ["one model of 100000000 bytes in each direction over 1 relayed edge takes 4000 s"],
        ),
        (
            relayed(1_000),
            [
                "takes 200000 s at relay",
                "a heartbeat may wait 32.8 s behind models at relay.bytes_per_second; run.timeouts",
            ],
        ),
        (
            relayed(5_000_000, connections=1),
            ["relay.connections: expected 2 or more, two for each of 1 relayed edge, got 1"],
        ),
    ],
)
def test_a_relay_whose_limits_do_not_fit_its_edges_is_named(graph: Graph, found: list[str]) -> None:
    said = list(problems(graph, 100_000_000))
    assert len(said) == len(found) and all(part in text for part, text in zip(found, said, strict=True)), said


def test_neighbors_expect_half_of_a_declared_share() -> None:
    assert expected_rate(star(), 0, 1) == RATE_EXPECTED
    graph = star(upload_limit=80_000, download_limit=40_000)
    assert (expected_rate(graph, 0, 1), expected_rate(graph, 1, 0)) == (10_000, 5_000)


def test_frames_are_small_where_either_end_is_slow() -> None:
    graph = star(upload_limit=100_000, download_limit=2_000_000)
    assert frame_bytes(star(), 0, 1) == FRAME_BYTES_MAX
    assert frame_bytes(graph, 0, 1) == 10_000  # a tenth of a second
    assert frame_bytes(graph, 1, 0) == 200_000
    assert frame_bytes(star(upload_limit=10_000), 0, 1) == FRAME_BYTES_MIN
    assert frame_bytes(star(), 0, 1, upload=1_000_004) == 100_000
    assert frame_bytes(star(), 0, 1, upload=99_999) % 4 == 0


def test_own_limits_that_neighbors_would_cut_off_are_refused() -> None:
    least = 2 * 4 * RATE_EXPECTED
    check_limits(star(), 0, least, 4 << 20)
    with pytest.raises(
        ConfigError, match=rf'--limit: .* at least {least}, or less with "upload_limit": 50000 at node 0'
    ):
        check_limits(star(), 0, 50_000, None)
    with pytest.raises(ConfigError, match=r"--limit: expected at least 4194304.*, got download_limit 2000000"):
        check_limits(star(), 0, None, 2_000_000)
    check_limits(star(upload_limit=50_000), 0, 50_000, None)
    with pytest.raises(ConfigError, match="at least 50000"):
        check_limits(star(upload_limit=50_000), 0, 20_000, None)


def test_a_model_that_cannot_cross_within_the_round_is_found() -> None:
    graph = star(upload_limit=100_000, download_limit=1_000_000)
    assert round_s(graph, 0, 15_000_000) == 600.0
    assert round_s(graph, 1, 15_000_000) == 0.0
    assert list(problems(graph, 15_000_000)) == []
    (problem,) = problems(graph, 15_100_000)
    assert problem.startswith("peer 0: one model of 15100000 bytes to and from 4 neighbors takes 604 s at its limits")


def test_with_one_edge_a_round_has_one_model_at_the_limits() -> None:
    graph = star(parse_manifest({"edges": "one"}, "test"), upload_limit=100_000)
    assert round_s(graph, 0, 15_000_000) == 150.0
    (problem,) = problems(graph, 61_000_000)
    assert problem.startswith("peer 0: one model of 61000000 bytes to and from 1 neighbor takes 610 s at its limits")


def test_a_suspicion_time_shorter_than_a_wait_behind_models_is_found() -> None:
    run = {"timeouts": {"suspicion_s": 2.0}}
    (problem,) = problems(star(parse_manifest(run, "test"), upload_limit=10_000), 1000)
    assert "a heartbeat may wait 1.6 s" in problem and "Raise it to 3 or more" in problem
    assert list(problems(star(upload_limit=10_000), 1000)) == []
