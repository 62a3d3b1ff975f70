"""A manifest with a user's task file, in a working directory that has the file."""

import pytest

from coordinator_free_bootstrap import parse_manifest

TASK = """\
import numpy as np
from torch import nn

from peer.tasks import Shard, Task


class Mine(Task):
    classes = 2

    def make_model(self):
        return nn.Linear(3, 2)

    def load_shard(self, peer_id):
        x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])
        return Shard(train_x=x, train_y=y, test_x=x, test_y=y)


task = Mine()
"""


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """Return a manifest whose task is ``code/mine.py:task`` below the working directory."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return parse_manifest({"task": "code/mine.py:task"}, "test")


@pytest.fixture
def own_algorithm(own_task, tmp_path):
    """Return the manifest of `own_task` with the algorithm ``code/half.py:Half``."""
    (tmp_path / "code" / "half.py").write_text("import peer\n\n\nclass Half(peer.Algorithm):\n    pass\n")
    return own_task.model_copy(update={"algorithm": "code/half.py:Half"})
