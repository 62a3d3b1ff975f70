"""Counts with their nouns."""

import pytest

from coordinator_free_bootstrap.validation import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "edge", "1 edge"), (0, "edge", "0 edges"), (2, "copy", "2 copies"), (3, "class", "3 classes")],
)
def test_one_is_singular_and_all_other_counts_are_plural(count, noun, text):
    assert counted(count, noun) == text
