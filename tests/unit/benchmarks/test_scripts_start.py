"""Each benchmark script starts as its first lines say: what it imports is there, and ``--help`` shows how to call it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())

# All in one process, so that PyTorch and this package are imported once; --help ends each by SystemExit.
PROGRAM = """
import contextlib, io, json, os, runpy, sys, traceback

ended = {}
for path in sys.argv[1:]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.path[0], sys.argv = os.path.dirname(path), [path, "--help"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = 1
            traceback.print_exc()
    ended[path] = code, out.getvalue(), err.getvalue()
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended():
    """Exit code and both outputs of each script, in an environment without this session's paths."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, *(f"benchmarks/{script.name}" for script in SCRIPTS)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_starts_and_says_how_to_call_it(ended, script):
    code, out, err = ended[f"benchmarks/{script.name}"]
    assert code == 0, err
    assert "usage: " in out.lower()
