"""Peers of an earlier commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from earlier import earlier_commit, write_packages


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The packages of an earlier commit of this wire version, in a folder."""
    if (commit := earlier_commit()) is None:
        pytest.skip("no earlier commit of this wire version: a shallow clone, or no git repository")
    return write_packages(commit, tmp_path / "earlier")
