"""Delivered models on disk: read one at a time, nothing left in the directory, and no error of the disk ends the run."""

import logging

import numpy as np
import pytest

from peer.algorithms.delivered import DeliveredModels
from peer.store.delivered_file import DeliveredFile


def model(value: float) -> np.ndarray:
    return np.full(5, value, np.float32)


@pytest.fixture(params=["memory", "disk"])
def kept(request, tmp_path):
    return DeliveredModels() if request.param == "memory" else DeliveredFile(tmp_path)


def taken(kept):
    return [(*found[:3], found[3].tolist()) for found in kept.take()]


def test_models_come_back_by_neighbor_and_slot_once(kept):
    kept.keep(7, 0, 3, model(1))
    kept.keep(2, 1, 3, model(2))
    kept.keep(2, 0, 2, model(3))
    assert taken(kept) == [(2, 0, 2, [3.0] * 5), (2, 1, 3, [2.0] * 5), (7, 0, 3, [1.0] * 5)]
    assert taken(kept) == [] and not kept.lost


def test_a_later_model_of_a_neighbor_and_slot_takes_the_place_of_the_earlier(kept):
    kept.keep(2, 0, 2, model(1))
    kept.keep(4, 0, 2, model(2))
    kept.keep(2, 0, 3, model(5))
    assert taken(kept) == [(2, 0, 3, [5.0] * 5), (4, 0, 2, [2.0] * 5)]


def test_what_its_owner_changes_afterwards_is_kept_as_it_was(kept):
    buffer = model(1)
    kept.keep(2, 0, 0, buffer)
    buffer[:] = 9
    assert taken(kept) == [(2, 0, 0, [1.0] * 5)]


def test_in_memory_a_model_that_is_never_changed_is_not_copied():
    kept, shared = DeliveredModels(), model(1)
    shared.flags.writeable = False
    kept.keep(2, 0, 0, shared)
    assert next(kept.take())[3] is shared


def test_the_directory_shows_no_file(tmp_path):
    kept = DeliveredFile(tmp_path)
    kept.keep(2, 0, 0, model(1))
    assert [*tmp_path.iterdir()] == []
    kept.drop()
    kept.keep(3, 0, 0, model(2))
    assert taken(kept) == [(3, 0, 0, [2.0] * 5)]


def test_a_model_that_cannot_be_written_is_lost_with_a_warning(tmp_path, caplog):
    kept = DeliveredFile(tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        kept.keep(2, 0, 0, model(1))
    assert taken(kept) == [] and kept.lost == {2}
    assert "the model of peer 2 cannot be kept for the tests" in caplog.text


def test_a_file_that_was_cut_loses_its_last_model(tmp_path):
    kept = DeliveredFile(tmp_path)
    kept.keep(2, 0, 0, model(1))
    kept.keep(3, 0, 0, model(2))
    assert kept._file is not None
    kept._file.truncate(30)
    assert taken(kept) == [(2, 0, 0, [1.0] * 5)] and kept.lost == {3}
