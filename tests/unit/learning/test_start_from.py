"""Warm start: a run begins with the values of a file or of an earlier run, says so, and refuses what does not fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from coordinator_free_bootstrap import make_graph, parse_manifest
from coordinator_free_bootstrap.errors import ConfigError, PeerError, StorageError, UsageError
from peer.lab.simulated import SimulatedSettings, simulate
from peer.learning.start import start_of
from peer.view.api.results import Run

SMALL: dict[str, Any] = {
    "rounds": 1,
    "algorithm": "dfedavg",
    "model_options": {"hidden": 8},
    "learning_rate": 1e-12,  # the models at the end are those at the begin, within rounding
    "split_options": {"samples_per_peer": 40, "test_per_peer": 20},
}


def run(folder: Path, given: Path | None = None, **changes: Any) -> list[dict[str, np.ndarray]]:
    """Run two peers and return the first cluster model of each."""
    graph = make_graph("line", 2, manifest=parse_manifest({**SMALL, **changes}, "test"))
    simulate(graph, folder, SimulatedSettings(start_from=given))
    return [load_file(folder / f"peer-{i}" / "models" / "cluster-0.safetensors") for i in (0, 1)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Return a model file of an earlier run, with another seed."""
    run(tmp_path / "earlier", seed=5, learning_rate=0.1, rounds=3)
    return tmp_path / "earlier" / "peer-1" / "models" / "cluster-0.safetensors"


def start_line(folder: Path, peer_id: int = 0) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((folder / f"peer-{peer_id}" / "history.jsonl").read_text().splitlines()[0])
    return line


def close(left: dict[str, np.ndarray], right: dict[str, np.ndarray], names: set[str] | None = None) -> bool:
    return all(np.allclose(left[name], right[name], atol=1e-6) for name in names or left.keys())


def test_all_peers_start_from_one_file_and_say_so(tmp_path: Path, earlier: Path) -> None:
    sha = digest(earlier)
    models = run(tmp_path / "run", earlier, start_from=sha)
    assert all(close(model, load_file(earlier)) for model in models)
    assert not close(run(tmp_path / "cold")[0], load_file(earlier))
    told = {"source": "cluster-0.safetensors", "sha256": sha, "rounds": 3, "taken": 4, "new": []}
    assert start_line(tmp_path / "run")["start_from"] == told
    assert "start_from" not in start_line(tmp_path / "cold")
    assert start_line(tmp_path / "run")["digests"]["initial_models"]
    card = Run(tmp_path / "run").export_model(0, tmp_path / "model.safetensors").read_text()
    assert f"cluster-0.safetensors after 3 rounds, SHA-256 {sha}, 4 tensors" in card


def test_each_peer_starts_from_its_own_models_of_a_run(tmp_path: Path, earlier: Path) -> None:
    before = earlier.parents[2]
    run(before, seed=5, learning_rate=0.1, rounds=2, algorithm="local")
    models = run(tmp_path / "run", before, start_from="own", algorithm="local")
    for peer_id, model in enumerate(models):
        assert close(model, load_file(before / f"peer-{peer_id}" / "models" / "cluster-0.safetensors"))
    assert not close(*models)
    assert start_line(tmp_path / "run")["digests"]["initial_models"] == ""
    assert start_line(tmp_path / "run", 1)["start_from"]["source"] == "earlier"


def test_cluster_models_start_from_the_same_clusters(tmp_path: Path) -> None:
    run(tmp_path / "earlier", seed=5, learning_rate=0.1, rounds=2, algorithm="dfca")
    run(tmp_path / "run", tmp_path / "earlier", start_from="own", algorithm="dfca")
    start = start_of("own", tmp_path / "earlier", 1)
    assert start is not None
    for slot, model in enumerate(start.models):
        before = load_file(tmp_path / "earlier" / "peer-1" / "models" / f"cluster-{slot}.safetensors")
        assert all(np.array_equal(model[name], before[name]) for name in before)
    assert len(start.models) == 2
    with pytest.raises(ConfigError, match="start-from: expected 1 model, or 3, got 2 models"):
        run(tmp_path / "three", tmp_path / "earlier", start_from="own", algorithm="dfca", clusters=3)


