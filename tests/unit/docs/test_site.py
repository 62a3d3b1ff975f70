"""The site: every page of docs is in the index, and Sphinx builds it without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator_free_bootstrap.extras import is_installed

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_the_index_names_every_page():
    named = re.findall(r"^- \[[^\]]+\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert {*named, "index.md"} == {path.name for path in DOCS.glob("*.md")}


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_a_page_begins_with_its_title_and_text(page):
    lines = page.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[1] == "" and re.match(r"[A-Z*`!\[]", lines[2]), lines[:3]


@pytest.mark.parametrize("page", sorted({*DOCS.glob("*.md")} - {DOCS / "index.md"}), ids=lambda page: page.name)
def test_a_page_says_first_for_whom_it_is_and_what_one_has_afterwards(page):
    first = " ".join(page.read_text().split("\n\n")[1].split())
    assert re.match(r"For [^.]+\. Afterwards ", first), first[:200]


def test_the_packages_of_the_reference_are_there_and_the_ground_comes_first():
    reference = (DOCS / "index.md").read_text().partition("\n## Reference\n")[2]
    named = re.findall(r"`([\w.]+)`", reference)
    assert named[0] == "coordinator_free_bootstrap" and named[-1] == "peer"
    assert [name for name in named if not (ROOT / name.replace(".", "/") / "__init__.py").is_file()] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 600


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("sphinx"), reason="needs coordinator-free[docs]: make dev")
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", DOCS, ROOT, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "site" / "docs" / "commands.html").read_text()
    assert 'id="peer-graph-make"' in commands  # the recorded help, one section for each verb
    api = (tmp_path / "site" / "docs" / "api.html").read_text()
    assert 'id="peer.simulate"' in api and 'id="peer.Graph"' in api
    assert "docs/index.html" in (tmp_path / "site" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("sphinx"), reason="needs coordinator-free[docs]: make dev")
def test_a_link_to_nothing_fails_the_build(tmp_path):
    """A copy of the index with one more link: a page that does not exist."""
    site = tmp_path / "docs"
    site.mkdir()
    (site / "index.md").write_text("# Index\n\n[lost](lost.md)\n")
    (site / "conf.py").write_text((DOCS / "conf.py").read_text())
    (site / "site").mkdir()
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", site, tmp_path, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "lost" in done.stderr
