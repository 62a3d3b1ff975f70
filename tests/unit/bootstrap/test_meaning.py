"""Two records of classes, columns and scaling: what is refused, what is warned of, and what each sentence says."""

import json
import shlex
from dataclasses import replace

import pytest

from coordinator_free_bootstrap import apply_settings, with_known
from coordinator_free_bootstrap.meaning import (
    KNOWN_CLASSES_MAX,
    LIST_CHARS_MAX,
    MEANING_CHARS_MAX,
    Comparison,
    Meaning,
    changes,
    compare,
    first_refusal,
    goal,
    summary,
)

MINE = Meaning(
    kind="classification",
    target="risk",
    columns=("age", "bp", "ward=heart"),
    read=("age", "bp", "ward"),
    classes=("high", "low", "mid"),
    targets="one label",
    inputs="float32",
    divisor=1.0,
    scaling="mean and deviation",
    scaled="ss?",
    facts={"unit of bp": "mmHg"},
    metric="accuracy, higher is better",
    loss="default",
    shape=[3],
    task_file="aaaa",
    tensors=("0.weight [3, 3]",),
    versions="torch 2",
)


def found(ours, theirs):
    return compare(ours.text(), theirs.text(), "peer 1", "peer 2")


def setting_in(sentence):
    """Return the run with the setting that a sentence gives, read as a shell and `peer graph make` would."""
    words = shlex.split(sentence[sentence.index("--set ") :])
    return apply_settings({}, [words[1]])["task_options"]


def test_equal_records_agree():
    assert found(MINE, MINE) == Comparison() == found(MINE, replace(MINE))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "regression"}, ("kinds of targets", "classification", "regression")),
        ({"target": "cost"}, ("target columns differ: peer 1 has risk, peer 2 has cost",)),
        (
            {"classes": ("low", "high", "mid")},
            ("classes differ: peer 1 has [high, low, mid], peer 2 has [low, high, mid] (the same in another order)",),
        ),
        ({"classes": ("high", "low")}, ("(only peer 1 has [mid])",)),
        ({"classes": ("high", "low", "none")}, ("(only peer 1 has [mid], only peer 2 has [none])",)),
        ({"classes": 4}, ("classes differ: peer 1 has [high, low, mid], peer 2 has 4",)),
        ({"columns": ("bp", "age", "ward=heart")}, ("input columns differ", "[bp, age,", "another order")),
        ({"targets": "labels with 2 axes"}, ("forms of a target", "one label", "labels with 2 axes")),
        ({"inputs": "int64"}, ("inputs of the model differ: peer 1 has float32, peer 2 has int64",)),
        ({"inputs": {"tokens": "int64"}}, ("inputs of the model", '{tokens: "int64"}')),
        ({"divisor": 255.0}, ("divisors of raw inputs", "1.0", "255.0")),
        ({"scaling": "none"}, ("scalings of inputs", "mean and deviation", "none", "at both peers, or at none")),
        ({"scaled": "sr?"}, ("scaled inputs", "peer 1 has all of these scaled, peer 2 has [bp] not scaled")),
        ({"facts": {"unit of bp": "kPa"}}, ("facts of the task", "unit of bp", "mmHg", "kPa")),
        ({"metric": "auc, higher is better"}, ("metrics differ", "accuracy, higher", "auc, higher")),
    ],
)
def test_another_meaning_is_refused_with_both_values(changes, words):
    refusal = found(MINE, replace(MINE, **changes)).refusal.reason
    assert refusal and refusal.isprintable()
    assert all(word in refusal for word in words), refusal
    assert found(replace(MINE, **changes), MINE).refusal


def test_constants_of_a_task_are_compared_as_numbers():
    ours, theirs = (replace(MINE, scaled=None, mean=mean, std=2.0) for mean in ([0.5, 1.0], [0.5, 2.0]))
    assert (
        "means of the task's preprocessing differ: peer 1 has [0.5, 1.0], peer 2 has [0.5, 2.0]"
        in found(ours, theirs).refusal.reason
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_file": "bbbb"}, ("task files (SHA-256) differ: peer 1 has aaaa, peer 2 has bbbb",)),
        ({"shape": [5]}, ("shapes of a sample differ: peer 1 has [3], peer 2 has [5]",)),
        ({"loss": "own"}, ("losses differ",)),
        ({"more_metrics": ("f1",)}, ("further metrics differ: peer 1 has none declared, peer 2 has [f1]",)),
        ({"classes": 3}, ("classes differ", "declare them at both peers")),
        ({"columns": None}, ("input columns", "peer 2 has none declared", "declare them at both peers")),
        ({"facts": {}}, ("facts of the task", "declare them at both peers")),
    ],
)
def test_what_may_be_meant_or_is_not_declared_is_a_warning(changes, words):
    result = found(MINE, replace(MINE, **changes))
    assert not result.refusal
    assert len(result.warnings) == 1
    assert all(word in result.warnings[0] for word in words), result.warnings


