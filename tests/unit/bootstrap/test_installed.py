"""Objects of installed packages by name: an entry point is one, or a dict of several; a wrong package is named."""

from importlib import metadata
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


def test_metadata_are_read_once_and_a_new_folder_of_packages_is_seen(monkeypatch, tmp_path):
    read, scans = metadata.entry_points, []
    monkeypatch.setattr(metadata, "entry_points", lambda: (scans.append(1), read())[1])
    installed.installed("a.group")
    scans.clear()
    assert installed.installed("a.group") == installed.installed("b.group") == [] and not scans
    (tmp_path / "late-1.dist-info").mkdir()
    (tmp_path / "late-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1\n")
    (tmp_path / "late-1.dist-info" / "entry_points.txt").write_text("[a.group]\nlate = a:b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [each.name for each in installed.installed("a.group")] == ["late"] and scans == [1]
