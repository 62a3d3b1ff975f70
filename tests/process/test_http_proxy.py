"""Goal: neighbors are dialed through a real HTTP proxy, with and without a password, and the password is in no log.

Method: tinyproxy and squid of Debian on loopback, each with its own configuration, in the foreground. The log of CONNECT
requests proves that the connections took this way.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.http_proxies import ENCODED, PASSWORD, USER, Proxies
from tools.running import ends, on_loopback, running_peer
from wire_support import LIMITS, TIMEOUTS, Recorder, hello_of, serving

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.ops.deploy.keys import create_keys
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.wire.client import NeighborLink
from peer.wire.proxy import HttpProxy

pytestmark = pytest.mark.process
both = pytest.mark.parametrize("kind", Proxies.kinds)


def hello_through(settings: HttpProxy) -> tuple[str, str]:
    """Greet a served peer; return its address and the error."""

    async def test() -> tuple[str, str]:
        async with serving(Recorder()) as port:
            address = f"127.0.0.1:{port}"
            link = NeighborLink(1, address, limits=LIMITS, timeouts=TIMEOUTS, proxy=settings)
            try:
                await link.hello(hello_of(2))
            except NeighborUnavailable as error:
                return address, str(error)
            finally:
                await link.close()
            return address, ""

    return asyncio.run(test())


@both
def test_a_link_goes_through_the_proxy_but_for_its_exceptions(proxies: Proxies, kind: str) -> None:
    with proxies.running(kind) as proxy:
        address, error = hello_through(proxy.settings())
        assert error == ""
        assert proxy.asked_for(address) == 1
        address, error = hello_through(proxy.settings(exceptions="10.0.0.0/8, 127.0.0.0/8"))
        assert error == "" and proxy.connects(address) == 0


@both
def test_the_password_is_needed_and_appears_in_no_error(proxies: Proxies, kind: str) -> None:
    with proxies.running(kind, password=True) as proxy:
        assert hello_through(proxy.settings())[1] == ""
        for user in ("", f"{USER}:wr0ng@"):
            error = hello_through(proxy.settings(user))[1]
            assert "the proxy demands another user or password" in error
            assert f"through the proxy {proxy.address}" in error
            assert "wr0ng" not in error and USER not in error


@both
def test_a_proxy_that_may_not_connect_is_named(proxies: Proxies, kind: str) -> None:
    with proxies.running(kind, ports=[1]) as proxy:
        error = hello_through(proxy.settings())[1]
        assert "the proxy does not connect to it" in error and proxy.address in error


@pytest.mark.slow
@both
def test_peers_with_keys_train_through_the_proxy_and_log_no_password(
    proxies: Proxies, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every handshake is TLS with pinned keys, end to end: a proxy that answered in a neighbor's place would be refused."""
    manifest = parse_manifest({"rounds": 2, "start": {"wait_for": "all"}, "timeouts": {"suspicion_s": 60.0}}, "test")
    graph = create_keys(on_loopback(make_graph("complete", 2, manifest=manifest)), tmp_path / "keys")
    save_graph(graph, tmp_path / "graph.json")
    with proxies.running(kind, password=True) as proxy, ExitStack() as stack:
        monkeypatch.setenv("https_proxy", proxy.url())
        monkeypatch.setenv("no_proxy", "10.0.0.0/8")
        options = ("--proxy", "--log", "debug")
        peers = [
            stack.enter_context(running_peer(i, tmp_path, "--certs", tmp_path / f"keys/peer-{i}", *options))
            for i in graph.ids
        ]
        assert [peer.wait(200) for peer in peers] == [0, 0], ends(tmp_path.glob("*.log"))
        for node in graph.nodes:
            assert proxy.asked_for(node.address) >= 1
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for peer_id in graph.ids:
        rounds = [line for line in read_history(StateDir.of_peer(tmp_path, peer_id).history) if line["kind"] == "round"]
        assert [len(line["folded"]) for line in rounds] == [1, 1]
        assert f"through the HTTP proxy {proxy.address}" in (tmp_path / f"{peer_id}.log").read_text()
    for secret in (PASSWORD, ENCODED, USER):
        assert not any(secret.encode() in content for content in written), secret
