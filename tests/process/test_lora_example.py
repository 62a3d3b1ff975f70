"""The example of LoRA adapters with transformers, peft and datasets, on local files, without a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tools.warm_parent import executed

EXAMPLES = Path(__file__).parents[2] / "examples"
MISSING = [name for name in ("transformers", "peft", "datasets", "tokenizers") if find_spec(name) is None]
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # one test with its fixtures: five commands that import transformers
    pytest.mark.skipif(bool(MISSING), reason=f"no package {MISSING}: pip install 'coordinator-free[hf]'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example and its files: sentences of four devices, a base model and its tokenizer."""
    found = tmp_path_factory.mktemp("lora")
    for name in ("make_files.py", "lora_task.py"):
        shutil.copy(EXAMPLES / name, found)
    python(found, "make_files.py")
    return found


def in_folder(folder: Path) -> dict[str, Any]:
    """Return the folder and the variables of a program that can reach no hub."""
    hub = {
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }
    return {"cwd": folder, "environment": hub}


def python(folder: Path, *words: str) -> str:
    """Run a Python program; return its standard output."""
    place = in_folder(folder)
    environment = os.environ | place["environment"]
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def peer(folder: Path, *words: str) -> str:
    """Run the command `peer`; return its standard output."""
    done = executed(*words, timeout=800, **in_folder(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def exported(folder: Path) -> str:
    """Train adapters with two real peers, and export the whole model of one; return the name of the file."""
    task = ("--set", "run.task=lora_task.py:task", "--set", "run.rounds=2", "--set", "run.algorithm=dfedavg")
    peer(folder, "testbed", "--peers", "2", "--kind", "line", *task, "--set", "run.optimizer=adam", "--out", "out")
    report = json.loads(peer(folder, "report", "out", "--json"))
    assert report["state"] == "complete" and report["rounds"] == 2
    peer(folder, "export", "out", "whole.pt", "--peer", "1")
    return "whole.pt"


def test_adapters_learn_are_a_small_part_of_the_model_and_the_whole_model_is_exported(
    folder: Path, exported: str
) -> None:
    program = (
        "import runpy, torch; task = runpy.run_path('lora_task.py', run_name='__main__')['task']; model = task.make_model(); "
        f"model.load_state_dict(torch.load('{exported}', weights_only=True)); print('loaded')"
    )
    said = python(folder, "-c", program)
    accuracy = re.search(r"accuracy (0\.\d+|1\.0+), mean of 4 peers", said)
    sent = re.search(r"that is sent (\d+); bytes of the whole model (\d+); ([\d.]+) times", said)
    assert accuracy and sent, said
    assert float(accuracy[1]) > 0.8
    assert int(sent[2]) > 10 * int(sent[1]) > 0
    assert said.endswith("loaded\n")
