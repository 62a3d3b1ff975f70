"""The manifest: canonical text and digest, limits and order of values, and the sentences of errors."""

import json

import pytest

from coordinator_free_bootstrap.errors import ConfigError
from coordinator_free_bootstrap.gone import GONE
from coordinator_free_bootstrap.manifest import Manifest, Timeouts, canonical_json, digest
from coordinator_free_bootstrap.settings import Difference, apply_settings, diff, known_keys, parse_manifest


def test_canonical_json_is_sorted_compact_and_complete():
    text = canonical_json(Manifest(options={"b": 1, "a": [True, None, "ü"]}))
    value = json.loads(text)
    assert set(value) == set(Manifest.model_fields)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert text.isascii()
    assert Manifest.model_validate_json(text) == Manifest(options={"a": [True, None, "ü"], "b": 1})


def test_equal_values_have_equal_digests():
    written = parse_manifest({"rounds": 60, "learning_rate": 1, "timeouts": {"suspicion_s": 5}}, "g.json")
    assert digest(written) == digest(Manifest(learning_rate=1.0))
    assert digest(written) != digest(Manifest(learning_rate=1.0, rounds=61))


@pytest.mark.parametrize(
    ("timeouts", "keys"),
    [
        ({"suspicion_s": 600.5}, ("suspicion_s 600.5", "round_deadline_s 600")),
        ({"round_deadline_s": 4.5}, ("suspicion_s 5", "round_deadline_s 4.5")),
    ],
)
def test_timeouts_in_wrong_order_are_refused_by_key(timeouts, keys):
    with pytest.raises(ConfigError) as caught:
        parse_manifest({"timeouts": timeouts}, "g.json")
    assert str(caught.value).startswith("g.json: run.timeouts: expected ")
    assert all(key in str(caught.value) for key in keys)
    assert caught.value.exit_code == 10


@pytest.mark.parametrize("key", GONE)
def test_a_key_that_is_gone_is_named_in_a_file_and_in_a_setting_with_what_replaces_it(key):
    run, *path = key.split(".")
    value: object = 3
    for name in reversed(path):
        value = {name: value}
    sentence = f"{key}: expected no such key, got 3. {GONE[key]}"
    with pytest.raises(ConfigError) as caught:
        parse_manifest(value, "g.json")
    assert str(caught.value) == f"g.json: {sentence}"
    with pytest.raises(ConfigError) as caught:
        apply_settings({}, [f"{key}=3"])
    assert str(caught.value) == f"--set {sentence}"
    assert key not in known_keys() and run == "run"


def test_all_keys_of_a_section_that_is_gone_are_named():
    with pytest.raises(ConfigError) as caught:
        apply_settings({}, ['run.lockstep={"wait_rounds_behind": 8, "rate_window_rounds": 8}'])
    first, second = str(caught.value).splitlines()
    assert first.startswith("--set run.lockstep.wait_rounds_behind: expected no such key, got 8. ")
    assert second.startswith("--set run.lockstep.rate_window_rounds: expected no such key, got 8. ")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            [100],
            "expected a number, all, or [samples of a step, samples at a time] with no more at a time than in a step",
        ),
        ([16, 128], "expected a number, all, or [samples of a step, samples at a time] with no more at a time"),
        ([16, "all"], "expected a number, all, or [samples of a step, samples at a time]"),
        (["all", "all"], "expected a number, all, or [samples of a step, samples at a time]"),
        (0, "expected at least 1, all or a list, got 0"),
        ("most", 'expected an integer, all or a list, got "most"'),
    ],
)
def test_a_wrong_batch_size_is_one_sentence(value, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_manifest({"batch_size": value}, "g.json")
    assert str(caught.value).startswith(f"g.json: run.batch_size: {sentence}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "step"), [(16, 16), ("all", "all"), ([128, 16], 128), (["all", 16], "all"), ([8, 8], 8)]
)
def test_the_samples_of_a_step_are_the_first_of_a_batch_size_in_parts(value, step):
    assert parse_manifest({"batch_size": value}, "g.json").step_samples == step
    assert parse_manifest(apply_settings({}, [f"run.batch_size={json.dumps(value)}"]), "--set").batch_size == value


def test_every_key_has_a_description():
    sections = {"run.start", "run.timeouts", "run.limits", "run.screening", "run.final", "run.privacy", "run.outer"}
    assert {key for key, description in known_keys().items() if not description} == sections


def test_timeouts_in_order_may_be_equal():
    assert Timeouts(suspicion_s=4, round_deadline_s=4).suspicion_s == 4


def test_heartbeat_and_idle_time_follow_from_the_suspicion_time():
    default = Timeouts()
    assert (default.heartbeat_s, default.suspicion_s, default.idle_transfer_s) == (1.0, 5.0, 10.0)
    assert Timeouts(suspicion_s=225.0).heartbeat_s == 45.0
    assert Timeouts(suspicion_s=5.0, round_deadline_s=8.0).idle_transfer_s == 8.0, "no longer than the round"
    assert set(default.model_dump()) == {"suspicion_s", "round_deadline_s"}


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ({"rounds": 0}, "g.json: run.rounds: expected at least 1, got 0"),
        ({"rounds": "60"}, 'g.json: run.rounds: expected an integer, got "60"'),
        ({"rounds": True}, "g.json: run.rounds: expected an integer, got true"),
        ({"pace": "fast"}, 'g.json: run.pace: expected lockstep or async, got "fast"'),
        ({"clusterz": 4}, "g.json: run.clusterz: expected no such key, got 4 (did you mean clusters or outer?)"),
        (
            {"timeouts": {"suspicion": 4}},
            "g.json: run.timeouts.suspicion: expected no such key, got 4 (did you mean suspicion_s?)",
        ),
        (
            {"start": {"wait_for": 1.5}},
            "g.json: run.start.wait_for: expected all, everyone, deadline, never_alone or at most 1, got 1.5",
        ),
        (
            {"start": {"wait_for": "some"}},
            'g.json: run.start.wait_for: expected all, everyone, deadline, never_alone or a number, got "some"',
        ),
        ({"options": {"x": {}}}, "g.json: run.options.x: expected true or false, an integer, a number"),
        ({"options": {"x": float("inf")}}, "g.json: run.options.x: expected "),
        ({"learning_rate": 10**400}, "g.json: run.learning_rate: expected "),
        ([], "g.json: run: expected an object, got a list"),
    ],
)
def test_a_wrong_value_is_one_sentence(run, sentence):
    with pytest.raises(ConfigError) as caught:
        parse_manifest(run, "g.json")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_every_wrong_key_gets_its_own_line():
    with pytest.raises(ConfigError) as caught:
        parse_manifest({f"key{i}": i for i in range(12)} | {"rounds": 0}, "g.json")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert all(line.startswith("g.json: ") for line in lines)
    assert lines[-1] == "g.json: and 3 more problems"


