"""A peer that ends by an error says which, also by one that nobody has thought of."""

import logging

import pytest

from coordinator_free_bootstrap.errors import TaskError
from peer.observe.logs import TextFormatter, last_error
from peer.runtime.process import logged


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TaskError("model: found x"), 12, "model: found x"),
        (ValueError("tuple index"), 70, "ValueError in this program: tuple index. This is a bug"),
        (RuntimeError(), 70, "RuntimeError in this program"),
        (
            ModuleNotFoundError("No", name="scipy.stats"),
            2,
            "package scipy is not installed; install it: pip install 'coordin",
        ),
        (ModuleNotFoundError("No", name="peer.nothing"), 70, "ModuleNotFoundError in this program"),
    ],
)
def test_the_last_error_of_the_log_is_the_reason(error, code, said, tmp_path):
    log, file = logging.getLogger("peer"), logging.FileHandler(tmp_path / "peer.log")
    file.setFormatter(TextFormatter(3))
    log.addHandler(file)
    try:
        assert logged(error, trace=False) == code
    finally:
        log.removeHandler(file)
        file.close()
    assert said in last_error(tmp_path / "peer.log")
    assert ("ValueError: tuple index" in (tmp_path / "peer.log").read_text()) == isinstance(error, ValueError)
