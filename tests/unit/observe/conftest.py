from pathlib import Path

import pytest
from fake_run import write_graph, write_peer


@pytest.fixture
def run_directory(tmp_path) -> Path:
    """Four peers in a ring, all completed; true cluster = peer id modulo 2, assigned the other way round."""
    write_graph(tmp_path)
    for peer_id in range(4):
        write_peer(tmp_path, peer_id)
    return tmp_path
