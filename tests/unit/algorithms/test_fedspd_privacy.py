"""FedSPD with differential privacy: options refused at the start, models and sketches sent, and the clipping norm.

Method: one peer's algorithm, driven by hand through a round or two; `Privacy` by itself is in test_privacy.py.
"""

from dataclasses import replace

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms import mixture, sketches
from tests.tools.simulated import Result, peers_of
from tests.unit.algorithms.messages import selection
from tests.unit.algorithms.test_fedspd import fedspd, graph_of

PRIVATE = {"dp_epsilon": 10.0, "min_cluster_samples": 5, "first_round": "paper"}
BOTH_SELVES = pytest.mark.parametrize("noisy_self", [True, False])


def peer_of(samples=50, **options) -> Result:
    split = {"samples_per_peer": samples, "test_per_peer": 20}
    return peers_of(graph_of(options=PRIVATE | options, split_options=split, batch_size="all"))[0]


def test_privacy_needs_min_cluster_samples():
    with pytest.raises(ConfigError, match="min_cluster_samples"):
        fedspd(graph_of(options={"dp_epsilon": 1.0}))


@pytest.mark.parametrize("how", ["random", "index_split"])
@pytest.mark.parametrize("dp_epsilon", [1.0, None])
def test_min_cluster_samples_holds_for_the_first_labels(how, dp_epsilon):
    """20 samples for two clusters of 10 each: random labels alone do not give these sizes."""
    split = {"samples_per_peer": 20, "test_per_peer": 20}
    options = {"dp_epsilon": dp_epsilon, "min_cluster_samples": 10, "init_labels": how}
    peers = peers_of(graph_of(options=options, split_options=split))
    drawn = [mixture.cluster_sizes(mixture.first_labels(how, 20, 2, 1, i), 2) for i in range(len(peers))]
    assert any(min(sizes) < 10 for sizes in drawn)
    for peer in peers:
        assert mixture.cluster_sizes(peer.state.z, 2) == [10, 10]
        assert peer.state.mixture == (0.5, 0.5)


def test_a_shard_too_small_for_min_cluster_samples_is_refused():
    with pytest.raises(ConfigError, match=r"min_cluster_samples: expected at most 9, got 10\. This peer has 19 "):
        peer_of(samples=19, min_cluster_samples=10)
    peer_of(samples=20, min_cluster_samples=10)
    peer_of(samples=19, min_cluster_samples=10, dp_epsilon=None)  # without privacy: as many as the samples allow


@BOTH_SELVES
def test_a_private_peer_sends_only_noisy_models(noisy_self):
    peer = peer_of(noisy_self=noisy_self)
    workspace, algorithm = peer.workspace, peer.algorithm
    workspace.state = algorithm.assign(workspace)
    slot = workspace.state.selected
    start = workspace.models.model(slot).copy()
    mine = np.flatnonzero(workspace.state.z == slot)
    clean, _ = workspace.fit(start, replace(workspace.slot_plan(slot), indices=mine, epochs=4))
    algorithm.train(workspace)
    sent = algorithm.outgoing(workspace, slot)
    assert np.linalg.norm(sent - clean) > 1
    assert algorithm.published(workspace, slot) is sent
    assert (
        algorithm.offers(workspace.state, 0, 0, 1, selection(selected=slot))[0].sample_count == 1
    )  # the true count is not sent
    own = workspace.models.model(slot)
    np.testing.assert_array_equal(own, sent if noisy_self else clean)
    assert ("each sent update of each round" if noisy_self else "first round only") in algorithm.notes(workspace)[0]


@BOTH_SELVES
def test_what_is_sent_is_clipped_around_the_start_of_the_round(noisy_self):
    peer = peer_of(noisy_self=noisy_self, dp_epsilon=1e9, dp_clip=0.01)
    workspace, algorithm = peer.workspace, peer.algorithm
    for workspace.round_index in range(3):
        workspace.state = algorithm.assign(workspace)
        slot = workspace.state.selected
        start = workspace.models.model(slot).copy()
        assert "train_loss" in algorithm.train(workspace)
        moved = np.linalg.norm(algorithm.outgoing(workspace, slot).astype(np.float64) - start)
        assert moved == pytest.approx(0.01, rel=1e-3)  # C: the unclipped update is much larger
        if not noisy_self:
            assert np.linalg.norm(workspace.models.model(slot) - start) > 0.1


def test_sketches_of_a_clean_peer_are_those_of_its_noisy_models():
    peer = peer_of(noisy_self=False, first_round="all_clusters")
    workspace, algorithm = peer.workspace, peer.algorithm
    workspace.state = algorithm.assign(workspace)
    algorithm.train(workspace)
    sent = [algorithm.outgoing(workspace, slot) for slot in range(2)]
    workspace.state = algorithm.close(workspace)
    workspace.round_index = 1
    assert algorithm.aligning(1)
    found = algorithm.assign(workspace).sketches
    reference, seed = workspace.scratch["reference"], workspace.manifest.seed
    clean = [workspace.models.model(slot) for slot in range(2)]
    noisy, bare = (sketches.sketch(m, reference, 256, seed) for m in (sent, clean))
    assert np.array_equal(found, noisy) and not np.array_equal(found, bare)
