"""Labels of samples, mixture weights, and the selection of a cluster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from peer.algorithms import mixture


@pytest.mark.parametrize("u", [[0.2, 0.5, 0.3], [0.05, 0.95], [1.0, 0.0]])
def test_selection_frequencies_match_the_mixture(u):
    chosen = [mixture.select_cluster(u, 0.0, 7, t, peer) for t in range(200) for peer in range(20)]
    counts = np.bincount(chosen, minlength=len(u))
    possible = np.array(u) > 0
    assert not counts[~possible].any()
    assert not possible.sum() > 1 or chisquare(counts[possible], np.array(u)[possible] * 4000).pvalue > 0.001


def test_with_u_min_an_empty_cluster_is_selected_too():
    chosen = np.bincount([mixture.select_cluster([1.0, 0.0], 0.25, 7, t, 0) for t in range(2000)], minlength=2)
    assert chisquare(chosen, [1600, 400]).pvalue > 0.001


def test_selection_is_a_function_of_its_arguments():
    first = [mixture.select_cluster([0.5, 0.5], 0.0, 7, t, 3) for t in range(50)]
    assert first == [mixture.select_cluster([0.5, 0.5], 0.0, 7, t, 3) for t in range(50)]
    assert first != [mixture.select_cluster([0.5, 0.5], 0.0, 8, t, 3) for t in range(50)]
    assert first != [mixture.select_cluster([0.5, 0.5], 0.0, 7, t, 4) for t in range(50)]


@pytest.mark.parametrize(("peers", "clusters", "sizes"), [(100, 2, [50, 50]), (12, 4, [3] * 4), (25, 2, [12, 13])])
def test_a_partition_has_as_many_peers_for_each_cluster(peers, clusters, sizes):
    rounds = [
        tuple(mixture.partition_cluster(clusters, 7, t, place, peers) for place in range(peers)) for t in range(20)
    ]
    assert all(sorted(np.bincount(chosen, minlength=clusters)) == sizes for chosen in rounds)
    assert len(set(rounds)) == 20, "each round has its own partition"


def test_a_partition_gives_every_peer_every_cluster_alike():
    chosen = np.bincount([mixture.partition_cluster(2, 7, t, 3, 10) for t in range(2000)], minlength=2)
    assert chisquare(chosen).pvalue > 0.001
    other = [mixture.partition_cluster(2, 8, t, 3, 10) for t in range(50)]
    assert other != [mixture.partition_cluster(2, 7, t, 3, 10) for t in range(50)]


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 20), st.integers(0, 2**32))
def test_clusters_partition_the_samples_and_reach_the_least_size_if_possible(clusters, count, least, seed):
    losses = np.random.default_rng(seed).random((clusters, count)).astype(np.float32)
    labels = mixture.nearest(losses, least)
    sizes = mixture.cluster_sizes(labels, clusters)
    assert sum(sizes) == count and sum(mixture.mixture_weights(labels, clusters)) == pytest.approx(1)
    if count >= clusters * least:
        assert min(sizes) >= least
    if least == 0:
        np.testing.assert_array_equal(labels, losses.argmin(axis=0))


def test_the_samples_of_least_extra_loss_leave_the_largest_cluster():
    losses = np.array([[0.0, 0.0, 0.0, 0.0], [0.4, 0.1, 0.3, 0.2]])
    np.testing.assert_array_equal(mixture.nearest(losses, 2), [0, 1, 0, 1])


def test_filling_clusters_does_not_change_the_given_labels():
    labels = np.array([0, 0, 0, 0, 1])
    np.testing.assert_array_equal(mixture.fill_clusters(labels, np.zeros((2, 5)), 2), [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(labels, [0, 0, 0, 0, 1])


def test_ties_go_to_the_lowest_index():
    np.testing.assert_array_equal(mixture.nearest(np.zeros((3, 4))), [0, 0, 0, 0])


def test_first_labels_are_random_and_differ_between_peers():
    random = [mixture.first_labels("random", 300, 3, 1, peer) for peer in (0, 1)]
    assert not np.array_equal(*random) and chisquare(np.bincount(random[0], minlength=3)).pvalue > 0.001
    np.testing.assert_array_equal(random[0], mixture.first_labels("random", 300, 3, 1, 0))
    split = mixture.first_labels("index_split", 3000, 3, 1, 0).reshape(3, 1000)
    assert [(part == s).mean() for s, part in enumerate(split)] == pytest.approx([2 / 3] * 3, abs=0.05)
    assert set(mixture.first_labels("index_split", 10, 1, 1, 0)) == {0}


def test_losses_centered_by_class_divide_within_classes_and_not_by_class():
    classes = np.repeat([0, 1], 20)
    hidden = np.tile(np.arange(20) < 14, 2)  # the distribution of each sample, the same share in both classes
    preference = np.where(classes == 0, -3.0, 3.0)  # center 0 has low loss on class 0
    difference = preference + np.where(hidden, -0.5, 0.5)
    losses = np.stack([4.0 + difference / 2, 4.0 - difference / 2])
    np.testing.assert_array_equal(mixture.nearest(losses), classes)
    np.testing.assert_array_equal(mixture.nearest(mixture.center_by_class(losses, classes)), np.where(hidden, 0, 1))


def test_a_group_that_decides_the_label_explains_it():
    classes, labels = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 1, 0, 0, 1])
    assert mixture.explained(classes, labels, 2) == 1.0
    assert mixture.explained(np.zeros(6, np.int64), labels, 2) == 4 / 6
    assert mixture.division(labels, 2, true=None, classes=None) == {}
    assert mixture.division(labels, 2, true=classes, classes=labels) == {
        "confusion": [[0, 3], [2, 0], [0, 1]],
        "class_explains": 1.0,
    }


def test_confusion_counts_every_sample():
    table = mixture.confusion(np.array([0, 0, 2, 2]), np.array([1, 1, 0, 1]), 2)
    assert table == [[0, 2], [0, 0], [1, 1]]
