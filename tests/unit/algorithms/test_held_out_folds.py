"""Samples held out of training: validation data first, else each sample of a fold decides and the others train."""

from types import SimpleNamespace

import numpy as np

from peer.algorithms.held_out import folds, share_held_out


def learner(train, validation=0):
    return SimpleNamespace(count=lambda part="train": {"train": train, "validation": validation}[part])


def draw():
    return np.random.default_rng(7)


def test_a_share_decides_and_the_rest_trains():
    fold = share_held_out(learner(21), 0.25, draw())
    assert fold.part == "train" and len(fold.held_out) == 5
    assert sorted([*fold.held_out, *fold.rest]) == list(range(21))
    assert not len(share_held_out(learner(3), 0.25, draw()).held_out)


def test_each_sample_is_held_out_in_one_fold():
    found = folds(learner(20), 3, draw())
    assert [len(fold.held_out) for fold in found] == [7, 7, 6]
    assert sorted(np.concatenate([fold.held_out for fold in found])) == list(range(20))
    assert all(sorted([*fold.held_out, *fold.rest]) == list(range(20)) for fold in found)
    assert folds(learner(2), 3, draw()) == []


def test_with_validation_data_all_training_samples_train():
    for fold in (share_held_out(learner(20, 4), 0.25, draw()), *folds(learner(20, 4), 3, draw())):
        assert fold.part == "validation" and fold.rest is None
        assert list(fold.held_out) == [0, 1, 2, 3]
    assert len(folds(learner(20, 4), 3, draw())) == 1