def test_a_new_head_is_drawn_from_the_seed_and_named(tmp_path: Path, earlier: Path) -> None:
    tensors = load_file(earlier)
    head = sorted(tensors)[-1]
    body = tmp_path / "body.safetensors"
    save_file({**{n: t for n, t in tensors.items() if n != head}, head: np.zeros((3, 3), np.float32)}, body)
    models = run(tmp_path / "run", body, start_from=digest(body))
    cold = run(tmp_path / "cold")
    assert close(models[0], tensors, set(tensors) - {head})
    assert close(models[0], cold[0], {head})
    assert start_line(tmp_path / "run")["start_from"]["new"] == [head]


def test_a_public_checkpoint_may_have_other_types_and_more_tensors(tmp_path: Path, earlier: Path) -> None:
    tensors = {name: torch.from_numpy(tensor).bfloat16() for name, tensor in load_file(earlier).items()}
    public = tmp_path / "public.safetensors"
    save_torch({**tensors, "more": torch.ones(2), "count": torch.tensor(3)}, public)
    model = run(tmp_path / "run", public, start_from=digest(public))[0]
    assert all(np.allclose(model[name], tensors[name].float().numpy(), atol=1e-6) for name in model)


def test_what_does_not_fit_is_refused_with_the_fix(tmp_path: Path, earlier: Path) -> None:
    sha = digest(earlier)

    def refused(kind: type[PeerError], match: str, given: Path | None, **changes: Any) -> None:
        with pytest.raises(kind, match=match):
            run(tmp_path / "run", given, **changes)

    refused(UsageError, f"run.start_from is not set; .* --set run.start_from={sha}", earlier)
    refused(UsageError, f"expected the file with SHA-256 {sha}, got nothing", None, start_from=sha)
    refused(ConfigError, f"expected a file with SHA-256 {'0' * 64}, got {sha}", earlier, start_from="0" * 64)
    refused(ConfigError, "run.start_from", earlier, start_from="elsewhere")
    refused(ConfigError, "2 models that differ", earlier, start_from=sha, algorithm="dfca")
    other = tmp_path / "other.safetensors"
    save_file({"layer": np.ones(3, np.float32)}, other)
    refused(ConfigError, "expected tensors named as those of the model", other, start_from=digest(other))
    name = sorted(load_file(earlier))[0]
    save_file({**load_file(earlier), name: np.full_like(load_file(earlier)[name], np.nan)}, other)
    refused(ConfigError, f"expected finite values, got NaN or Inf in {name}", other, start_from=digest(other))
    other.write_bytes(b"no model")
    refused(StorageError, "cannot read model file", other, start_from=digest(other))
    refused(StorageError, "with models of peer 0", tmp_path, start_from="own")
    noisy = {"algorithm": "fedspd", "options": {"dp_epsilon": 1.0, "min_cluster_samples": 10}, "split": "rotated_soft"}
    refused(ConfigError, "with run.options.dp_epsilon, got 'own'", earlier.parents[2], start_from="own", **noisy)
    private = {"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}}
    refused(
        ConfigError,
        "expected None with run.privacy, since a peer's own",
        earlier.parents[2],
        start_from="own",
        **private,
    )


def test_a_restart_does_not_need_the_file(tmp_path: Path, earlier: Path) -> None:
    first = start_of(digest(earlier), earlier, 0)
    assert first is not None
    first.keep(tmp_path / "start")
    earlier.unlink()
    again = start_of(first.sha256, None, 0, tmp_path / "start")
    assert again is not None
    assert (again.source, again.sha256, again.rounds) == (first.source, first.sha256, first.rounds)
    assert all(np.array_equal(again.models[0][name], first.models[0][name]) for name in first.models[0])
