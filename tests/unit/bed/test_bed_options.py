"""The options of a testbed: refused before any peer starts."""

import pytest
from typer.testing import CliRunner

import peer
from coordinator_free_bootstrap.errors import UsageError
from peer.bed.options import bed_options
from peer.cli.main import app


def test_a_testbed_refuses_what_its_declaration_refuses():
    with pytest.raises(UsageError, match="--on-start-failure: expected stop or continue, got 'wait'"):
        bed_options({"on_start_failure": "wait"})
    with pytest.raises(UsageError, match=r"^threads=: expected at least 1"):
        peer.Testbed(peer.Graph.make("line", peers=2), threads=0)


def test_a_testbed_refuses_a_precision_before_any_peer_starts(tmp_path):
    """Before, each peer refused it, with exit code 10, after it had loaded its data."""
    words = ["testbed", "--peers", "2", "--out", str(tmp_path / "out"), "--set", "amp=fp16"]
    with pytest.raises(UsageError, match=r"^--set amp: expected bf16, got 'fp16'"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "out").exists()
