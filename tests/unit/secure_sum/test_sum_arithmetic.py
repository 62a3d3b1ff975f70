"""Fixed point, masks and shared secrets against second opinions in Python's whole numbers."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator_free_bootstrap.errors import LocalProtocolError
from peer.secure_sum import arithmetic
from peer.secure_sum.arithmetic import PRIME, MaskedModel, factor, new_secret, plain, secret_of, shares_of
from peer.wire.frames import model_frames
from tests.tools.sums import counted, oracle

SEEDS = [bytes([n]) * 16 for n in range(4)]
values = st.floats(-16, 16, width=32)
MB = 1_000_000


def masked(model, scale, masks):
    """Return the values of a masked model, uint32 [d]."""
    return np.frombuffer(MaskedModel(model, scale, masks)[:], np.uint32)


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=3, max_size=8))
def test_a_sum_of_rounded_models_is_that_of_whole_numbers(rows):
    models = [np.array(row, np.float32) for row in rows]
    weights = dict.fromkeys(range(len(models)), 1.0)
    scale = factor(16.0, len(models)) / len(models)
    total = sum((masked(model, scale, []) for model in models), np.zeros(3, np.uint32))
    found = plain(total, factor(16.0, len(models)))
    assert found.tobytes() == oracle([(model, 1.0) for model in models], weights, 16.0).tobytes()
    steps = len(models) * 16.0 / (2**31 - len(models))
    assert np.allclose(found, np.mean(models, axis=0, dtype=np.float64), rtol=2**-23, atol=steps)


@pytest.mark.parametrize("neighbors", [3, 4, 500])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_values_of_all_neighbors_do_not_wrap(neighbors, sign):
    model, scale = np.full(2, sign * 16.0, np.float32), factor(16.0, neighbors) / neighbors
    total = np.zeros(2, np.uint32)
    for _ in range(neighbors):
        total += masked(model, scale, [])
    assert plain(total, factor(16.0, neighbors)) == pytest.approx(sign * 16.0)


@pytest.mark.parametrize("size", [1, arithmetic.BLOCK - 1, arithmetic.BLOCK, 2 * arithmetic.BLOCK + 3])
def test_masks_cancel_bit_by_bit_across_blocks(size):
    model = np.random.Generator(np.random.Philox(1)).normal(size=size).astype(np.float32)
    streams = [(SEEDS[0], 1), (SEEDS[1], -1), (SEEDS[2], 1)]
    total, bare = masked(model, 1e6, streams), masked(model, 1e6, [])
    assert not np.array_equal(total, bare)
    opened = plain(total, 1e6, [(seed, -sign) for seed, sign in streams])
    assert opened.tobytes() == (bare.view(np.int32) / 1e6).astype(np.float32).tobytes()
    assert np.shares_memory(opened, total)


@given(st.data())
def test_a_masked_model_is_the_same_bytes_however_it_is_cut(data):
    model = np.random.Generator(np.random.Philox(2)).normal(size=arithmetic.BLOCK + 9).astype(np.float32)
    payload = MaskedModel(model, 1e6, [(SEEDS[0], 1), (SEEDS[1], -1)])
    whole, cuts = bytes(payload[:]), st.integers(0, payload.nbytes)
    start, stop = sorted((data.draw(cuts), data.draw(cuts)))
    assert payload[start:stop] == whole[start:stop]


def test_a_mask_is_the_key_stream_of_aes_in_counter_mode():
    """NIST's F.5.1 has another counter; the key stream of key 0 at counter 0 is AES-128 of 16 zero bytes."""
    total = masked(np.zeros(4, np.float32), 1.0, [(bytes(16), 1)])
    assert total.tobytes().hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"


def test_neither_end_of_a_sum_makes_a_vector_of_its_size():
    """The masked vector was made before the push, and the mean beside the sum: 10 MB each."""
    model, masks = np.ones(10 * MB // 4, np.float32), [(seed, 1) for seed in SEEDS]
    total = np.zeros(model.size, np.uint32)
    tracemalloc.start()
    for frame, _ in model_frames(b"", MaskedModel(model, 1e6, masks), 1 << 20):
        assert len(frame) < 1.1 * (1 << 20)
    plain(total, 1e6, masks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * MB, f"{peak / MB:.1f} MB"


def test_a_masked_model_looks_uniform():
    """Chi-square of its bytes: 255 degrees of freedom, and 350 is passed once in ten thousand times."""
    for model in (np.zeros(100_000, np.float32), np.full(100_000, 15.0, np.float32)):
        counts = np.bincount(masked(model, 1e6, [(SEEDS[1], 1)]).view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 350
        bare = np.bincount(masked(model, 1e6, []).view(np.uint8), minlength=256)
        assert ((bare - expected) ** 2 / expected).sum() > 10_000, "the test notices a model without a mask"


@settings(max_examples=20)
@given(st.integers(0, PRIME - 1), st.integers(2, 9), st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not(number, count, data):
    threshold = data.draw(st.integers(2, count))
    secret = number.to_bytes(32)
    shares = shares_of(secret, range(1, count + 1), threshold, counted(number))
    for places in itertools.islice(itertools.combinations(shares, threshold), 10):
        assert secret_of({place: shares[place] for place in places}) == secret
        assert secret_of({place: shares[place] for place in places[1:]}) != secret
    assert secret_of(shares) == secret


def test_fewer_shares_fit_every_secret():
    """With one share less than needed, for any secret there are coefficients that give just these shares."""
    shares = shares_of((7).to_bytes(32), (1, 2, 3), 3, counted("free"))
    known = {1: shares[1], 2: shares[2]}
    for other in (0, 8, PRIME - 1):
        third = _through({0: other, **{place: int.from_bytes(share) for place, share in known.items()}}, 3)
        assert secret_of({**known, 3: third.to_bytes(32)}) == other.to_bytes(32)


def _through(points, at):
    """Return the value at a place of the polynomial through some points."""
    total = 0
    for place, value in points.items():
        above = below = 1
        for other in points:
            if other != place:
                above, below = above * (at - other) % PRIME, below * (place - other) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def test_a_share_at_the_place_of_the_secret_is_refused():
    with pytest.raises(LocalProtocolError, match="expected 1 or more, got"):
        secret_of({0: bytes(32), 1: bytes(32)})


def test_secrets_differ_and_are_in_the_field():
    random = counted("secrets")
    found = {new_secret(random) for _ in range(50)}
    assert len(found) == 50 and all(int.from_bytes(each) < PRIME for each in found)


def test_derived_keys_depend_on_each_part_and_where_it_ends():
    keys = {
        arithmetic.derived(b"k", "mask", b"ab", b"c"),
        arithmetic.derived(b"k", "mask", b"a", b"bc"),
        arithmetic.derived(b"k", "share", b"ab", b"c"),
        arithmetic.derived(b"j", "mask", b"ab", b"c"),
        arithmetic.derived(b"k", "mask", b"ab", b"c", b""),
    }
    assert len(keys) == 5
