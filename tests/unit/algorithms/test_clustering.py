"""K-means over models and the nearest center: pure functions."""

import numpy as np
import pytest

from peer.algorithms import clustering


def blobs(counts=(5, 4, 6), d=3000, apart=6.0):
    draw = np.random.default_rng(2)
    reference = draw.normal(size=d).astype(np.float32) * 5
    centers = [apart * draw.normal(size=d) / np.sqrt(d) for _ in counts]
    models = [
        (reference + center + draw.normal(size=d) / np.sqrt(d)).astype(np.float32)
        for center, count in zip(centers, counts, strict=True)
        for _ in range(count)
    ]
    return models, reference, np.repeat(range(len(counts)), counts)


def test_coordinates_keep_all_distances():
    models, reference, _ = blobs()
    points = clustering.coordinates(models, reference)
    for i, one in enumerate(models):
        for j, other in enumerate(models):
            exact = ((one.astype(np.float64) - other) ** 2).sum()
            assert ((points[i] - points[j]) ** 2).sum() == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_k_means_finds_groups_and_labels_persist_from_known_centers():
    models, reference, truth = blobs()
    points = clustering.coordinates(models, reference)
    found = clustering.k_means(points, 3, np.random.default_rng(0))
    assert len({(a, b) for a, b in zip(found, truth, strict=True)}) == 3
    known = np.stack([points[truth == k].mean(axis=0) for k in (2, 0, 1)])
    assert clustering.lloyd(points, known).tolist() == [[1, 2, 0][k] for k in truth]
    assert clustering.k_means(points[:2], 5, np.random.default_rng(0)).tolist() == [0, 1]


def test_an_emptied_cluster_gets_the_farthest_point():
    points = np.array([[0.0], [0.1], [0.2], [9.0]])
    found = clustering.lloyd(points, np.array([[0.0], [500.0]]))
    assert found.tolist() == [0, 0, 0, 1]
    same = np.zeros((4, 2))
    assert set(clustering.k_means(same, 2, np.random.default_rng(0)).tolist()) == {0}


def test_the_nearest_center_is_that_of_float64():
    models, _, truth = blobs()
    assert [clustering.nearest(model, [models[0], models[5], models[9]]) for model in models] == truth.tolist()
    assert clustering.nearest(models[0], [models[1], models[1]]) == 0
