"""Keys of ``run`` that an algorithm does not use: each of them is a key, and one that is set is refused with a sentence."""

from operator import attrgetter

import pytest

from coordinator_free_bootstrap import Manifest, make_graph
from coordinator_free_bootstrap.errors import ConfigError
from peer.algorithms.registry import algorithms, check_algorithm
from peer.lab.spec import load_experiment

SET = {"mix": "metropolis", "aggregation": "batch", "screening": {"trimmed_mean": 0.2}}
UNUSED = [(name, key) for name, algorithm in sorted(algorithms().items()) for key in algorithm.unused_keys]


def graph_of(name, **run):
    return make_graph("line", 3, manifest=Manifest(algorithm=name, **run))


@pytest.mark.parametrize(("name", "key"), UNUSED)
def test_a_key_without_effect_is_refused_where_it_is_set(name, key):
    section = key.partition(".")[0]
    check_algorithm(graph_of(name))
    check_algorithm(graph_of(name, **{section: attrgetter(section)(Manifest())}))
    with pytest.raises(
        ConfigError, match=rf"run\.{key}: expected .* with algorithm '{name}', where the key has no effect, got "
    ):
        check_algorithm(graph_of(name, **{section: SET[section]}))


def test_dpfl_and_fedsoft_name_theirs_and_others_take_the_same_keys():
    assert set(UNUSED) == {
        ("dpfl", "mix"),
        ("dpfl", "aggregation"),
        ("dpfl", "screening.trimmed_mean"),
        ("fedsoft", "mix"),
    }
    check_algorithm(graph_of("dfca", **SET))


def test_an_experiment_file_with_such_a_key_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'title = "a"\nsource = "this test"\npeers = 4\ntrain_samples = 240\ntest_samples = 80\n[graph]\nkind = "complete"\n'
        '[run]\naggregation = "batch"\n[[case]]\nname = "a"\nrun = { algorithm = "dpfl" }\n'
    )
    with pytest.raises(ConfigError, match=r"case 'a': run\.aggregation: expected .*, got 'batch'"):
        load_experiment(path)
