"""Goal: neighbors are dialed through a real HTTP proxy, with and without a password, and the password is in no log.

Method: tinyproxy of Debian (installed, or unpacked from its package) on loopback, with its own configuration, in the foreground.
Its log of CONNECT requests proves that the connections took this way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.packages import unpacked
from tools.running import ends, on_loopback, running, running_peer, until
from wire_support import LIMITS, TIMEOUTS, Recorder, hello_of, serving

from coordinator_free_bootstrap import make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.deploy.keys import create_keys
from peer.store.history import read_history
from peer.store.state_dir import StateDir
from peer.testbed.testbed import free_ports
from peer.wire.client import NeighborLink
from peer.wire.proxy import HttpProxy

pytestmark = pytest.mark.process

USER, PASSWORD = "ward-7", "p.w0rd-x"
ENCODED = "%70.w0rd-x"  # as an @ would have to be written


@dataclass
class Proxy:
    port: int
    log: Path

    def connects(self, port: int) -> int:
        """Return how many connections to a port were asked for."""
        return self.log.read_text(errors="replace").count(f"CONNECT 127.0.0.1:{port} ") if self.log.exists() else 0

    def settings(self, user: str = "", exceptions: str = "") -> HttpProxy:
        return HttpProxy.of({"https_proxy": f"http://{user}127.0.0.1:{self.port}", "no_proxy": exceptions})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tinyproxy: the installed one, or that of Debian's package, unpacked."""
    if installed := shutil.which("tinyproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin"):
        return Path(installed)
    folder = unpacked("tinyproxy", "tinyproxy-bin", tmp_path_factory.mktemp("tinyproxy"))
    return next(folder.glob("usr/*bin/tinyproxy"))


@contextmanager
def proxying(program: Path, home: Path, *lines: str) -> Iterator[Proxy]:
    proxy = Proxy(free_ports(1)[0], home / "proxy.log")
    settings = [f"Port {proxy.port}", "Listen 127.0.0.1", "Allow 127.0.0.1", "LogLevel Connect", "Timeout 600", *lines]
    (home / "proxy.conf").write_text("\n".join(settings) + "\n")
    with running(program, "-d", "-c", home / "proxy.conf", log=proxy.log):
        until(lambda: listens(proxy.port), "the proxy listens", logs=[proxy.log])
        yield proxy


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def hello_through(settings: HttpProxy) -> tuple[int, str]:
    """Greet a served peer; return its port and the error."""

    async def test() -> tuple[int, str]:
        async with serving(Recorder()) as port:
            link = NeighborLink(1, f"127.0.0.1:{port}", limits=LIMITS, timeouts=TIMEOUTS, proxy=settings)
            try:
                await link.hello(hello_of(2))
            except NeighborUnavailable as error:
                return port, str(error)
            finally:
                await link.close()
            return port, ""

    return asyncio.run(test())


def test_a_link_goes_through_the_proxy_but_for_its_exceptions(program: Path, tmp_path: Path) -> None:
    with proxying(program, tmp_path) as proxy:
        port, error = hello_through(proxy.settings())
        assert error == "" and proxy.connects(port) == 1
        port, error = hello_through(proxy.settings(exceptions="10.0.0.0/8, 127.0.0.0/8"))
        assert error == "" and proxy.connects(port) == 0


def test_the_password_is_needed_and_appears_in_no_error(program: Path, tmp_path: Path) -> None:
    with proxying(program, tmp_path, f"BasicAuth {USER} {PASSWORD}") as proxy:
        assert hello_through(proxy.settings(f"{USER}:{ENCODED}@"))[1] == ""
        for user in ("", f"{USER}:wr0ng@"):
            error = hello_through(proxy.settings(user))[1]
            assert "the proxy demands another user or password" in error
            assert f"through the proxy 127.0.0.1:{proxy.port}" in error
            assert "wr0ng" not in error and USER not in error


def test_a_proxy_that_may_not_connect_is_named(program: Path, tmp_path: Path) -> None:
    with proxying(program, tmp_path, "ConnectPort 1") as proxy:
        error = hello_through(proxy.settings())[1]
        assert "the proxy does not connect to it" in error and f"127.0.0.1:{proxy.port}" in error


def test_peers_with_keys_train_through_the_proxy_and_log_no_password(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every handshake is TLS with pinned keys, end to end: a proxy that answered in a neighbor's place would be refused."""
    manifest = parse_manifest({"rounds": 2, "start": {"rule": "all"}, "timeouts": {"suspicion_s": 60.0}}, "test")
    graph = create_keys(on_loopback(make_graph("complete", 2, manifest=manifest)), tmp_path / "keys")
    save_graph(graph, tmp_path / "graph.json")
    with proxying(program, tmp_path, f"BasicAuth {USER} {PASSWORD}") as proxy, ExitStack() as stack:
        monkeypatch.setenv("https_proxy", f"http://{USER}:{ENCODED}@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "10.0.0.0/8")
        options = ("--proxy", "--log-level", "debug")
        peers = [
            stack.enter_context(running_peer(i, tmp_path, "--certs", tmp_path / f"keys/peer-{i}", *options))
            for i in graph.ids
        ]
        assert [peer.wait(200) for peer in peers] == [0, 0], ends(tmp_path.glob("*.log"))
        for node in graph.nodes:
            assert proxy.connects(int(node.address.rpartition(":")[2])) >= 1
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "proxy.conf"]
    for peer_id in graph.ids:
        rounds = [line for line in read_history(StateDir.of_peer(tmp_path, peer_id).history) if line["kind"] == "round"]
        assert [len(line["folded"]) for line in rounds] == [1, 1]
        assert f"through the HTTP proxy 127.0.0.1:{proxy.port}" in (tmp_path / f"{peer_id}.log").read_text()
    for secret in (PASSWORD, ENCODED, USER):
        assert not any(secret.encode() in content for content in written), secret
