"""Options and manifest keys without effect are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator_free_bootstrap import parse_manifest
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.manifest import Manifest
from peer.tasks.effect import keys_without_effect, local_options, refuse_unused_options
from peer.tasks.given_keys import warn_without_effect

GIVEN = Path("data")


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        (
            "digits",
            {"data_root": GIVEN},
            "--data-root: expected no value .*task 'digits' does not use it.*got 'data'. Remove it",
        ),
        ("digits", {"download": True}, "--download: .*task 'digits'"),
        ("tabular", {"download": True}, "--download: .*task 'tabular' does not use it"),
        ("own.py:task", {"data_root": GIVEN}, "--data-root: .*task 'own.py:task'"),
        ("mnist", {"data_root": GIVEN, "shard": GIVEN}, "--data-root: .*task 'mnist' with --shard does not use it"),
        ("digits", {"shard": GIVEN}, "--shard: expected a .safetensors file for task 'digits'.*got data"),
    ],
)
def test_an_option_that_the_task_does_not_use_is_refused(task, given, words):
    """Before, each of these options was ignored in silence; --shard with a folder trained on the whole data set."""
    with pytest.raises(UsageError, match=words):
        refuse_unused_options(Manifest(task=task), **{"data_root": None, "shard": None, "download": False} | given)


def test_options_that_a_task_uses_pass():
    assert local_options("mnist") == {"data_root", "download", "shard"}
    refuse_unused_options(Manifest(task="mnist"), data_root=GIVEN, shard=None, download=True)
    refuse_unused_options(Manifest(task="image-folder"), data_root=None, shard=GIVEN, download=False)
    refuse_unused_options(Manifest(), data_root=None, shard=Path("peer-0.safetensors"), download=False)


@pytest.mark.parametrize(
    ("run", "keys"),
    [
        ({}, []),
        ({"pace": "async"}, []),
        ({"momentum": 0.9}, []),
        ({"momentum": 0.9, "optimizer": "adam"}, ["run.momentum"]),
        ({"pace": "async", "aggregation": "sequential"}, ["run.aggregation"]),
        ({"pace": "async", "aggregation": "batch"}, []),
        ({"pace": "async", "aggregation": "on_arrival", "stale_weight": 0.0}, []),
        ({"aggregation": "on_arrival", "stale_weight": 0.9}, []),
        ({"split": "shard", "split_options": {"k": 4}}, ["run.split_options"]),
        ({"task": "own.py:task", "model": "mlp", "data_seed": 3}, ["run.model", "run.data_seed"]),
        ({"task": "own.py:task", "split": "shard"}, []),
    ],
)
def test_manifest_keys_without_effect_are_listed(run, keys):
    """Before, such a key changed the digest of the manifest and nothing else."""
    assert list(keys_without_effect(parse_manifest(run, "test"))) == keys


def test_a_key_that_the_algorithm_does_not_read_is_listed_with_the_others():
    """Before, only the algorithm knew it, and only when a peer was made."""
    run = {"algorithm": "dpfl", "mix": "metropolis", "optimizer": "adam", "momentum": 0.5}
    assert keys_without_effect(parse_manifest(run, "test")) == {
        "run.momentum": "run.optimizer is adam",
        "run.mix": "algorithm dpfl averages a chosen set of models by numbers of samples",
    }


def test_a_set_key_without_effect_is_refused_with_its_fields():
    manifest = parse_manifest({"optimizer": "adam", "momentum": 0.5}, "test")
    with pytest.raises(UsageError) as caught:
        warn_without_effect(manifest, {"run.momentum"}, print)
    assert str(caught.value) == (
        "--set run.momentum: expected no value (no effect, because run.optimizer is adam), got 0.5. Remove it."
    )
    assert caught.value.problem.got == "0.5"