def test_a_constant_column_may_be_scaled_or_not():
    assert found(MINE, replace(MINE, scaled="sss")) == Comparison()
    assert found(MINE, replace(MINE, scaled="ssr")) == Comparison()
    assert found(MINE, replace(MINE, scaled="s")) == Comparison()  # one number for all inputs


def test_tensors_and_versions_only_explain():
    result = found(MINE, replace(MINE, tensors=("0.weight [4, 3]",), versions="torch 3"))
    assert not result.refusal and not result.warnings
    assert 'peer 1 has ["0.weight [3, 3]"], peer 2 has ["0.weight [4, 3]"]' in result.causes[0]
    assert "library versions differ: peer 1 has torch 2, peer 2 has torch 3" in result.causes[1]


def test_the_first_difference_is_named_and_the_others_are_listed():
    refusal = found(MINE, replace(MINE, classes=("a", "b"), metric="auc", divisor=2.0)).refusal.reason
    assert refusal.startswith("classes differ")
    assert refusal.endswith("; divisors of raw inputs, metrics differ too")


def test_a_late_difference_of_long_lists_is_named_by_its_number():
    names = [f"gene{i}" for i in range(100)]
    ours = replace(MINE, columns=tuple(names))
    names[41], names[42] = names[42], names[41]
    refusal = found(ours, replace(MINE, columns=tuple(names))).refusal.reason
    assert "gene7 and 92 more]" in refusal and "number 42 is [gene41] and [gene42]" in refusal


def test_a_summary_has_what_must_be_alike():
    assert summary(replace(MINE, columns=None, facts={}).text()) == (
        "kind classification; target risk; classes [high, low, mid]; targets one label; inputs float32; divisor 1.0; "
        "scaling mean and deviation; scaled ss?; metric accuracy, higher is better"
    )


# ---- what the manifest can decide ----------------------------------------------------------------------------------------

OPEN = replace(MINE, open=("target", "columns", "categories", "classes"))


def test_the_remedy_is_the_setting_with_the_classes_of_both():
    refusal = found(replace(OPEN, classes=("1", "2")), replace(OPEN, classes=("2", "3"))).refusal.reason
    assert '--set \'run.task_options.classes=["1", "2", "3"]\'' in refusal
    assert setting_in(refusal) == {"classes": ["1", "2", "3"]}


def test_both_peers_name_the_same_order_of_columns():
    ours, theirs = (replace(OPEN, columns=names, read=names) for names in (("age", "bp"), ("bp", "age", "id")))
    one = compare(ours.text(), theirs.text(), "peer 1", "peer 2").refusal.reason
    other = compare(theirs.text(), ours.text(), "peer 2", "peer 1").refusal.reason
    assert setting_in(one) == setting_in(other) == {"columns": ["age", "bp"]}


def test_other_texts_of_a_column_are_named_as_categories():
    ours, theirs = (
        replace(OPEN, columns=("age", *texts), read=("age", "ward"))
        for texts in (("ward=heart", "ward=lung"), ("ward=heart", "ward=skin"))
    )
    assert setting_in(found(ours, theirs).refusal.reason) == {"categories": ["ward=heart", "ward=lung", "ward=skin"]}


def test_columns_of_the_same_names_that_are_read_otherwise_have_no_setting():
    ours, theirs = (replace(OPEN, columns=(name,), read=("day",)) for name in ("day", "day (date)"))
    assert found(ours, theirs).refusal.reason.endswith("; give both the same columns in the same order")


def test_names_cannot_break_out_of_the_setting():
    name = "x'; rm -rf ~; echo '\n\x1b[31m"
    refusal = found(replace(OPEN, classes=("a", name)), replace(OPEN, classes=("a", "b"))).refusal.reason
    assert refusal.isprintable()
    assert setting_in(refusal) == {"classes": ["a", "b", name]}


def test_a_neighbor_cannot_fill_the_log_with_names():
    theirs = replace(
        OPEN, classes=tuple(f"{i:0200}" for i in range(300)), columns=tuple(f"{i:0200}" for i in range(300))
    )
    result = found(OPEN, theirs)
    assert len(result.refusal.reason) < 3000
    assert "run.task_options.classes, 303 names" in found(OPEN, replace(theirs, columns=OPEN.columns)).refusal.reason


def test_without_an_open_option_no_setting_is_named():
    refusal = found(replace(OPEN, classes=("1", "2")), replace(MINE, classes=("2", "3"))).refusal.reason
    assert "--set" not in refusal and "give both the same class names in the same order" in refusal


