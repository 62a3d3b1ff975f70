"""Strict JSON, and foreign text that is safe to print."""

import json
import math
import sys
import unicodedata

import numpy as np
import pytest

from coordinator_free_bootstrap.strict_json import FOREIGN_CHARACTERS_MAX, dumps, finite, of_type, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, \u00e9\u4e2d", "plain words, \u00e9\u4e2d"),
        ("right to left \u202eevil", "right to left \\u202eevil"),
        ("\x1b[31m\n\x9b", "\\x1b[31m\\n\\x9b"),
        ("\u2028\u2029\u2066\u200f\ufeff", "\\u2028\\u2029\\u2066\\u200f\\ufeff"),
        ("\ud800 \ue000 \U000e0041", "\\ud800 \\ue000 \\U000e0041"),
        ("x" * 200, "x" * 200),
        ("x" * 4058, "x" * 200 + "... (4058 characters)"),
        ("x" * 197 + "\u202e", "x" * 197 + "... (198 characters)"),
    ],
)
def test_unsafe_characters_are_escaped_and_long_text_is_cut(text, shown):
    assert printable(text) == shown


def test_no_unsafe_character_is_left():
    """Every code point: the result has no character of the categories Cc, Cf, Cs, Co, Zl and Zp."""
    unsafe = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    for start in range(0, sys.maxunicode + 1, 4096):
        shown = printable("".join(map(chr, range(start, start + 4096))), 1 << 20)
        assert not unsafe & {unicodedata.category(character) for character in shown}
    assert len(printable("\U000e0041" * 999)) <= FOREIGN_CHARACTERS_MAX + len("... (999 characters)")


def test_nan_and_infinity_are_written_as_null():
    value = {"a": [1.5, math.nan, (math.inf,)], "b": {"c": -math.inf, "d": "NaN"}}
    assert json.loads(dumps(value)) == finite(value) == {"a": [1.5, None, [None]], "b": {"c": None, "d": "NaN"}}
    assert dumps({"a": 1}, indent=2) == json.dumps({"a": 1}, indent=2)


@pytest.mark.parametrize(
    ("value", "named"),
    [(None, "None"), (1, "an int"), ([], "a list"), (object(), "an object"), (np.zeros(1), "an ndarray")],
)
def test_the_type_of_a_value_has_its_article(value, named):
    assert of_type(value) == named
