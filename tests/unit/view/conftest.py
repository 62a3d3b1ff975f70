from pathlib import Path

import pytest
from tools.fake_run import write_graph, write_peer


@pytest.fixture
def run_directory(tmp_path) -> Path:
    """Return a run of four peers in a ring, all completed; assigned cluster = 1 - true cluster = 1 - peer id % 2."""
    write_graph(tmp_path)
    for peer_id in range(4):
        write_peer(tmp_path, peer_id)
    return tmp_path
