"""Objects of installed packages by name: an entry point is one, or a dict of several; a wrong package is named."""

from importlib.metadata import EntryPoint

import pytest

from coordinator_free_bootstrap import installed
from coordinator_free_bootstrap.errors import ConfigError

WORDS = {"one": "1", "two": "2"}
WORD, NUMBER, BOTH = "3", 3, {"four": "4", "five": 5}


@pytest.fixture
def names(monkeypatch):
    def names(**entries):
        found = [EntryPoint(name, f"{__name__}:{value}", "a.group") for name, value in entries.items()]
        monkeypatch.setattr(installed, "installed", lambda group: found)
        return installed.named("a.group", "word", str, reserved=["none"])

    return names


def test_an_entry_point_is_an_object_or_a_dict_of_them(names):
    assert dict(names(zoo="WORDS", three="WORD")) == {"one": "1", "two": "2", "three": "3"}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            {"zoo": "NUMBER"},
            "word 'zoo' of the package unknown: expected a str, or a dict from names to them, got an int",
        ),
        ({"zoo": "BOTH"}, "expected a str, or a dict from names to them, got a dict"),
        ({"zoo": "WORDS", "two": "WORD"}, "word 'two' .*: expected a name that no other word has, got 'two'"),
        ({"none": "WORD"}, "expected a name that no other word has, got 'none'"),
        ({"zoo": "NOTHING"}, "word 'zoo' .*: cannot be imported: AttributeError"),
    ],
)
def test_a_wrong_package_is_named(names, entries, words):
    with pytest.raises(ConfigError, match=words):
        names(**entries)
