"""Goal: the notebooks of examples/ run in a kernel from the first cell to the last, and are stored without outputs.

Method: nbclient with few rounds. The kernel is a threaded process, as on a user's machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]
PLACE = Path(__file__).parents[2] / "examples"
NAMES = ["compare_algorithms.ipynb", "write_an_algorithm.ipynb", "your_own_data.ipynb"]


def test_there_are_three_notebooks_without_outputs() -> None:
    import nbformat

    assert sorted(path.name for path in PLACE.glob("*.ipynb")) == NAMES
    for name in NAMES:
        notebook = nbformat.read(PLACE / name, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code and all(cell.outputs == [] and cell.execution_count is None for cell in code), name


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=800).execute()
code = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(all(cell.execution_count for cell in code), any(cell.outputs for cell in code))
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    environment = os.environ | {"EXAMPLE_ROUNDS": "2", "PYTHONPATH": str(PLACE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EXECUTE, str(PLACE / name)]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "True True\n"), found.stderr[-3000:]
