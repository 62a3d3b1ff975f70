"""The algorithm's state in a checkpoint: what is written comes back with its types; anything else is refused in a sentence."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tools.simulated import run

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.errors import CheckpointCorrupt
from peer.algorithms.labels import Anchor
from peer.algorithms.registry import algorithms
from peer.algorithms.saved_state import array, restored, saved
from peer.core.decisions import AlgorithmState
from peer.core.effects import WriteCheckpoint


@dataclass(frozen=True)
class Everything(AlgorithmState):
    count: int = 0
    loss: float = 0.0
    known: bool = False
    name: str = ""
    maybe: float | None = None
    seeds: tuple[int | None, ...] = ()
    table: tuple[tuple[int, ...], ...] = ()
    anchor: Anchor = Anchor(0, 0)  # noqa: RUF009
    z: npt.NDArray[np.int64] = array(np.int64, 1)
    rows: npt.NDArray[np.float32] | None = array(np.float32, 2, optional=True)


FULL = Everything(
    (1,), 9, 2, (0.25, 0.75), 3, float("inf"), True, "é", -1.5, (4, None), ((1, 2), (3, 4)), Anchor(7, 2),
    np.arange(5), np.ones((2, 3), np.float32),
)  # fmt: skip


def through_disk(state: AlgorithmState) -> AlgorithmState:
    values, arrays = saved(state)
    return restored(type(state), json.loads(json.dumps(values)), {name: value.copy() for name, value in arrays.items()})


def same(one: AlgorithmState, other: AlgorithmState) -> bool:
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)]
    return one == other and all(type(a) is type(b) and np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("state", [FULL, Everything(), AlgorithmState()], ids=["full", "first", "base"])
def test_what_is_written_comes_back_with_its_types(state: AlgorithmState) -> None:
    assert same(through_disk(state), state)


def test_nan_comes_back_too() -> None:
    assert np.isnan(through_disk(replace(FULL, loss=float("nan"))).loss)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"count": "3"}, r"algorithm_state\.count: .*integer, got \"3\""),
        ({"count": True}, r"algorithm_state\.count: .*integer, got true"),
        ({"count": 1.5}, r"algorithm_state\.count"),
        ({"known": 1}, r"algorithm_state\.known"),
        ({"trained": 3}, r"algorithm_state\.trained"),
        ({"trained": [0, "1"]}, r"algorithm_state\.trained\.1"),
        ({"mixture": None}, r"algorithm_state\.mixture"),
        ({"seeds": ["x"]}, r"algorithm_state\.seeds\.0"),
        ({"anchor": [1]}, r"algorithm_state\.anchor"),
        ({"table": {"a": 1}}, r"algorithm_state\.table"),
        ({"other": 1}, r"see \"other\""),
        ({"z": [1, 2]}, r"see \"z\""),  # an array is no list of the manifest
    ],
)
def test_json_of_another_type_is_refused(change: dict[str, Any], sentence: str) -> None:
    values, arrays = saved(FULL)
    with pytest.raises(CheckpointCorrupt, match=sentence):
        restored(Everything, json.loads(json.dumps(values | change)), arrays)


@pytest.mark.parametrize("name", [each.name for each in fields(Everything)])
def test_a_field_that_is_missing_is_refused_unless_it_may_be_none(name: str) -> None:
    values, arrays = saved(FULL)
    values.pop(name, None)
    arrays.pop(name, None)
    if name == "rows":
        assert restored(Everything, values, arrays).rows is None
    else:
        with pytest.raises(CheckpointCorrupt, match=name):
            restored(Everything, values, arrays)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"z": np.arange(5.0)}, r"algorithm_state\.z: expected int64 with 1 axes, got float64 \[5\]"),
        ({"z": np.zeros((2, 2), np.int64)}, r"got int64 \[2, 2\]"),
        ({"rows": np.zeros(3, np.float32)}, r"algorithm_state\.rows: expected float32 with 2 axes"),
        ({"more": np.zeros(3)}, r"see \"more\""),
        ({"count": np.zeros(3)}, r"see \"count\""),
    ],
)
def test_arrays_of_another_form_are_refused(change: dict[str, Any], sentence: str) -> None:
    values, arrays = saved(FULL)
    with pytest.raises(CheckpointCorrupt, match=sentence):
        restored(Everything, values, arrays | change)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_the_state_of_every_algorithm_comes_back_after_a_run(name: str) -> None:
    near = {"strength": 1.0}
    options = {"cgpfl": near, "pfedme": near}.get(name, {})
    task = {"task_options": {"samples_per_cluster": 20, "test_per_cluster": 8}, "split": "iid"}
    task |= {"private_parameters": ["1.bias"]} if name == "fedrep" else {}
    manifest = Manifest(
        algorithm=name, clusters=2, rounds=4, learning_rate=0.01, options=options, task="linear", **task
    )
    for peer in run(make_graph("complete", 3, manifest=manifest)):
        assert same(through_disk(peer.state), peer.state)
        kept = peer._peer.host.checkpoint(WriteCheckpoint(4, {}))
        json.dumps(kept.state)
        assert not [
            row
            for row in kept.arrays
            if row.partition("/")[0] not in ("slot", "state", "published", "optimizer", "best")
        ]


def test_arrays_are_arrays_in_the_checkpoint_and_no_text() -> None:
    manifest = Manifest(algorithm="fedspd", clusters=2, rounds=3, options={"align_every": 1, "sketch_size": 8})
    peer = run(make_graph("complete", 3, manifest=manifest))[0]
    kept = peer._peer.host.checkpoint(WriteCheckpoint(3, {}))
    assert kept.arrays["state/z"].dtype == np.int64 and kept.arrays["state/z"].shape == (peer.learner.count(),)
    assert kept.arrays["state/sketches"].shape == (2, 8)
    assert not {"z", "sketches"} & kept.state["algorithm_state"].keys()
