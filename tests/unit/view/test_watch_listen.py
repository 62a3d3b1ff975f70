"""`peer watch --listen [HOST:]PORT`."""

from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import UsageError
from peer.view.page import process
from peer.view.verbs.watch import watch


def test_the_page_listens_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(process, "watch_directory", lambda _, __, **given: found.append((given["host"], given["port"])))
    (tmp_path / "graph.json").write_text("{}")
    for listen in (None, "7480", "0.0.0.0:7480", "[::1]:80"):
        watch(tmp_path, listen=listen)
    assert found == [("127.0.0.1", 0), ("127.0.0.1", 7480), ("0.0.0.0", 7480), ("::1", 80)]
    with pytest.raises(UsageError, match=r"--listen: expected a port, .* got '0\.0\.0\.0:'"):
        watch(tmp_path, listen="0.0.0.0:")
