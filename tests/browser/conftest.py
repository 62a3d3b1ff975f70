"""Fixtures: a browser for the session, and the page of a run as a user starts it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from chromium import Tab, browser, missing
from recorded import Recorded
from tools.running import running, until

from peer.bed.testbed.ports import free_ports

GONE = re.compile(
    r"/stream\b.*ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE)"
)  # the server has ended


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if reason := missing():
        pytest.skip(reason)
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(chromium: Tab) -> Iterator[Tab]:
    """Yield a browser; afterwards its console is empty, and no request has left the origin of its page."""
    chromium.driver.get("about:blank")
    chromium.driver.delete_all_cookies()
    chromium.collect()
    chromium.requests, chromium.console = [], []
    yield chromium
    chromium.collect()
    asked = {
        address for address in chromium.requests if not address.startswith(("http://127.0.0.1:", "file:", "data:"))
    }
    assert asked == set()
    assert [text for text in chromium.console if not GONE.search(text)] == []


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    run = Recorded(tmp_path / "run")
    yield run
    run.close()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[Callable[[], str]]]:
    """Return a context manager that runs `peer watch` and gives a function: the newest link that it printed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    starts = iter(range(100))

    @contextmanager
    def serve(directory: Path, port: int | None = None) -> Iterator[Callable[[], str]]:
        log = tmp_path / f"watch-{next(starts)}.log"
        command = [sys.executable, "-u", "-m", "peer", "watch", directory, "--listen", port or free_ports(1)[0]]
        with running(*command, log=log):

            def link() -> str:
                lines = [line for line in log.read_text().splitlines() if line.startswith("page: ")]
                return lines[-1].removeprefix("page: ") if lines else ""

            until(link, "peer watch prints a link", logs=[log])
            yield link

    return serve
