"""Goal: a link to a DNS name follows the name to another IP address, without a restart.

Method: a process in its own mount namespace has its own /etc/hosts. A peer is served at 127.0.0.2, then at 127.0.0.3 on the same
port, and the name changes from the first to the second address. Needs root and unshare; the machine's own file does not change.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wire_support import LIMITS, TIMEOUTS, Recorder, hello_of

from coordinator_free_bootstrap.errors import NeighborUnavailable
from peer.wire.client import NeighborLink
from peer.wire.server import PeerServer

pytestmark = pytest.mark.process

HOSTS = Path("/etc/hosts")
NAME = "moving-peer.test"
BEFORE, AFTER = "127.0.0.2", "127.0.0.3"
LIMIT_S = 60.0  # for both handshakes; a link that keeps the first address fails


def may_change_hosts() -> bool:
    """Return whether this process may give a child its own /etc/hosts."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "mount", "--bind", HOSTS, HOSTS], check=False, capture_output=True).returncode
        == 0
    )


@pytest.mark.skipif(not may_change_hosts(), reason="needs root, unshare and permission to bind a file over /etc/hosts")
@pytest.mark.slow
def test_link_follows_a_name_to_its_new_address(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{BEFORE} {NAME}\n")
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, hosts, sys.executable, __file__]
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parent, here.parents[1])))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [BEFORE, "gone", AFTER]
    assert NAME not in HOSTS.read_text()


async def move() -> None:
    """Print the address at which each handshake reached the peer; between them, no address answers."""
    first = PeerServer(Recorder(), f"{BEFORE}:0", limits=LIMITS, timeouts=TIMEOUTS)
    port = await first.start()
    link = NeighborLink(1, f"{NAME}:{port}", limits=LIMITS, timeouts=TIMEOUTS)
    await link.hello(hello_of(2))
    print(BEFORE)
    await first.stop(0)
    try:
        await link.hello(hello_of(2))
    except NeighborUnavailable:
        print("gone")
    HOSTS.write_text(HOSTS.read_text().replace(BEFORE, AFTER))
    second = PeerServer(Recorder(), f"{AFTER}:{port}", limits=LIMITS, timeouts=TIMEOUTS)
    await second.start()
    async with asyncio.timeout(LIMIT_S):
        while not await _answers(link):
            pass
    print(AFTER)
    await link.close()
    await second.stop(0)


async def _answers(link: NeighborLink) -> bool:
    try:
        await link.hello(hello_of(2))
    except NeighborUnavailable:
        await asyncio.sleep(0.1)
        return False
    return True


if __name__ == "__main__":
    asyncio.run(move())
