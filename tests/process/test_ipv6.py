"""IPv6 literals work where IPv4 addresses do: server, link, TLS, testbed, fault proxies, doctor."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import invariants
from tools.beds import Bed, same_models
from tools.namespaces import why_not
from wire_support import LIMITS, TIMEOUTS, Recorder, hello_of

from peer.ops.doctor.doctor import check_network
from peer.wire.client import NeighborLink
from peer.wire.server import PeerServer

Make = Callable[..., Bed]


def has_ipv6_loopback() -> bool:
    """Return whether this machine has the address ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no address ::1"),
]


@pytest.mark.parametrize(
    ("listen", "host"), [("[::1]:0", "[::1]"), ("[::]:0", "[::1]"), ("[::]:0", "127.0.0.1"), ("[::1]:0", "localhost")]
)
def test_a_server_is_reached_at_its_ipv6_address(listen: str, host: str) -> None:
    async def test() -> None:
        server = PeerServer(Recorder(), listen, limits=LIMITS, timeouts=TIMEOUTS)
        link = NeighborLink(1, f"{host}:{await server.start()}", limits=LIMITS, timeouts=TIMEOUTS)
        assert (await link.hello(hello_of(2))).refusal is None
        await link.close()
        await server.stop(0)

    asyncio.run(test())


def test_a_link_local_address_is_reached_at_every_interface() -> None:
    """Before, eth0 was reached; bat0, whose first letters are a number in a URI, and every number were not."""
    if reason := why_not("unshare"):
        pytest.skip(reason)
    names = ["eth0", "bat0", "deadbeef0", "20", "A0.1+x@y"]
    program = Path(__file__).with_name("link_local.py")
    path = os.pathsep.join([str(program.parent), str(program.parents[1])])
    done = subprocess.run(
        ["unshare", "--net", sys.executable, program, *names],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[::2] == names and len(done.stdout.split()) == 2 * len(names)


def test_testbeds_on_ipv4_and_ipv6_end_with_the_same_models(bed: Make) -> None:
    """The second one has TLS and fault proxies, which reach the peers at their IPv6 addresses."""
    plain = bed("plain", rounds=3)
    secure = bed("secure", rounds=3, insecure=False, proxy=True, host="[::1]")
    plain.finish()
    result = secure.finish()
    assert all(counters["bytes_passed"] > 0 for counters in result["counters"].values())
    assert all(node.address.startswith("[::1]:") for node in secure.graph.nodes)
    invariants.completed(secure)
    same_models(plain.models(), secure.models())


def test_doctor_tells_a_port_in_use_and_a_neighbor_on_ipv6(bed: Make) -> None:
    run = bed(host="[::1]", rounds=100_000)
    run.until_round(1)
    found = {check.name: check for check in check_network(run.directory / "graph.json", 0)}
    assert found["own port"].level == "fail" and "is in use by" in found["own port"].found
    assert found["peer 1"].level == "ok" and "[::1]:" in found["peer 1"].found
