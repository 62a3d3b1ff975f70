"""docs/trouble.md: each symptom is in the text of the test that its row names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "trouble.md").read_text()
ROWS = re.findall(r'^\| (.*?) \| .* \| \[test\]\(\.\./(tests/[\w/]+\.py) "(test_\w+)"\) \|$', PAGE, re.MULTILINE)


@pytest.mark.parametrize(("symptom", "path", "test"), ROWS, ids=[row[2] for row in ROWS])
def test_the_test_of_a_row_is_there_and_asks_for_the_words_of_the_row(symptom, path, test):
    text = (ROOT / path).read_text()
    assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), f"{path} has no {test}"
    words = re.search(r"`([^`]+)`", symptom)[1]
    assert words.replace("\\", "") in text.replace("\\", ""), f"{path} does not have {words!r}"


def test_every_row_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| you", "| ---"))]
    assert len(rows) == len(ROWS) > 20
