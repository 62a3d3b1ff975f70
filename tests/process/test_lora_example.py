"""The example of LoRA adapters with transformers, peft and datasets, on local files, without a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MISSING = [name for name in ("transformers", "peft", "datasets", "tokenizers") if find_spec(name) is None]
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no package {MISSING}: pip install 'coordinator-free[hf]'"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the example and its files: sentences of four devices, a base model and its tokenizer."""
    found = tmp_path_factory.mktemp("lora")
    for name in ("make_files.py", "lora_task.py"):
        shutil.copy(EXAMPLES / name, found)
    executed(found, sys.executable, "make_files.py")
    return found


def executed(folder: Path, *command: str) -> str:
    """Run a program that can reach no hub; return its standard output."""
    hub = {
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | hub)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_adapters_of_four_peers_learn_and_are_a_small_part_of_the_model(folder: Path) -> None:
    said = executed(folder, sys.executable, "lora_task.py")
    accuracy = re.search(r"accuracy (0\.\d+|1\.0+), mean of 4 peers", said)
    sent = re.search(r"that is sent (\d+); bytes of the whole model (\d+); ([\d.]+) times", said)
    assert accuracy and sent, said
    assert float(accuracy[1]) > 0.8
    assert int(sent[2]) > 10 * int(sent[1]) > 0


def test_real_peers_train_adapters_and_the_whole_model_is_exported(folder: Path) -> None:
    peer = Path(sys.executable).with_name("peer")
    task = ("--task", "lora_task.py:task", "--set", "run.rounds=2", "--set", "run.algorithm=dfedavg")
    executed(folder, str(peer), "testbed", "--peers", "4", *task, "--set", "run.optimizer=adam", "--out", "out")
    report = json.loads(executed(folder, str(peer), "report", "out", "--json"))
    assert report["state"] == "complete" and report["rounds"] == 2
    executed(folder, str(peer), "export", "out", "--peer", "1", "--to", "whole.pt")
    program = (
        "import torch; from lora_task import task; model = task.make_model(); "
        "model.load_state_dict(torch.load('whole.pt', weights_only=True)); print('loaded')"
    )
    assert executed(folder, sys.executable, "-c", program) == "loaded\n"
