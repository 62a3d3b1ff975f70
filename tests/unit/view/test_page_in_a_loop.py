"""`peer.watch` where an event loop runs, as in a notebook."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from urllib.parse import urlsplit

PROGRAM = """
import asyncio, sys, peer

async def cell():
    try:
        peer.watch(sys.argv[1])
    except KeyboardInterrupt:
        pass

asyncio.new_event_loop().run_until_complete(cell())  # as a notebook's kernel, without asyncio.run's handler of SIGINT
"""


def test_the_page_is_served_and_an_interrupt_ends_it(tmp_path):
    command = [sys.executable, "-u", "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            link = urlsplit(program.stdout.readline().removeprefix("page: ").strip())
            connection = http.client.HTTPConnection("127.0.0.1", link.port, timeout=60)
            connection.request("GET", f"/?{link.query}")
            assert connection.getresponse().status in (200, 302, 303)
            connection.close()
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=120)  # only a hang lasts so long
            assert program.returncode == 0
        finally:
            program.kill()
