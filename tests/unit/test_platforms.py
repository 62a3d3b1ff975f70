"""Nothing that only Linux has is needed to import the package, to simulate, and to read what a run left."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]

# What macOS or Windows lacks is removed after the libraries are loaded, and before this project is.
WITHOUT_LINUX = """
import ctypes, importlib, multiprocessing, os, pkgutil, signal, sys
import torch, grpc, grpc.aio, matplotlib.figure, networkx, pandas, scipy, sklearn, typer, rich.progress, cryptography
import docker, prometheus_client, safetensors.numpy, PIL.Image, asyncio, subprocess, tempfile, shutil, socket

for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGHUP"):
    delattr(signal, name)
for name in ("fork", "setpgid", "pread", "pwrite", "O_CLOEXEC", "O_DIRECTORY", "sched_getaffinity", "sysconf", "getuid"):
    delattr(os, name)
for name in ("fcntl", "resource", "pwd", "termios"):
    sys.modules[name] = None  # an import of it raises ImportError
def no_prctl(name, *rest, **more):
    raise OSError("no libc here")
ctypes.CDLL = no_prctl

import coordinator_free_bootstrap, peer
names = []
for package in (coordinator_free_bootstrap, peer):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name != "peer.__main__":
            importlib.import_module(module.name)
            names.append(module.name)
assert len(names) > 150, len(names)
"""


def python(program, *arguments):
    words = [sys.executable, "-c", WITHOUT_LINUX + program, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.slow
def test_every_module_is_imported_and_a_simulation_runs_and_is_reported(tmp_path):
    found = python(
        """
graph = peer.Graph.make("ring", peers=4, run={"rounds": 2})
run = peer.simulate(graph, out=sys.argv[1], progress=False)
print(run.metrics["rounds"], run.metrics["state"], len(run.frame()))
from peer.cli.main import app
from typer.testing import CliRunner
for words in (["report", sys.argv[1]], ["status", sys.argv[1]]):
    print(words[0], CliRunner().invoke(app, words).exit_code)
""",
        tmp_path / "run",
    )
    assert (found.returncode, found.stdout.splitlines()) == (0, ["2 complete 8", "report 0", "status 0"]), found.stderr
    assert list((tmp_path / "run" / "report").glob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("peer.Testbed(graph, out=sys.argv[1]).start()", "peer.Testbed"),
        ("peer.run(0, graph, state_dir=sys.argv[1], insecure=True)", "peer run"),
    ],
)
def test_what_needs_unix_says_so(tmp_path, call, what):
    program = f"""
graph = peer.Graph.make("ring", peers=4)
try:
    {call}
except Exception as error:
    print(type(error).__name__, error)
"""
    found = python(program, tmp_path / "run")
    sentence = f"UsageError {what}: expected Linux or macOS, got {sys.platform}, which lacks the file locks and signals"
    assert found.stdout.startswith(sentence), found.stdout + found.stderr
