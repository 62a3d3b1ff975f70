"""Each split follows its definition in the papers and is a pure function of its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.manifest import Manifest
from peer.zoo.tasks.splits import SPLITS, SplitInput, check_split, make_split

TRAIN, TEST, CLASSES = 6000, 1200, 10


def images(peers, **more):
    labels = np.random.default_rng(0).integers(0, CLASSES, TRAIN + TEST)
    return SplitInput(labels, TRAIN, peers, **more)


def two_sources(peers):
    return images(peers, source=np.arange(TRAIN + TEST) % 2)


def by_class(peers):
    return SplitInput(np.arange(62 * 100) % 62, 62 * 80, peers)


def by_writer(peers):
    return images(peers, group=np.arange(TRAIN + TEST) % 30)


CASES = {
    "iid": (images, {}),
    "rotated_hard": (images, {"k": 4}),
    "rotated_soft": (images, {}),
    "oddeven_rotated": (images, {}),
    "oddeven_steps": (images, {}),
    "mixture": (images, {"pattern": "30:70"}),
    "linear_synth": (two_sources, {"pattern": "linear"}),
    "letters_case": (by_class, {"clusters": 4, "pattern": "random"}),
    "dirichlet": (images, {"alpha": 0.5}),
    "patho": (images, {}),
    "two_class": (images, {}),
    "imbalance": (images, {"r": 5}),
    "pair_mixture": (two_sources, {"per_source": 2000}),
    "label_flip": (images, {"q": 0.25, "base": "iid"}),
    "writers": (by_writer, {"k": 4}),
    "by_column": (by_writer, {"by": "writer"}),
}


def parts(split):
    return (split.train, split.validation, split.test)


def test_every_split_has_a_case():
    assert set(CASES) == set(SPLITS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_split_is_a_function_of_its_arguments(name):
    make, options = CASES[name]
    first, again = (make_split(name, make(12), options, 5) for _ in range(2))
    assert len(first) == 12
    for a, b in zip(first, again, strict=True):
        for one, other in zip(parts(a), parts(b), strict=True):
            assert np.array_equal(one.index, other.index)
            assert np.array_equal(one.turns, other.turns)
            assert np.array_equal(one.cluster, other.cluster)
    if name not in ("writers", "by_column"):  # whose peers are the groups, whatever the seed
        different = make_split(name, make(12), options, 6)
        assert any(not np.array_equal(a.train.index, b.train.index) for a, b in zip(first, different, strict=True))


@pytest.mark.parametrize("name", sorted(CASES))
def test_training_and_test_samples_are_disjoint_and_rotated_by_quarter_turns(name):
    make, options = CASES[name]
    data = make(12)
    for split in make_split(name, data, options, 5):
        train, validation, test = (set(zip(p.index.tolist(), p.turns.tolist(), strict=True)) for p in parts(split))
        assert len(train) == len(split.train)
        assert not train & validation
        assert not {i for i, _ in train | validation} & {i for i, _ in test}
        assert {turn for p in (train, validation, test) for _, turn in p} <= {0, 1, 2, 3}
        if name != "two_class":  # which pools training and test images, as CGPFL does
            assert split.train.index.max() < data.train_count <= split.test.index.min()


@pytest.mark.parametrize("name", sorted(set(CASES) - {"rotated_hard"}))
def test_no_two_peers_have_one_training_sample(name):
    """rotated_hard copies images on purpose; in the other splits a sample belongs to one peer."""
    make, options = CASES[name]
    splits = make_split(name, make(12), options, 5)
    divided = np.concatenate([np.concatenate([s.train.index, s.validation.index]) for s in splits])
    assert len(divided) == len(set(divided.tolist()))


def test_rotated_hard_has_every_rotation_of_every_image_once():
    splits = make_split("rotated_hard", images(8), {"k": 4}, 0)
    for cluster in range(4):
        members = splits[cluster::4]
        divided = np.concatenate([s.train.index for s in members])
        assert sorted(divided.tolist()) == list(range(TRAIN))
        assert all((s.train.turns == cluster).all() and (s.train.cluster == cluster).all() for s in members)
        assert all((s.test.turns == cluster).all() for s in members)
        assert {len(s.train) for s in members} == {TRAIN // 2}


@pytest.mark.parametrize(
    ("options", "turns"),
    [({"k": 1}, [0]), ({"k": 2}, [0, 2]), ({"k": 4}, [0, 1, 2, 3]), ({"rotations": [0, 90, 270]}, [0, 1, 3])],
)
def test_rotations_of_the_clusters(options, turns):
    splits = make_split("rotated_hard", images(6), options, 0)
    assert [int(s.train.turns[0]) for s in splits] == [turns[i % len(turns)] for i in range(6)]


def test_rotated_soft_has_equal_sizes_and_equal_fractions_in_the_test_set():
    splits = make_split("rotated_soft", images(40), {}, 3)
    sizes = {len(s.train) for s in splits}
    assert len(sizes) == 1
    assert 0.85 * TRAIN / 40 <= sizes.pop() <= TRAIN / 40
    fraction = np.array([(s.train.cluster == 0).mean() for s in splits])
    test_fraction = np.array([(s.test.cluster == 0).mean() for s in splits])
    assert fraction.min() >= 0.09
    assert fraction.max() <= 0.91
    assert fraction.std() > 0.15  # U(0.1, 0.9) has 0.23
    assert np.abs(fraction - test_fraction).max() < 0.05
    assert all(((s.train.turns == 1) == (s.train.cluster == 1)).all() for s in splits)


def test_oddeven_rotated_has_four_latent_distributions():
    data = images(10)
    splits = make_split("oddeven_rotated", data, {}, 3)
    for s in splits:
        expected = 2 * (s.train.turns == 1) + data.labels[s.train.index] % 2
        assert np.array_equal(s.train.cluster, expected)
    assert {int(c) for s in splits for c in s.train.cluster} == {0, 1, 2, 3}


def even(data, samples):
    return (data.labels[samples.index] % 2 == 0).mean()


def test_oddeven_steps_has_five_mixtures_of_labels_in_turn():
    data = images(10)
    splits = make_split("oddeven_steps", data, {}, 3)
    np.testing.assert_allclose([even(data, s.train) for s in splits], [0.3, 0.4, 0.5, 0.6, 0.7] * 2, atol=0.01)
    np.testing.assert_allclose([even(data, s.test) for s in splits], [0.1, 0.3, 0.5, 0.7, 0.9] * 2, atol=0.02)
    assert len({len(s.train) for s in splits}) == 1
    for s in splits:
        rotated = s.train.turns == 1
        assert 0.4 < rotated.mean() < 0.6
        assert np.array_equal(s.train.cluster, 2 * rotated + data.labels[s.train.index] % 2)


def test_oddeven_steps_without_rotation_and_with_test_data_as_in_training():
    data = images(10)
    splits = make_split("oddeven_steps", data, {"rotation": 0, "step": 0.25, "test_step": 0.25}, 3)
    for part in ("train", "test"):
        shares = [even(data, getattr(s, part)) for s in splits]
        np.testing.assert_allclose(shares, [0.0, 0.25, 0.5, 0.75, 1.0] * 2, atol=0.02)
    assert {int(c) for s in splits for c in s.train.cluster} == {0, 1}
    assert not any(s.train.turns.any() for s in splits)
    with pytest.raises(TaskError, match=r"run.split_options.rotation: expected 0, 90, 180 or 270, got 45"):
        make_split("oddeven_steps", data, {"rotation": 45}, 3)


@pytest.mark.parametrize("base", ["rotated_soft", "oddeven_rotated"])
def test_imbalance_keeps_three_groups_in_proportion(base):
    splits = make_split("imbalance", images(12), {"r": 5, "base": base}, 0)
    sizes = np.array([len(s.train) for s in splits]).reshape(3, 4)
    assert all(len(set(group)) == 1 for group in sizes.tolist())
    np.testing.assert_allclose(sizes[:, 0] / sizes[0, 0], [1.0, 3.0, 5.0], rtol=0.05)


def test_mixture_patterns():
    half = make_split("mixture", two_sources(10), {"pattern": "10:90"}, 0)
    of_a = [(s.train.cluster == 0).mean() for s in half]
    np.testing.assert_allclose(of_a, [0.1, 0.9] * 5, atol=0.01)
    linear = make_split("mixture", two_sources(10), {"pattern": "linear"}, 0)
    np.testing.assert_allclose([(s.train.cluster == 0).mean() for s in linear], (np.arange(10) + 0.5) / 10, atol=0.01)
    assert all(100 <= len(s.train) <= 200 for s in [*half, *linear])
    many = SplitInput(np.zeros(9000, np.int64), 8000, 10, source=np.arange(9000) % 8)
    random = make_split("linear_synth", many, {"pattern": "random"}, 0)
    assert {int(c) for s in random for c in s.train.cluster} == set(range(8))


def test_letters_case_merges_the_alphabet():
    data = by_class(4)
    for clusters in (2, 4):
        for s in make_split("letters_case", data, {"clusters": clusters, "pattern": "random"}, 0):
            labels = data.labels[s.train.index]
            renamed = s.label_map[labels]
            assert np.array_equal(renamed, np.where(labels < 36, labels - 10, labels - 36))
            assert np.array_equal(s.train.cluster, 2 * (s.train.turns == 1) + (labels < 36))
    with pytest.raises(TaskError, match="byclass"):
        make_split("letters_case", images(4), {}, 0)


def test_dirichlet_has_its_minimum_and_holds_no_sample_out():
    data = images(20)
    splits = make_split("dirichlet", data, {"alpha": 0.3}, 0)
    for s in splits:
        assert len(s.train) >= 20 and not len(s.validation)
        train = np.bincount(data.labels[s.train.index], minlength=CLASSES) / len(s.train)
        test = np.bincount(data.labels[s.test.index], minlength=CLASSES) / len(s.test)
        assert np.abs(train - test).sum() < 0.4
    assert sum(len(s.train) + len(s.validation) for s in splits) == TRAIN
    spread = [(np.bincount(data.labels[s.train.index], minlength=CLASSES) > 0).sum() for s in splits]
    assert min(spread) < CLASSES


def test_patho_gives_each_peer_its_number_of_classes():
    data = images(20)
    for s in make_split("patho", data, {"classes_per_peer": 3}, 0):
        held = data.labels[np.concatenate([s.train.index, s.validation.index])]
        counts = np.bincount(held, minlength=CLASSES)
        assert (counts > 0).sum() == 3
        assert counts[counts > 0].min() >= 9  # 10, up to rounding of the cumulative shares


def test_two_class_has_pairs_of_classes_and_scaled_sizes():
    data = images(40)
    splits = make_split("two_class", data, {}, 0)
    for i, s in enumerate(splits):
        assert set(data.labels[s.train.index].tolist()) == {2 * i % 10, (2 * i + 1) % 10}
        assert (s.train.cluster == i % 5).all()
        assert len(s.train) / (len(s.train) + len(s.test)) == pytest.approx(0.75, abs=0.03)
    sizes = np.array([len(s.train) + len(s.test) for s in splits])
    assert sizes.sum() <= TRAIN + TEST
    assert sizes.max() / sizes.min() > 4  # of 400..5000


def test_label_flip_uses_one_common_permutation():
    splits = make_split("label_flip", images(20), {"q": 0.25, "base": "iid"}, 0)
    flipped = [s for s in splits if s.label_map is not None]
    assert len(flipped) == 5
    assert all(np.array_equal(s.label_map, flipped[0].label_map) for s in flipped)
    assert sorted(flipped[0].label_map) == list(range(CLASSES))
    assert not np.array_equal(flipped[0].label_map, np.arange(CLASSES))
    assert all((s.train.cluster == (s.label_map is not None)).all() for s in splits)


def test_each_peer_has_one_writer_rotated_by_cluster():
    data = by_writer(30)
    splits = make_split("writers", data, {"k": 4}, 0)
    for i, s in enumerate(splits):
        assert (data.group[s.train.index] == i).all()
        assert (s.train.turns == i % 4).all()
    with pytest.raises(TaskError, match="at most 30 peers, one for each writer, got 31"):
        make_split("writers", by_writer(31), {}, 0)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"writers", "two_class", "label_flip", "imbalance"}))
def test_sizes_and_validation_share_are_applied(name):
    make, options = CASES[name]
    options = {**options, "samples_per_peer": 60, "test_per_peer": 15, "validation": 0.25}
    if name in {"mixture", "linear_synth", "letters_case"}:
        options |= {"samples_min": 60}
    for s in make_split(name, make(8), options, 1):
        assert len(s.train) + len(s.validation) <= 60
        assert len(s.test) <= 15
        assert len(s.validation) == round(0.25 * (len(s.train) + len(s.validation)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("rotated", {}, "expected one of by_column, dirichlet.*got 'rotated'"),
        ("rotated_hard", {"k": 3}, "1, 2 or 4"),
        ("rotated_hard", {"clusters": 2}, "split_options.clusters"),
        ("rotated_hard", {"rotations": [0, 45]}, "rotations"),
        ("rotated_soft", {"rotation": 100}, "90, 180 or 270"),
        ("rotated_soft", {"fraction_min": 2}, "fraction_min"),
        ("mixture", {"pattern": "10-90"}, "pattern"),
        ("mixture", {"samples_min": 1.5}, "integer"),
        ("dirichlet", {"alpha": 0}, "alpha"),
        ("dirichlet", {"alpha": True}, "alpha"),
        ("dirichlet", {"samples_min": 3000}, "1000 draws"),
        ("patho", {"samples_min": 500}, "Use fewer peers"),
        ("imbalance", {"base": "iid"}, "base"),
        ("label_flip", {"base": "writers"}, "base"),
        ("pair_mixture", {}, "expected two data sets, got one"),
        ("writers", {}, "writers"),
        ("iid", {"validation": 0.95}, "validation"),
    ],
)
def test_wrong_splits_and_options_are_task_errors(name, options, words):
    with pytest.raises(TaskError, match=words):
        make_split(name, images(12), options, 0)


def test_too_many_peers_are_refused():
    with pytest.raises(TaskError, match="Use fewer peers"):
        make_split("iid", images(TEST + 1), {}, 0)
    with pytest.raises(TaskError, match="expected 4 or more peers"):
        make_split("rotated_hard", images(3), {"k": 4}, 0)


def test_by_column_deals_values_in_order_and_needs_one_per_peer():
    data = by_writer(12)  # 30 values
    for i, split in enumerate(make_split("by_column", data, {"by": "writer"}, 0)):
        for part in (split.train, split.test):
            assert set(data.group[part.index]) == set(range(i, 30, 12))
    with pytest.raises(TaskError, match="expected one value per peer or more, got 30 different values for 31 peers"):
        make_split("by_column", by_writer(31), {"by": "writer"}, 0)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_default_is_what_the_split_does_where_nothing_is_given(name):
    """`peer list`, `peer graph check` and docs/your-own-task.md take the options from the same declaration."""
    make, given = CASES[name]
    fields = SPLITS[name].options.model_fields
    defaults = {key: field.default for key, field in fields.items() if field.default is not None}
    for bare, full in zip(
        make_split(name, make(12), given, 5), make_split(name, make(12), {**defaults, **given}, 5), strict=True
    ):
        np.testing.assert_array_equal(bare.train.index, full.train.index)
        np.testing.assert_array_equal(bare.test.index, full.test.index)
    assert all(field.description for field in fields.values())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("rotated_hard", {"k": 4, "rotations": [0, 90]}, "split_options.k: expected no value .*rotations lists them"),
        ("writers", {"k": 2, "rotations": [0, 90]}, "split_options.k: expected no value"),
        ("label_flip", {"base": "patho", "alpha": 5.0}, "alpha: expected no value .*base is patho.*got 5.0. Remove it"),
        ("label_flip", {"classes_per_peer": 2}, "classes_per_peer: expected no value .*base is dirichlet"),
        ("label_flip", {"base": "iid", "samples_min": 2}, "samples_min: expected no value .*base is iid"),
        ("rotated_soft", {"fraction_min": 0.95}, r"fraction_max: expected fraction_min \(0.95\) or more, got 0.9"),
        (
            "mixture",
            {"samples_min": 50, "samples_max": 40},
            r"samples_max: expected samples_min \(50\) or more, got 40",
        ),
        ("dirichlet", {"alhpa": 1}, r"alhpa: expected an option of split 'dirichlet', got .*did you mean alpha"),
    ],
)
def test_an_option_without_effect_or_out_of_order_is_refused_before_data_are_read(name, options, words):
    """Before, values were checked when samples were dealt, and k beside rotations not at all."""
    with pytest.raises(TaskError, match=words):
        check_split(Manifest(split=name, split_options=options))


def test_a_larger_least_size_raises_the_largest_and_whole_floats_are_integers():
    assert SPLITS["mixture"].options.of({"samples_min": 300.0}, "mixture").samples_max == 300
