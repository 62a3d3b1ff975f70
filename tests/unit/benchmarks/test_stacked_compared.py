"""The benchmark of stacked training compares two runs that end with the same models, up to rounding."""

import training


def test_both_forms_end_with_the_same_models():
    peers, alone, together, ratio, difference, share = training.compare(6, rounds=1, repeats=1, threads=1)
    assert peers == 6
    assert min(map(float, (alone, together, ratio))) > 0
    assert float(difference) < 1e-4 and float(share) < 1e-2


def test_the_models_were_trained():
    graph = training.graph_of(6, rounds=1)
    ended = training.run(graph, stacked=True, threads=1)
    assert ended.models.shape == (6, 784 * 200 + 200 + 200 * 10 + 10)
    assert abs(ended.models - ended.start).max() > 1e-2