def test_classes_that_a_neighbor_knows_of_travel_on():
    texts = [replace(OPEN, classes=names).text() for names in (("1", "2"), ("2", "3"), ("3", "4"))]
    middle = with_known(with_known(texts[1], texts[2]), texts[0])
    first = with_known(texts[0], middle)
    assert setting_in(compare(first, middle, "peer 0", "peer 1").refusal.reason) == {"classes": ["1", "2", "3", "4"]}
    assert compare(texts[0], first, "peer 0", "peer 0") == Comparison()  # what is known changes no meaning
    assert with_known(first, texts[2]) == first


@pytest.mark.parametrize(
    "theirs",
    [
        "",
        "no JSON",
        '{"open":7}',
        '{"open":["classes"],"classes":[1,2]}',
        replace(MINE, classes=("x", "y")).text(),
        replace(OPEN, classes=tuple(map(str, range(KNOWN_CLASSES_MAX + 1)))).text(),
        replace(OPEN, classes=("a" * 300, "b" * 300)).text(),
    ],
)
def test_only_short_names_of_open_classes_are_taken_over(theirs):
    ours = replace(OPEN, classes=("1", "2")).text()
    assert with_known(ours, theirs) == ours


def test_peers_of_one_process_are_compared_over_their_edges():
    meanings = {n: replace(OPEN, classes=names).text() for n, names in enumerate((("1", "2"), ("2", "3"), ("2", "3")))}
    assert first_refusal(meanings, [(1, 2)]) is None
    assert setting_in(first_refusal(meanings, [(1, 2), (0, 1)]).reason) == {"classes": ["1", "2", "3"]}
    assert first_refusal({0: MINE.text(), 1: MINE.text()}, [(0, 1)]) is None


# ---- foreign text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["", "[]", "7", "no JSON", "[" * 50_000, '{"a": NaN}'])
def test_a_text_that_is_no_record_is_refused(theirs):
    assert compare(MINE.text(), theirs, "peer 1", "peer 2").refusal.reason.startswith("peer 2 has no record")


@pytest.mark.parametrize(
    "value", [None, True, 7, -1.5, "x\n\x1b[31m" * 1000, [], [[["a"]]], [{}] * 1000, {"a": {"b": []}}]
)
@pytest.mark.parametrize("name", list(json.loads(OPEN.text())))
def test_any_value_of_any_field_gives_short_printable_sentences(name, value):
    theirs = json.dumps(json.loads(OPEN.text()) | {name: value})
    result = compare(OPEN.text(), theirs, "peer 1", "peer 2")
    for sentence in (str(result.refusal), *result.warnings, *result.causes):
        assert sentence.isprintable() and len(sentence) < 3000
    with_known(OPEN.text(), theirs)


def test_long_lists_travel_as_a_digest_and_are_still_compared():
    names = tuple(f"column {i}" for i in range(LIST_CHARS_MAX // 8))
    ours, theirs = replace(MINE, columns=names), replace(MINE, columns=names[::-1])
    assert len(ours.text()) < MEANING_CHARS_MAX
    assert f"{len(names)} values, digest" in found(ours, theirs).refusal.reason
    assert found(ours, replace(ours)) == Comparison()


def test_changes_of_a_state_name_each_field_with_both_values():
    before, now = (
        json.loads(record.text())
        for record in (
            MINE,
            replace(MINE, classes=("high", "mid", "low"), divisor=255.0, loss="own", versions="torch 3", tensors=()),
        )
    )
    refused, meant = changes(before, now)
    assert refused == [
        "classes were [high, low, mid], are now [high, mid, low] (the same in another order)",
        "divisors of raw inputs were 1.0, are now 255.0",
    ]
    assert meant == ["losses were default, are now own"]
    assert changes(before, before) == ([], [])


def test_changes_of_what_only_one_record_declares_may_be_meant():
    before, now = (json.loads(replace(MINE, classes=classes).text()) for classes in (3, ("high", "low", "mid")))
    assert changes(before, now) == ([], ["classes were 3, are now [high, low, mid]"])
    assert changes({}, now)[0] == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (MINE, "classification of risk with 3 classes [high, low, mid]; metric accuracy, higher is better"),
        (Meaning(kind="classification", classes=2, metric="f1"), "classification with 2 classes; metric f1"),
        (Meaning(kind="regression", targets="regression []", metric="mse, lower is better"), "regression; metric mse, lower"),
        (Meaning(kind="regression", targets="regression [3]", target="a\nb", metric="mse"), "regression [3] of a\\nb;"),
        (Meaning(kind="multilabel", classes=1, metric="f1"), "multilabel with 1 class; metric f1"),
        (Meaning(kind="classification", classes=tuple(map(str, range(40_000)))), "classification with 40000 values, digest "),
    ],
)  # fmt: skip
def test_what_a_run_learns_is_one_line(record, words):
    assert goal(record.text()).startswith(words) and goal(record.text()).isprintable()