def test_an_unknown_key_cannot_forge_a_line():
    with pytest.raises(ConfigError) as caught:
        parse_manifest({"a\nb.json: run": 1}, "g.json")
    assert "\n" not in str(caught.value)


def test_settings_are_applied_to_a_copy():
    run = {"rounds": 5, "timeouts": {"round_deadline_s": 60}}
    settings = [
        "run.clusters=3",
        "run.clusters=4",
        "run.task=my.py:task=1",
        "run.options.warmup_rounds=8",
        "run.options.dotted.name=true",
        "run.timeouts.suspicion_s=3",
        "run.model=null",
        "run.task_options.path=NaN",
        'run.federation="7"',
    ]
    assert apply_settings(run, settings) == {
        "rounds": 5,
        "clusters": 4,
        "task": "my.py:task=1",
        "options": {"warmup_rounds": 8, "dotted.name": True},
        "timeouts": {"round_deadline_s": 60, "suspicion_s": 3},
        "model": None,
        "task_options": {"path": "NaN"},
        "federation": "7",
    }
    assert run == {"rounds": 5, "timeouts": {"round_deadline_s": 60}}


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("run.clusters", "expected key=value"),
        ("clusters=4", "did you mean run.clusters?"),
        ("run.clustres=4", "run.clusters"),
        ("run.suspicion_s=4", "did you mean run.timeouts.suspicion_s?"),
        ("run.options.=4", "run.options"),
        ("run.rounds.x=4", "run.rounds"),
        ("=4", "known: run.federation"),
    ],
)
def test_an_unknown_setting_lists_similar_keys(setting, hint):
    with pytest.raises(ConfigError) as caught:
        apply_settings({}, [setting])
    assert hint in str(caught.value)


def test_a_setting_inside_a_value_that_is_not_an_object_is_refused():
    with pytest.raises(ConfigError, match=r"run\.timeouts: expected an object.*, got 3"):
        apply_settings({"timeouts": 3}, ["run.timeouts.suspicion_s=4"])


def test_every_known_key_can_be_set():
    defaults = json.loads(canonical_json(Manifest()))
    for key in known_keys():
        _, *path = key.split(".")
        value = defaults[path[0]] if len(path) == 1 else defaults[path[0]][path[1]]
        assert parse_manifest(apply_settings({}, [f"{key}={json.dumps(value)}"]), "--set") == Manifest()


def test_diff_names_each_key_with_both_values():
    ours = Manifest(clusters=2, options={"warmup_rounds": 8, "same": 1})
    theirs = Manifest(clusters=4, options={"relay": [1, "a"], "same": 1}, timeouts=Timeouts(suspicion_s=6.0))
    assert diff(canonical_json(ours), canonical_json(theirs)) == [
        Difference("run.clusters", "2", "4"),
        Difference("run.options.relay", "absent", '[1, "a"]'),
        Difference("run.options.warmup_rounds", "8", "absent"),
        Difference("run.timeouts.suspicion_s", "5.0", "6.0"),
    ]
    assert diff(canonical_json(ours), canonical_json(ours)) == []


@pytest.mark.parametrize("theirs", ["", "{", "[1]", "3", "NaN", '{"a":1,"a":2}', "[" * 100_000, "9" * 5000])
def test_diff_of_any_neighbor_text_is_one_difference(theirs):
    (difference,) = diff(canonical_json(Manifest()), theirs)
    assert difference.key == "run"


def test_diff_of_neighbor_values_is_short_and_printable():
    theirs = json.dumps({"x\ny": "z" * 10_000, "deep": [[[]]], "clusters": {"a": {"b": {}}}})
    for difference in diff(canonical_json(Manifest()), theirs):
        assert len(difference.theirs) <= 80
        assert (difference.key + difference.theirs).isprintable()


def test_diff_finds_a_difference_behind_the_shown_part():
    (difference,) = diff(canonical_json(Manifest(task="a" * 200 + "b")), canonical_json(Manifest(task="a" * 200 + "c")))
    assert difference.key == "run.task"
