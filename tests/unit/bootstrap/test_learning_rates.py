"""Schedules of the learning rate: their texts, their rates, and the sentences of errors."""

import json
import math

import pytest

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.learning_rates import RateSchedule, schedule_of
from coordinator_free_bootstrap.manifest import Manifest, canonical_json
from coordinator_free_bootstrap.settings import apply_settings, parse_manifest

KEYS = ["learning_rate_schedule", "final.learning_rate_schedule"]


def shares(text, count):
    return [schedule_of(text).share(index, count) for index in range(count)]


def test_a_constant_rate_is_the_whole_one():
    assert shares("constant", 4) == [1.0] * 4


def test_steps_multiply_the_rate_every_so_many_rounds():
    assert shares("step:factor=0.5,every=2", 5) == [1, 1, 0.5, 0.5, 0.25]
    assert shares("step:factor=0.5", 3) == [1, 0.5, 0.25]


def test_a_cosine_falls_from_the_whole_rate_and_would_reach_its_end_in_the_round_after_the_last_one():
    """SGDR (arXiv 1608.03983), Eq. 5, without restarts."""
    found = shares("cosine:end=0.2", 10)
    assert found == pytest.approx([0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * t / 10)) for t in range(10)])
    assert found[0] == 1.0 and found[5] == pytest.approx(0.6) and 0.2 < found[-1] < 0.25
    assert min(shares("cosine", 1000)) > 0


@pytest.mark.parametrize(
    ("after", "rest"),
    [("constant", [1, 1, 1]), ("step:factor=0.5", [1, 0.5, 0.25]), ("cosine", [1, 0.75, 0.25])],
)
def test_after_the_warm_up_a_schedule_begins_at_the_whole_rate(after, rest):
    text = f"{after}{',' if ':' in after else ':'}warm_up=3"
    assert shares(text, 6) == pytest.approx([0.25, 0.5, 0.75, *rest])
    assert shares(text, 2) == [0.25, 0.5], "a run that is shorter than its warm-up ends in it"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("constant:warm_up=0", "constant"),
        ("step:every=1,factor=.50", "step:factor=0.5"),
        ("step:every=05,factor=1e-1", "step:factor=0.1,every=5"),
        ("cosine:warm_up=3,end=0", "cosine:warm_up=3"),
        ("cosine:end=0.01", "cosine:end=0.01"),
    ],
)
def test_equal_schedules_have_equal_texts_and_manifests(text, canonical):
    assert str(schedule_of(text)) == canonical
    assert schedule_of(canonical) == schedule_of(text)
    for key in KEYS:
        written = [parse_manifest(apply_settings({}, [f"run.{key}={form}"]), "--set") for form in (text, canonical)]
        assert canonical_json(written[0]) == canonical_json(written[1])
        assert json.loads(canonical_json(written[0])) == written[0].model_dump()


@pytest.mark.parametrize(
    "text", ["constant", "step:factor=0.8,every=5", "cosine", "cosine:end=0.5", "constant:warm_up=2"]
)
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_a_schedule_changes_a_run_where_a_round_has_another_rate(text, count):
    assert schedule_of(text).changes(count) == any(share != 1 for share in shares(text, count))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            "linear",
            'expected constant, step or cosine, as in step:factor=0.8,every=5 or cosine:end=0.01,warm_up=10, got "linear"',
        ),
        ("", "expected constant, step or cosine"),
        ("a\nb", "expected constant, step or cosine"),
        ("cosine:", "expected cosine with end=..., warm_up=..., each at most once"),
        ("constant:every=2", "expected constant with warm_up=..., each at most once"),
        ("step:factor=0.5,factor=0.5", "expected step with factor=..., every=..., warm_up=..., each at most once"),
        ("step:every=2", "expected a factor, as in step:factor=0.8,every=5"),
        *(
            (f"step:factor={text}", "expected a number above 0 and below 1 as factor")
            for text in ("0", "1", "x", "nan")
        ),
        *((f"cosine:end={text}", "expected a number from 0 to below 1 as end") for text in ("1", "-1", "")),
        *(
            (f"step:factor=0.5,every={text}", "expected a whole number from 1 to 1000000 as every")
            for text in ("0", "1.5")
        ),
        ("cosine:warm_up=-1", "expected a whole number from 0 to 1000000 as warm_up"),
        ([0.8, 5], "expected a text, got a list"),
        (0.8, "expected a text, got 0.8"),
    ],
)
@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_schedule_is_one_sentence(key, value, sentence):
    section, _, leaf = key.rpartition(".")
    with pytest.raises(ConfigError) as caught:
        parse_manifest({section: {leaf: value}} if section else {leaf: value}, "g.json")
    assert str(caught.value).startswith(f"g.json: run.{key}: {sentence}")
    assert "\n" not in str(caught.value)


def test_the_defaults_are_constant():
    assert (
        schedule_of(Manifest().learning_rate_schedule)
        == RateSchedule()
        == schedule_of(Manifest().final.learning_rate_schedule)
    )
