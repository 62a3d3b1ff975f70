"""FedSPD with differential privacy: what the start refuses, what leaves a peer, and that the statement's terms are kept.

Method: one peer's algorithm, driven by hand through a round or two; `Privacy` by itself is in test_privacy.py.
"""

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms import labels, mixture
from peer.experiment.in_process import InProcess, LocalPeer
from tests.unit.algorithms.engines import said
from tests.unit.algorithms.test_fedspd import fedspd, graph_of

PRIVATE = {"dp_epsilon": 10.0, "min_cluster_samples": 5, "first_round": "paper"}
BOTH_SELVES = pytest.mark.parametrize("noisy_self", [True, False])


def peer_of(samples=50, **options) -> LocalPeer:
    split = {"samples_per_peer": samples, "test_per_peer": 20}
    return InProcess(graph_of(options=PRIVATE | options, split_options=split, local_unit="fullbatch_step")).peers[0]


def test_privacy_needs_a_public_floor():
    with pytest.raises(ConfigError, match="min_cluster_samples"):
        fedspd(graph_of(options={"dp_epsilon": 1.0}))


@pytest.mark.parametrize("how", ["random", "index_split"])
@pytest.mark.parametrize("dp_epsilon", [1.0, None])
def test_the_floor_holds_from_the_first_label_on(how, dp_epsilon):
    """20 samples for two clusters of 10 each: drawn labels do not divide so by themselves."""
    split = {"samples_per_peer": 20, "test_per_peer": 20}
    options = {"dp_epsilon": dp_epsilon, "min_cluster_samples": 10, "init_labels": how}
    run = InProcess(graph_of(options=options, split_options=split))
    drawn = [mixture.cluster_sizes(mixture.first_labels(how, 20, 2, 1, i), 2) for i in run.peers]
    assert any(min(sizes) < 10 for sizes in drawn)
    for peer in run.peers.values():
        assert mixture.cluster_sizes(peer.bench.arrays["z"], 2) == [10, 10]
        assert peer.bench.facts["mixture"] == [0.5, 0.5]


def test_a_shard_too_small_for_the_floor_is_refused():
    with pytest.raises(ConfigError, match=r"min_cluster_samples: found 10, but this peer has 19 .* allowed: up to 9"):
        peer_of(samples=19, min_cluster_samples=10)
    peer_of(samples=20, min_cluster_samples=10)
    peer_of(samples=19, min_cluster_samples=10, dp_epsilon=None)  # nothing is promised: as far as the samples go


@BOTH_SELVES
def test_only_noisy_models_leave_a_private_peer(noisy_self):
    peer = peer_of(noisy_self=noisy_self)
    bench, algorithm = peer.bench, peer.algorithm
    bench.facts = algorithm.assign(bench)
    slot = bench.facts["selected"]
    start = bench.models.model(slot).copy()
    clean, _ = bench.fit(start, bench.seed("train", slot), indices=np.flatnonzero(bench.arrays["z"] == slot), epochs=4)
    algorithm.train(bench)
    sent = algorithm.outgoing(bench, slot)
    assert np.linalg.norm(sent - clean) > 1
    assert algorithm.published(bench, slot) is sent
    assert algorithm.offers(bench.facts, 0, 0, 1, said(selected=slot))[0].sample_count == 1  # counts stay at home
    own = bench.models.model(slot)
    np.testing.assert_array_equal(own, sent if noisy_self else clean)
    assert ("each sent update of each round" if noisy_self else "first round only") in algorithm.notes(bench)[0]


@BOTH_SELVES
def test_what_is_sent_is_clipped_around_the_start_of_the_round(noisy_self):  # 37
    peer = peer_of(noisy_self=noisy_self, dp_epsilon=1e9, dp_clip=0.01)
    bench, algorithm = peer.bench, peer.algorithm
    for bench.round_index in range(3):
        bench.facts = algorithm.assign(bench)
        slot = bench.facts["selected"]
        start = bench.models.model(slot).copy()
        assert "train_loss" in algorithm.train(bench)
        moved = np.linalg.norm(algorithm.outgoing(bench, slot).astype(np.float64) - start)
        assert moved == pytest.approx(0.01, rel=1e-3)  # C, as training goes much further
        if not noisy_self:
            assert np.linalg.norm(bench.models.model(slot) - start) > 0.1


def test_sketches_of_a_clean_peer_are_those_of_its_noisy_models():
    peer = peer_of(noisy_self=False, first_round="all_clusters")
    bench, algorithm = peer.bench, peer.algorithm
    bench.facts = algorithm.assign(bench)
    algorithm.train(bench)
    sent = [algorithm.outgoing(bench, slot) for slot in range(2)]
    bench.facts = algorithm.close(bench)
    bench.round_index = 1
    assert algorithm.aligning(1)
    found = algorithm.assign(bench)["sketches"]
    reference, seed = bench.scratch["reference"], bench.manifest.seed
    clean = [bench.models.model(slot) for slot in range(2)]
    noisy, bare = (labels.pack(labels.sketch(m, reference, 256, seed)).hex() for m in (sent, clean))
    assert found == noisy != bare
