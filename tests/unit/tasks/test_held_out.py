"""Validation data for algorithms that need some: held out of the training samples, once, the same at each start."""

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest
from peer.tasks.loading import load_task
from peer.tasks.shard import Shard
from peer.tasks.training_data import training_data


def shard_of(count, validation=0):
    x = np.arange(count, dtype=np.float32)[:, None]
    val = {"val_x": -x[:validation] - 1, "val_y": np.zeros(validation, np.int64)} if validation else {}
    marks = {"true_cluster": np.arange(count) % 3, "turns": np.arange(count) % 4}
    return Shard(train_x=x, train_y=np.arange(count), test_x=x, test_y=np.arange(count), **val, **marks)


def test_a_share_is_held_out_and_the_parts_are_disjoint():
    held = shard_of(20).holding_out(0.2, 7)
    assert len(held.val_x) == 4 and len(held.train_x) == 16
    assert sorted([*held.train_y, *held.val_y]) == list(range(20))
    assert (held.train_x[:, 0] == held.train_y).all() and (held.val_x[:, 0] == held.val_y).all()
    assert (held.true_cluster == held.train_y % 3).all() and (held.turns == held.train_y % 4).all()
    assert (shard_of(20).holding_out(0.2, 7).val_y == held.val_y).all()
    assert not (shard_of(20).holding_out(0.2, 8).val_y == held.val_y).all()


@pytest.mark.parametrize(("count", "held"), [(2, 0), (3, 1), (4, 1), (10, 2)])
def test_two_training_samples_remain(count, held):
    assert len(shard_of(count).holding_out(0.2, 1).part("validation")[0]) == held


def test_own_validation_data_stay():
    shard = shard_of(20, validation=5)
    assert shard.holding_out(0.2, 1) is shard
    assert shard_of(20).holding_out(0.0, 1).val_x is None


@pytest.mark.parametrize(("algorithm", "share"), [("dpfl", 0.2), ("dfca", 0.0)])
def test_only_where_the_algorithm_needs_it(algorithm, share):
    manifest = Manifest(algorithm=algorithm, split_options={"samples_per_peer": 50, "test_per_peer": 10})
    shard = training_data(load_task(manifest, 4), 1, manifest)
    assert len(shard.part("validation")[0]) == round(50 * share) and len(shard.train_x) == round(50 * (1 - share))


def test_a_split_that_holds_out_more_is_taken_as_it_is():
    options = {"samples_per_peer": 50, "test_per_peer": 10, "validation": 0.4}
    manifest = Manifest(algorithm="dpfl", split_options=options)
    assert len(training_data(load_task(manifest, 4), 1, manifest).val_x) == 20
