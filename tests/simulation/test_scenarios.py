"""Scripted runs leave exactly the traces in scenarios/*.txt (see `scenario` for the commands and how to rewrite them)."""

import pytest

from tests.simulation.scenario import FOLDER, play

FILES = sorted(FOLDER.glob("*.txt"))


def test_there_are_scenarios():
    assert len(FILES) >= 6


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_scenario_leaves_its_trace(path):
    assert play(path) == path.read_text(), "python -m tests.simulation.scenario --rewrite"
