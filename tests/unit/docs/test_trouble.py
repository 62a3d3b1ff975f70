"""docs/trouble.md: each symptom is in the text of the test that its row names; ten messages name their row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "trouble.md").read_text()
POINTER = re.compile(r"docs/trouble\.md#([\w-]+)")
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


def test_ten_messages_name_their_row_and_the_test_of_the_row_asks_for_the_name():
    named = {name for folder in ("peer", "coordinator_free_bootstrap") for name in pointers_in(ROOT / folder)}
    rows = {}
    for symptom, path, _ in ROWS:
        if found := re.match(r'<a id="([\w-]+)"></a>\*\*([\w-]+)\*\*: ', symptom):
            assert found[1] == found[2], symptom  # the name can be searched for
            rows[found[1]] = (ROOT / path).read_text()
    assert rows.keys() == named and len(rows) == 10
    assert [name for name, text in rows.items() if f"docs/trouble.md#{name})" not in text.replace("\\", "")] == []


def pointers_in(folder):
    return {name for path in folder.rglob("*.py") for name in POINTER.findall(path.read_text())}
