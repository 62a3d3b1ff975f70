"""Logs: rate-limited, one line per event, escaped text of neighbors, no private keys."""

import io
import json
import logging

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.observe import logs
from peer.observe.logs import LINES_PER_MINUTE_MAX, RateLimit, clean, setup_logging


@pytest.fixture
def restored_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for handler in handlers:  # setup_logging closes what it replaces; these are pytest's own
        root.removeHandler(handler)
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    for name in ("peer", "coordinator_free_bootstrap"):
        logging.getLogger(name).setLevel(logging.NOTSET)


class Captured:
    """The text written to stderr since the test began."""

    def __init__(self, capsys):
        self.capsys, self.text = capsys, ""

    def getvalue(self) -> str:
        self.text += self.capsys.readouterr().err
        return self.text


@pytest.fixture
def stderr(capsys, restored_logging):
    return Captured(capsys)


def limited(clock):
    logger = logging.Logger("limited")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    limit = RateLimit(clock)
    handler.addFilter(limit)
    logger.addHandler(handler)
    return logger, stream, limit


def test_text_lines_have_the_peer_id(stderr):
    setup_logging(3)
    logging.getLogger("peer.runtime").info("round %d done", 4)
    logging.getLogger("peer.runtime").debug("not shown")
    logging.getLogger("grpc").info("not shown either")
    assert stderr.getvalue().count("\n") == 1 and stderr.getvalue().endswith(" peer 3 INFO    round 4 done\n")


def test_json_lines_and_file(stderr, tmp_path):
    setup_logging(3, level="debug", style="json", file=tmp_path / "peer.log")
    logging.getLogger("peer").warning("refused", extra={"neighbor": 5, "message_kind": "push"})
    row = json.loads(stderr.getvalue())
    assert (row["level"], row["peer_id"], row["neighbor"], row["message"]) == ("warning", 3, 5, "refused")
    assert (tmp_path / "peer.log").read_text() == stderr.getvalue()


def test_a_second_setup_replaces_the_first(stderr):
    setup_logging(3)
    setup_logging(4)
    logging.getLogger("peer").error("once")
    assert stderr.getvalue().count("once") == 1 and "peer 4" in stderr.getvalue()


def test_lines_above_the_rate_limit_are_suppressed_and_counted():
    now = [0.0]
    logger, stream, limit = limited(lambda: now[0])
    for _ in range(LINES_PER_MINUTE_MAX):
        logger.warning("bad push", extra={"neighbor": 1, "message_kind": "push"})
    assert stream.getvalue().count("\n") == LINES_PER_MINUTE_MAX
    for _ in range(1000):
        logger.warning("bad push", extra={"neighbor": 1, "message_kind": "push"})
    assert stream.getvalue().count("\n") == LINES_PER_MINUTE_MAX
    logger.warning("other kind", extra={"neighbor": 1, "message_kind": "hello"})
    logger.warning("other neighbor", extra={"neighbor": 2, "message_kind": "push"})
    logger.warning("our own")
    assert stream.getvalue().count("\n") == LINES_PER_MINUTE_MAX + 3
    now[0] = 60.0
    logger.warning("bad push %d", 7, extra={"neighbor": 1, "message_kind": "push"})
    assert stream.getvalue().endswith("bad push 7 (and 1000 more of this kind suppressed)\n")
    assert limit.pending() == []


def test_pending_counts_suppressed_lines():
    logger, _, limit = limited(lambda: 0.0)
    for _ in range(LINES_PER_MINUTE_MAX + 5):
        logger.warning("x", extra={"neighbor": 1, "message_kind": "push"})
    assert limit.pending() == ["neighbor 1: 5 more lines of kind push suppressed"] and limit.pending() == []


def test_unknown_neighbors_share_one_limit(monkeypatch):
    monkeypatch.setattr(logs, "KEYS_MAX", 10)
    logger, stream, _ = limited(lambda: 0.0)
    for neighbor in range(1000):
        logger.warning("x", extra={"neighbor": neighbor, "message_kind": "push"})
    assert stream.getvalue().count("\n") == 10 + LINES_PER_MINUTE_MAX


def test_two_handlers_count_a_line_once(stderr, tmp_path):
    setup_logging(3, file=tmp_path / "peer.log")
    for _ in range(LINES_PER_MINUTE_MAX + 1):
        logging.getLogger("peer").warning("x", extra={"neighbor": 1, "message_kind": "push"})
    assert (tmp_path / "peer.log").read_text().count("\n") == LINES_PER_MINUTE_MAX == stderr.getvalue().count("\n")


def test_the_file_is_bounded(stderr, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 10_000)
    setup_logging(3, file=tmp_path / "peer.log", stderr=False)
    for _ in range(1000):
        logging.getLogger("peer").warning("y" * 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["peer.log", "peer.log.1"]
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 20_000


def test_control_characters_are_escaped_and_private_keys_removed():
    assert clean("a\nb\x1b[31m\u2028") == "a\\nb\\x1b[31m\\u2028"
    key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"
    assert clean(f"loaded {key}!") == "loaded [private key]!"
    assert clean("-----BEGIN PRIVATE KEY-----\nMHcC") == "[private key]"
    assert clean("z" * 5000).endswith("zzz... (5000 characters)")


@pytest.mark.parametrize("style", ["text", "json"])
def test_text_of_a_neighbor_is_escaped_and_bounded_in_every_log_line(stderr, style):
    """Before, U+202E reached the log, a line had 4,096 characters, and extra fields were written as they came."""
    setup_logging(3, style=style)
    about = {"neighbor": "5\n\u202e", "message_kind": "x" * 4058}
    logging.getLogger("peer").warning("refused by peer %s: %s", 5, "\u202eevil\x9b\u2066" + "x" * 4058, extra=about)
    line = stderr.getvalue()
    assert (
        line.count("\n") == 1 and line.rstrip("\n").isprintable() and len(line) < 2 * logs.NEIGHBOR_LINE_CHARACTERS_MAX
    )
    assert "u202eevil" in line and "u2066" in line and " characters)" in line
    assert "\\u202e" in line if style == "text" else json.loads(line)["neighbor"] == "5\\n\\u202e"


def test_a_traceback_is_written_line_by_line(stderr):
    setup_logging(3)
    try:
        raise RuntimeError("boom\nfake line")
    except RuntimeError:
        logging.getLogger("peer").exception("failed")
    assert "\n    RuntimeError: boom\n    fake line\n" in stderr.getvalue()


def test_bad_level_and_bad_file_are_sentences(restored_logging, tmp_path):
    with pytest.raises(ValueError, match="expected one of debug"):
        setup_logging(3, level="loud")
    with pytest.raises(StorageError, match="cannot open"):
        setup_logging(3, file=tmp_path / "none" / "peer.log")
