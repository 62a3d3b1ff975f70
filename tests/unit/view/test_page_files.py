"""The static files of the page: what is vendored, what is allowed in them, and the self-contained file."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from peer.store.records import PHASES, STATES
from peer.view.page.files import STATIC, script, styles
from peer.view.page.single_file import single_file

ROOT = Path(__file__).parents[3]
OWN = sorted(path for path in STATIC.iterdir() if path.suffix == ".js")


def test_vendored_files_are_those_of_their_release():
    folder = STATIC / "vendor"
    lines = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    for digest, name in lines:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (folder / "uplot-LICENSE.txt").read_text()


def test_the_packages_hold_files_in_subfolders():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["peer"]
    assert "view/page/static/**" in data


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_text_is_never_markup(path):
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc|DOMParser", path.read_text()
    )
    assert found == []


@pytest.mark.parametrize("path", [*OWN, STATIC / "index.html", *STATIC.glob("*.css")], ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path):
    addresses = set(re.findall(r"https?://[^\s\"'`<>]+", path.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_the_page_has_no_inline_script_or_style():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_names_of_modules_do_not_collide_in_one_scope():
    names = []
    for path in OWN:
        for line in path.read_text().splitlines():
            if found := re.match(r"(?:export )?(?:function|class) (\w+)", line):
                names.append(found[1])
            elif found := re.match(r"(?:const|let|export const) (.+)", line):
                names += re.findall(r"(?:^|, )(\w+) = ", found[1])
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_one_script_has_every_module_once_and_no_import():
    text = script()
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)
    for path in OWN:
        assert text.count(path.read_text().splitlines()[0]) == 1, path.name


def test_the_single_file_allows_only_its_own_scripts_and_asks_for_nothing():
    page = single_file({"run": {}, "hostile": "</script><img src=x onerror=alert(1)>"})
    policy = re.search(r'content="(default-src[^"]+)"', page)[1]
    assert "'self'" not in policy and "unsafe" not in policy and "connect-src" not in policy
    assert "<link" not in page and " src=" not in page.split("<body>")[0]
    assert "<img" not in page and "\\u003cimg src=x onerror" in page
    for text in re.findall(r"<(?:style|script(?: type=\"module\")?)>(.*?)</(?:style|script)>", page, re.DOTALL):
        import base64

        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert styles() in page


def test_the_page_knows_the_states_and_phases_of_the_vocabulary():
    def listed(file, name):
        return re.findall(r'"(\w+)"', re.search(rf"const {name} = \[([^\]]*)\]", (STATIC / file).read_text())[1])

    assert {*listed("frame.js", "DOWN")} == {state for state, each in STATES.items() if each.down}
    assert {*listed("frame.js", "ENDED")} <= STATES.keys()
    assert listed("film.js", "PHASES") == list(PHASES)
