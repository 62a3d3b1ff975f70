"""The check of a hello reports the first mismatch with both values."""

from dataclasses import replace

import pytest

from coordinator_free_bootstrap import Manifest, Timeouts, canonical_json, check_hello, digest, remarks
from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.messages import Hello, Phase

MANIFEST = Manifest()
MINE = Hello(
    sender=1,
    incarnation=5,
    wire_version=1,
    manifest_digest=digest(MANIFEST),
    graph_digest="graph-a",
    schema_digest="schema-a",
    frozen_digest="frozen-a",
    initial_models_digest="models-a",
    round_index=0,
    phase=Phase.STARTING,
    manifest=canonical_json(MANIFEST),
    meaning='{"kind":"regression","tensors":["w [2]"]}',
)
THEIRS = replace(MINE, sender=2, incarnation=9)


def with_manifest(manifest):
    return replace(THEIRS, manifest=canonical_json(manifest), manifest_digest=digest(manifest))


def test_equal_hellos_are_accepted():
    assert check_hello(MINE, THEIRS, neighbors=(2, 3)) is None
    assert check_hello(MINE, THEIRS, neighbors={2}, last_incarnation=9) is None


@pytest.mark.parametrize(
    ("changes", "refusal", "values"),
    [
        ({"sender": 4}, RefusalCode.NOT_A_NEIGHBOR, ("peer 4", "[2, 3]")),
        ({"sender": 1}, RefusalCode.NOT_A_NEIGHBOR, ("peer 1",)),
        (
            {"wire_version": 2},
            RefusalCode.WIRE_VERSION,
            ("peer 1 has 1", "peer 2 has 2", "upgrade peer 1 to the release of peer 2"),
        ),
        ({"incarnation": 8}, RefusalCode.OLD_INCARNATION, ("expected 9 or higher", "got 8", "Use 10")),
        ({"graph_digest": "graph-b"}, RefusalCode.GRAPH_MISMATCH, ('peer 1 has "graph-a"', 'peer 2 has "graph-b"')),
        (
            {"meaning": '{"kind":"multilabel"}'},
            RefusalCode.MEANING_MISMATCH,
            ("kinds of targets differ: peer 1 has regression, peer 2 has multilabel",),
        ),
        ({"meaning": ""}, RefusalCode.MEANING_MISMATCH, ("peer 2 has no record",)),
        ({"schema_digest": "schema-b"}, RefusalCode.SCHEMA_MISMATCH, ('"schema-a"', '"schema-b"')),
        (
            {"frozen_digest": "frozen-b"},
            RefusalCode.FROZEN_MISMATCH,
            ('frozen weights differ: peer 1 has "frozen-a"', '"frozen-b"'),
        ),
        ({"frozen_digest": ""}, RefusalCode.FROZEN_MISMATCH, ('peer 2 has ""', "base model")),
        ({"initial_models_digest": ""}, RefusalCode.INITIAL_MODELS_MISMATCH, ('"models-a"', 'peer 2 has ""')),
    ],
)
def test_a_mismatch_is_refused_with_both_values(changes, refusal, values):
    found = check_hello(MINE, replace(THEIRS, **changes), neighbors=(2, 3), last_incarnation=9)
    assert found is not None
    assert found.code is refusal
    assert all(value in found.reason for value in values)


def test_a_manifest_mismatch_names_each_key_with_both_values():
    other = Manifest(clusters=4, timeouts=Timeouts(suspicion_s=7.0), options={"warmup_rounds": 8})
    found = check_hello(MINE, with_manifest(other), neighbors=(2,))
    assert found.code is RefusalCode.MANIFEST_MISMATCH
    assert MINE.manifest_digest in found.reason
    assert digest(other) in found.reason
    assert "run.clusters: peer 1 has 2, peer 2 has 4" in found.reason
    assert "run.timeouts.suspicion_s: peer 1 has 5.0, peer 2 has 7.0" in found.reason
    assert "run.options.warmup_rounds: peer 1 has absent, peer 2 has 8" in found.reason


def test_both_peers_report_the_same_difference():
    other = with_manifest(Manifest(clusters=4))
    at_me = check_hello(MINE, other, neighbors=(2,)).reason
    at_them = check_hello(other, MINE, neighbors=(1,)).reason
    assert "run.clusters: peer 1 has 2, peer 2 has 4" in at_me
    assert "run.clusters: peer 2 has 4, peer 1 has 2" in at_them


def test_a_digest_of_another_manifest_is_a_mismatch():
    found = check_hello(MINE, replace(THEIRS, manifest_digest="0"), neighbors=(2,))
    assert found.code is RefusalCode.MANIFEST_MISMATCH
    assert "no key differs" in found.reason


@pytest.mark.parametrize(
    "manifest", ["", "[" * 50_000, '{"a\\nb": 1}', str({f"k{i}": i for i in range(99)}).replace("'", '"')]
)
def test_a_reason_is_one_short_printable_line_for_any_manifest_text(manifest):
    theirs = replace(THEIRS, manifest_digest="x\n" * 10_000, manifest=manifest)
    found = check_hello(MINE, theirs, neighbors=(2,))
    assert found.code is RefusalCode.MANIFEST_MISMATCH
    assert found.reason.isprintable()
    assert len(found.reason) < 2500


def test_checks_run_in_the_documented_order():
    wrong = replace(
        THEIRS,
        sender=4,
        wire_version=2,
        incarnation=0,
        graph_digest="",
        meaning="",
        schema_digest="",
        frozen_digest="",
    )
    steps = [
        ({"sender": 2}, RefusalCode.NOT_A_NEIGHBOR),
        ({"wire_version": 1}, RefusalCode.WIRE_VERSION),
        ({"incarnation": 9}, RefusalCode.OLD_INCARNATION),
        ({"graph_digest": "graph-a"}, RefusalCode.GRAPH_MISMATCH),
        ({"meaning": MINE.meaning}, RefusalCode.MEANING_MISMATCH),
        ({"schema_digest": "schema-a"}, RefusalCode.SCHEMA_MISMATCH),
        ({"frozen_digest": "frozen-a"}, RefusalCode.FROZEN_MISMATCH),
    ]
    for repair, refusal in steps:
        assert check_hello(MINE, wrong, neighbors=(2,), last_incarnation=9).code is refusal
        wrong = replace(wrong, **repair)
    assert check_hello(MINE, wrong, neighbors=(2,), last_incarnation=9) is None


@pytest.mark.parametrize("digest_of", ["schema_digest", "initial_models_digest", "frozen_digest"])
def test_other_models_are_refused_with_what_may_be_the_cause(digest_of):
    meaning = '{"kind":"regression","tensors":["w [3]"],"task_file":"b","versions":"torch 9"}'
    theirs = replace(THEIRS, meaning=meaning, **{digest_of: "other"})
    reason = check_hello(MINE, theirs, neighbors=(2,)).reason
    assert 'tensors of a model differ: peer 1 has ["w [2]"], peer 2 has ["w [3]"]' in reason
    assert "task files (SHA-256) differ" in reason and "library versions differ" in reason


def test_what_may_be_meant_is_accepted_and_remarked():
    theirs = replace(THEIRS, meaning='{"kind":"regression","tensors":["w [2]"],"loss":"own"}')
    assert check_hello(MINE, theirs, neighbors=(2,)) is None
    assert [sentence.partition(":")[0] for sentence in remarks(MINE, theirs)] == ["losses differ"]
    assert remarks(MINE, THEIRS) == ()
