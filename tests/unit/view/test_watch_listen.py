"""`peer watch --listen [HOST:]PORT`, and `peer.watch(directory, listen=...)`."""

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import UsageError
from peer.cli.main import app
from peer.view.page import process


def test_the_page_listens_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(process, "watch_directory", lambda _, __, **given: found.append((given["host"], given["port"])))
    (tmp_path / "graph.json").write_text("{}")
    for listen in ([], ["--listen", "7480"], ["--listen", "0.0.0.0:7480"], ["--listen", "[::1]:80"]):
        CliRunner().invoke(app, ["watch", str(tmp_path), *listen], catch_exceptions=False)
    assert found == [("127.0.0.1", 0), ("127.0.0.1", 7480), ("0.0.0.0", 7480), ("::1", 80)]
    with pytest.raises(UsageError, match=r"--listen: expected a port, .* got '0\.0\.0\.0:'"):
        CliRunner().invoke(app, ["watch", str(tmp_path), "--listen", "0.0.0.0:"], catch_exceptions=False)


def test_the_call_takes_the_options_of_the_command(tmp_path: Path) -> None:
    """Before, ``watch(directory, port=-1)`` named an argument that the call did not have."""
    for given, words in (
        ({"listen": -1}, r"^listen=: expected a port, such as 9400, .*, got -1$"),
        ({"port": 7480}, r"^port=: expected listen= \[HOST:\]PORT, got a removed option$"),
        ({"name": 3}, r"^name=: expected a text or a list, got 3$"),
    ):
        with pytest.raises(UsageError, match=words):
            peer.watch(tmp_path, **given)
    assert inspect.signature(peer.watch).parameters["options"].annotation == "Unpack[PageOptions]"
