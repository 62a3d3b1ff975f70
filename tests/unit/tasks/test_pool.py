"""Rotations are exact; images are scaled when a peer gathers them."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import TaskError
from peer.tasks.preprocessing import of_channels
from peer.zoo.tasks.pool import Pool, rotated

IMAGE = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=np.float32)


def test_quarter_turns_are_exact_and_counter_clockwise():
    images = np.stack([IMAGE] * 4)[:, None]
    turned = rotated(images.copy(), np.arange(4))[:, 0]
    assert turned[0].tolist() == IMAGE.tolist()
    assert turned[1].tolist() == [[3, 6, 9], [2, 5, 8], [1, 4, 7]]
    assert turned[2].tolist() == [[9, 8, 7], [6, 5, 4], [3, 2, 1]]
    assert turned[3].tolist() == [[7, 4, 1], [8, 5, 2], [9, 6, 3]]


def test_only_square_images_are_rotated():
    with pytest.raises(TaskError, match="square"):
        rotated(np.zeros((2, 1, 3, 4), np.float32), np.ones(2, int))
    rows = np.zeros((2, 5), np.float32)
    assert rotated(rows, np.zeros(2, int)) is rows


def test_gathered_bytes_are_standardized_and_the_pool_is_unchanged():
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    preprocessing = of_channels((0.1, 0.2, 0.3), (0.5, 0.25, 1.0))
    pool = Pool(x=x.copy(), y=np.zeros(2, int), train_count=2, classes=1, preprocessing=preprocessing)
    gathered = pool.gather(np.array([1, 0]), np.array([2, 0]))
    expected = (x[[1, 0]] / 255.0 - np.array([0.1, 0.2, 0.3])[:, None, None]) / np.array([0.5, 0.25, 1.0])[
        :, None, None
    ]
    expected[0] = np.rot90(expected[0], 2, axes=(-2, -1))
    np.testing.assert_allclose(gathered, expected, rtol=1e-5, atol=1e-6)
    assert gathered.dtype == np.float32
    assert np.array_equal(pool.x, x)
