"""Goal: `peer testbed --page` serves the page from a process of its own, prints its link, and ends it with the testbed."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tools.page_client import asked, film, opened
from tools.running import PATIENCE_S, running, until

pytestmark = pytest.mark.process
ROUNDS = 100_000  # more than any machine completes here: the test ends the run


def owner_of(port: int, parent: int) -> int:
    """Return the process below `parent` that listens on a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port)
    children = [
        int(text) for path in Path(f"/proc/{parent}/task").glob("*/children") for text in path.read_text().split()
    ]
    for child in [parent, *children]:
        for link in Path(f"/proc/{child}/fd").iterdir():
            with suppress(FileNotFoundError):  # it is closed meanwhile
                if link.readlink().name == f"socket:[{inode}]":
                    return child
    raise AssertionError(f"no process of the testbed listens on port {port}")


@pytest.mark.slow
def test_the_page_of_a_testbed_is_a_process_of_its_own_and_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["testbed", "--peers", "3", "--kind", "ring", "--page", "--out", tmp_path / "out", "--insecure"]
    settings = ["--set", "run.task=digits", "--set", f"run.rounds={ROUNDS}"]
    with running(sys.executable, "-u", "-m", "peer", *command, *settings, log=log) as testbed:
        link = until(lambda: re.findall(r"page: (\S+)", log.read_text()), "the testbed prints a link", logs=[log])[0]
        parts = urlsplit(link)
        cookie = opened(parts.netloc, parts.query)
        until(lambda: film(parts.netloc, cookie)["frames"], "the page shows a completed round", logs=[log])
        assert film(parts.netloc, cookie)["run"]["rounds_total"] == ROUNDS
        assert owner_of(int(parts.port or 0), testbed.pid) != testbed.pid
        testbed.send_signal(signal.SIGINT)
        assert testbed.wait(PATIENCE_S) == 130
    with pytest.raises(ConnectionRefusedError):
        asked(parts.netloc, "/")
