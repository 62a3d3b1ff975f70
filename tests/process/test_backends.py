"""Processes over real sockets and the simulated backend end with the same bits, with every screening and encoding."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tools.beds import Bed, Models, final_models, same_models
from tools.running import running_command, until
from tools.warm_parent import executed

from coordinator_free_bootstrap import Graph, load_graph, make_graph, parse_manifest
from coordinator_free_bootstrap.errors import PeerError
from peer.lab.simulated import simulate
from peer.view.report.report import build_report
from peer.view.state.run_files import RunFiles

pytestmark = pytest.mark.process

Make = Callable[..., Bed]
SLOW = pytest.mark.slow
SMALL: dict[str, Any] = {
    "rounds": 4,
    "model_options": {"hidden": 16},
    "split_options": {"samples_per_peer": 90, "test_per_peer": 40},
    "start": {"wait_for": "all", "deadline_s": 60.0},
    "timeouts": {"suspicion_s": 60.0, "round_deadline_s": 120.0},
}


def six_peers(**run: Any) -> Graph:
    return make_graph("erdos-renyi", 6, p=0.5, seed=3, manifest=parse_manifest({**SMALL, **run}, "test"))


def run_both(bed: Make, directory: Path, graph: Graph) -> dict[int, Models]:
    """Run a graph with both backends, check that models and counters are equal, and return the models."""
    processes = bed(graph=graph)
    assert processes.finish()["failed"] == {}
    simulate(load_graph(processes.directory / "graph.json"), directory / "simulated")
    models = final_models(directory / "simulated", graph)
    same_models(processes.models(), models)
    real, simulated = (build_report(place).values for place in (processes.directory, directory / "simulated"))
    for key in ("metric_mean", "cluster_ari", "rounds", "models_sent", "models_folded", "payload_bytes_sent", "matrix"):
        assert real[key] == simulated[key], key
    return models


@pytest.mark.parametrize(
    "run",
    [
        pytest.param({"algorithm": "dfca"}, id="dfca"),
        pytest.param(
            {"algorithm": "dfca", "options": {"warmup_rounds": 2, "relay_steps": 2}}, id="dfca-warmup", marks=SLOW
        ),
        pytest.param({"algorithm": "dfca", "options": {"initialization": "seeds"}}, id="dfca-seeds", marks=SLOW),
        pytest.param(
            {"algorithm": "dfca", "aggregation": "batch", "encoding": "int8", "participation": 0.7},
            id="dfca-batch-int8-participation",
            marks=SLOW,
        ),
        pytest.param({"algorithm": "blend"}, id="blend"),
        pytest.param(
            {"algorithm": "blend", "options": {"warmup_rounds": 1}, "participation": 0.8},
            id="blend-warmup",
            marks=SLOW,
        ),
        pytest.param({"algorithm": "dfedavg", "momentum": 0.9, "learning_rate": 0.02}, id="dfedavgm", marks=SLOW),
        pytest.param(
            {"algorithm": "dfedavg", "options": {"partners": 2}, "participation": 0.8},
            id="dfedavg-partners",
            marks=SLOW,
        ),
        pytest.param(
            {"algorithm": "dfedavg", "edges": "one", "encoding": "delta_int8", "outer": {"optimizer": "noloco"}},
            id="one-edge-noloco-deltas",
        ),
        pytest.param({"algorithm": "dfca", "edges": "one", "encoding": "int8"}, id="dfca-one-edge-int8", marks=SLOW),
        pytest.param(
            {"algorithm": "dfca", "outer": {"optimizer": "nesterov"}, "participation": 0.7},
            id="dfca-nesterov-participation",
            marks=SLOW,
        ),
        pytest.param({"algorithm": "fedprox", "participation": 0.7}, id="fedprox-participation", marks=SLOW),
        pytest.param({"algorithm": "fedspd", "dynamic_edges": 0.2}, id="fedspd-dynamic"),
        pytest.param(
            {"algorithm": "pfedme", "options": {"strength": 2.0}, "participation": 0.7},
            id="pfedme-participation",
            marks=SLOW,
        ),
        pytest.param(
            {"algorithm": "ditto", "momentum": 0.5, "optimizer_state": "keep"}, id="ditto-kept-momentum", marks=SLOW
        ),
        pytest.param(
            {"algorithm": "dfedavg", "local_unit": "step", "local_epochs": 5, "batch_size": [32, 10]}
            | {"optimizer": "adamw", "weight_decay": 0.1, "optimizer_state": "keep"}
            | {"learning_rate": 0.01, "learning_rate_schedule": "cosine:end=0.1,warm_up=1"},
            id="dfedavg-steps-cosine-kept-adamw",
        ),
        pytest.param({"algorithm": "apfl", "encoding": "int8"}, id="apfl-int8", marks=SLOW),
        pytest.param({"algorithm": "fedrep", "screening": {"clip": 0.5}}, id="fedrep-clip", marks=SLOW),
        pytest.param(
            {"algorithm": "dfedavg", "private_parameters": ["3.*"], "gradient_clip": 1.0}, id="fedper", marks=SLOW
        ),
        pytest.param({"algorithm": "dfca", "private_parameters": ["3.*"]}, id="dfca-private"),
        pytest.param(
            {"algorithm": "dfedavg", "private_parameters": ["*.bias"], "encoding": "delta_top10"},
            id="dfedavg-private-deltas",
            marks=SLOW,
        ),
        pytest.param({"algorithm": "perfedavg", "batch_size": 30}, id="perfedavg", marks=SLOW),
        pytest.param({"algorithm": "dpsgd", "dynamic_edges": 0.2}, id="dpsgd-dynamic", marks=SLOW),
        pytest.param({"algorithm": "fedsoft", "participation": 0.7}, id="fedsoft-participation", marks=SLOW),
        pytest.param(
            {"algorithm": "fedsoft", "options": {"variant": "select"}, "aggregation": "batch"},
            id="fedsoft-select",
            marks=SLOW,
        ),
        pytest.param({"algorithm": "dpfl", "options": {"budget": 2, "rebuild_every": 2}}, id="dpfl-budget-rebuild"),
        pytest.param(
            {"algorithm": "dpfl", "options": {"period": 2}, "participation": 0.8, "encoding": "int8"},
            id="dpfl-participation",
            marks=SLOW,
        ),
        pytest.param(
            {"algorithm": "cgpfl", "options": {"strength": 2.0, "align_every": 2}, "participation": 0.8},
            id="cgpfl",
            marks=SLOW,
        ),
        pytest.param(
            {"algorithm": "cgpfl", "options": {"strength": 2.0, "clusters": "auto"}, "encoding": "int8"},
            id="cgpfl-auto",
        ),
    ],
)
def test_both_backends_end_with_the_same_models(bed: Make, tmp_path: Path, run: dict[str, Any]) -> None:
    run_both(bed, tmp_path, six_peers(**run))


PLAIN: dict[str, dict[str, Any]] = {
    "dfca": {"algorithm": "dfca"},
    "dfedavg": {"algorithm": "dfedavg"},
    "fedspd": {"algorithm": "fedspd", "options": {"min_cluster_samples": 10}},
}


@pytest.fixture(scope="module")
def plain_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[int, Models]]:
    """Return a function: algorithm -> the models of its simulated run with float32 and no screening, run once."""

    @cache
    def run(algorithm: str) -> dict[int, Models]:
        directory, graph = tmp_path_factory.mktemp(algorithm), six_peers(**PLAIN[algorithm])
        simulate(graph, directory)
        return final_models(directory, graph)

    return run


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [
        ("dfca", {"screening": {"trimmed_mean": 0.3}}),
        pytest.param("dfedavg", {"screening": {"trimmed_mean": 0.3}}, marks=SLOW),
        pytest.param("dfca", {"screening": {"clip": 0.02}}, marks=SLOW),
        pytest.param("dfca", {"screening": {"norm_bound": 1.0}}, marks=SLOW),
        ("dfca", {"encoding": "int8"}),
        pytest.param("dfca", {"encoding": "float16"}, marks=SLOW),
        pytest.param("dfca", {"encoding": "bfloat16"}, marks=SLOW),
        ("dfca", {"encoding": "delta_top10"}),
        pytest.param(
            "dfedavg",
            {"encoding": "delta_int8", "screening": {"clip": 0.02, "norm_bound": 1.01, "trimmed_mean": 0.3}},
            marks=SLOW,
        ),
        pytest.param("fedspd", {"encoding": "delta_top1"}, marks=SLOW),
        ("dfedavg", {"encoding": "int8", "screening": {"clip": 0.02, "norm_bound": 1.01, "trimmed_mean": 0.3}}),
        # Noise comes from the system's entropy and differs in every run; this epsilon puts it below float32's resolution.
        pytest.param(
            "fedspd", {"options": {"min_cluster_samples": 10, "dp_epsilon": 1e30, "dp_clip": 0.02}}, marks=SLOW
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value).replace('"', ""),
)
def test_setting_acts_and_both_backends_agree(
    bed: Make,
    tmp_path: Path,
    plain_models: Callable[[str], dict[int, Models]],
    algorithm: str,
    setting: dict[str, Any],
) -> None:
    models = run_both(bed, tmp_path, six_peers(**PLAIN[algorithm] | setting))
    for peer_id, plain in plain_models(algorithm).items():
        with pytest.raises(AssertionError, match="differs"):  # otherwise the setting did not act
            same_models({peer_id: models[peer_id]}, {peer_id: plain})


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(
        'title = "small"\nsource = "this test"\npeers = 4\ntrain_samples = 240\ntest_samples = 80\n'
        '[graph]\nkind = "complete"\n'
        "[run]\nrounds = 2\nmodel_options = { hidden = 8 }\n"
        "split_options = { samples_per_peer = 60, test_per_peer = 20 }\n"
        '[[case]]\nname = "DFCA-GI"\nrun = { algorithm = "dfca" }\n'
    )
    return file


@SLOW
def test_an_interrupted_experiment_of_processes_goes_on_from_its_checkpoints(tmp_path: Path, experiment: Path) -> None:
    place = tmp_path / "out" / "small" / "dfca-gi" / "seed-1"
    words: list[object] = ["experiment", "run", experiment, "--seeds", "1", "--backend", "processes", "--keep"]
    words += ["--out", tmp_path / "out", "--set", "run.rounds=100000"]  # far too many: it is interrupted
    after = [0]
    for start in (1, 2):
        log = tmp_path / f"log-{start}"
        with running_command(*words, log=log) as command:
            until(lambda: rounds_of_all(place) > after[-1] + 2, "all peers complete more rounds", logs=[log])
            command.send_signal(signal.SIGINT)
            until(lambda: command.poll() is not None, "the command ends", logs=[log])
        said = log.read_text().replace("\n", " ")
        stopped = re.search(rf"{place}: stopped after (\d+) of 100000 rounds; the same call or command continues", said)
        assert stopped, said
        resumed = re.findall(rf"{place}: resuming an interrupted run after (\d+) of 100000 rounds", said)
        assert resumed == [str(count) for count in after[1:]]
        after.append(int(stopped[1]))
    assert after[2] > after[1] + 2 > 2


def rounds_of_all(directory: Path) -> int:
    """Return how many rounds every peer of a run has completed; 0 before the run has begun."""
    try:
        return min(peer.rounds_completed for peer in RunFiles.read(directory).peers)
    except (PeerError, OSError):
        return 0


def test_experiment_run_measures_the_same_with_either_backend(tmp_path: Path, experiment: Path) -> None:
    results = {}
    for backend in ("processes", "simulated"):
        out = tmp_path / backend
        done = executed("experiment", "run", experiment, "--seeds", "1", "--backend", backend, "--out", out)
        assert done.returncode == 0, done.stderr
        results[backend] = json.loads((out / "small" / "dfca-gi" / "seed-1.json").read_text())
    real, simulated = results["processes"], results["simulated"]
    assert (real["backend"], simulated["backend"]) == ("processes", "simulated")
    for key in ("measured", "curve", "models_sent", "payload_bytes_sent", "settled_round"):
        assert real[key] == simulated[key], key
    assert real["wire_bytes_sent"] > real["payload_bytes_sent"] > 0 == simulated["wire_bytes_sent"]
