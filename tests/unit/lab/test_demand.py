"""What a run needs: the estimate of memory is above the measured peak, and not far above it; GPUs are shared."""

import os
import subprocess
import sys

import pytest

from peer.lab.demand import PROCESS_BYTES, Demand, demand_of
from peer.lab.jobs import Job
from peer.lab.scaling import Scale
from peer.lab.simulated import SimulatedSettings
from peer.lab.spec import load_experiment

FILE = """
title = "Large models"
source = "this test"
peers = 12
train_samples = 480
test_samples = 160
graph = {{ kind = "regular", degree = 4 }}
run = {{ rounds = 3, {clusters}model = "mlp", model_options = {{ hidden = {hidden} }} }}
[[case]]
name = "A"
run = {{ algorithm = "{algorithm}" }}
"""

RUN = """
import re, sys
from pathlib import Path
from peer.lab.jobs import Job
from peer.lab.runner import run_job
from peer.lab.scaling import Scale
from peer.lab.spec import load_experiment
experiment = load_experiment(Path(sys.argv[1]))
job = Job(experiment, experiment.case[0], 1, Scale(), "simulated")
run_job(job, Path(sys.argv[2]), keep=False, command="", on_round=lambda completed, metric: None)
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))  # ru_maxrss counts the parent's
"""


def job(folder, device="cpu", threads=1, **keys):
    path = folder / "large.toml"
    clusters = keys.pop("clusters", 2)  # None: the algorithm has one model
    told = "" if clusters is None else f"clusters = {clusters}, "
    path.write_text(FILE.format(**{"hidden": 8, "algorithm": "dfca"} | keys, clusters=told))
    experiment = load_experiment(path)
    return Job(
        experiment, experiment.case[0], 1, Scale(), "simulated", SimulatedSettings(device=device, threads=threads)
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(("algorithm", "clusters"), [("dfedavg", None), ("fedspd", 2), ("fedem", 3)])
def test_the_estimate_of_memory_is_above_the_peak_of_the_run(tmp_path, algorithm, clusters):
    demand = demand_of(job(tmp_path, algorithm=algorithm, clusters=clusters, hidden=4000))
    arguments = [sys.executable, "-c", RUN, str(tmp_path / "large.toml"), str(tmp_path / "out")]
    done = subprocess.run(
        arguments, check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout)
    assert peak < demand.memory < 4 * peak
    assert demand.memory - PROCESS_BYTES > 100e6  # the models count


def test_a_run_needs_a_core_for_each_thread_and_no_gpu_on_a_cpu(tmp_path):
    demand = demand_of(job(tmp_path, threads=3))
    assert (demand.cpus, demand.gpu_memory, demand.gpus(80 << 30)) == (3, 0, 0.0)


def test_a_larger_model_and_batch_need_more_memory_of_a_gpu(tmp_path):
    small, large = (demand_of(job(tmp_path, "cuda", hidden=hidden)).gpu_memory for hidden in (8, 4000))
    models = 12 * 4 * (4000 - 8) * (64 + 1 + 10)
    assert large - small > models
    assert small < 1e9


@pytest.mark.parametrize(
    ("need_gb", "gpu_gb", "share"),
    [(1, 10, 0.1111), (3, 10, 0.3333), (4.5, 10, 0.5), (4.6, 10, 1.0), (20, 10, 1.0), (3, None, 1.0)],
)
def test_as_many_runs_share_a_gpu_as_nine_tenths_of_its_memory_hold(need_gb, gpu_gb, share):
    demand = Demand(1, 10**9, int(need_gb * 1e9))
    assert demand.gpus(gpu_gb and int(gpu_gb * 1e9)) == share


def test_a_run_that_ran_out_of_memory_asks_for_twice_as_much():
    assert Demand(2, 10**9, 5).grown() == Demand(2, 2 * 10**9, 5)
