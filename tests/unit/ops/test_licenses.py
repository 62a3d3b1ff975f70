"""deploy/licenses.py copies the license texts of installed packages and names packages without any license."""

import runpy
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

collect = runpy.run_path(str(Path(__file__).parents[3] / "deploy" / "licenses.py"))["collect"]


def rows(out):
    return [line.split("\t") for line in (out / "index.tsv").read_text(encoding="utf-8").splitlines()[1:]]


def installed(folder, name, metadata="", files=()):
    """Return a package that has these files in its metadata folder."""
    info = folder / f"{name}-1.0.dist-info"
    for path in files:
        (info / path).parent.mkdir(parents=True, exist_ok=True)
        (info / path).write_text(f"{path} of {name}")
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}")
    (info / "RECORD").write_text("".join(f"{info.name}/{path},,\n" for path in ("METADATA", "RECORD", *files)))
    return next(package for package in distributions(path=[str(folder)]) if package.name == name)


@pytest.mark.slow
def test_license_texts_of_this_environment_are_collected(tmp_path):
    assert set(collect(distributions(), tmp_path)) <= {
        "coordinator-free"
    }  # an editable install made before it had a license
    listed = {name: (release, declared, int(count)) for name, release, declared, count in rows(tmp_path)}
    assert listed["numpy"][0] == version("numpy") and listed["numpy"][1]
    for name in ("numpy", "torch", "grpcio"):
        assert listed[name][2] == sum(path.is_file() for path in (tmp_path / name).rglob("*")) > 0
    assert "redistribution" in (tmp_path / "numpy" / "LICENSE.txt").read_text(encoding="utf-8").lower()


def test_texts_are_found_in_both_places_of_the_metadata(tmp_path):
    new = installed(tmp_path, "new", "License-Expression: MIT\n", ["licenses/LICENSE", "licenses/vendored/COPYING"])
    classifier = "Classifier: License :: OSI Approved :: BSD License\n"
    old = installed(tmp_path, "old", classifier, ["LICENSE.txt", "NOTICE", "top_level.txt"])
    out = tmp_path / "out"
    assert collect([old, new], out) == []
    assert rows(out) == [["new", "1.0", "MIT", "2"], ["old", "1.0", "BSD License", "2"]]
    copied = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert copied == {"index.tsv", "new/LICENSE", "new/vendored/COPYING", "old/LICENSE.txt", "old/NOTICE"}


def test_package_with_a_declared_license_and_no_text_is_accepted(tmp_path):
    textless = installed(tmp_path, "textless", "License: Apache-2.0\n        second line\n")
    assert collect([textless], tmp_path / "out") == []
    assert rows(tmp_path / "out") == [["textless", "1.0", "Apache-2.0", "0"]]


def test_package_without_any_license_is_named(tmp_path):
    assert collect([installed(tmp_path, "unlicensed")], tmp_path / "out") == ["unlicensed"]
