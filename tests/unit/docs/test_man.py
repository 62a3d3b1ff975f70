"""The man page has every verb with its help and each of its options."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.verbs_of import leaves
from typer.main import get_command

from peer.cli.main import app

PAGE = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "man.py"))["page"]()


def section(name):
    """Return the section of a verb, as text."""
    plain = PAGE.replace("\\-", "-").replace("\\e", "\\")
    return plain.partition(f"\n.SH {name}\n")[2].partition("\n.SH ")[0]


@pytest.mark.parametrize(("name", "verb"), list(leaves(get_command(app))))
def test_a_verb_has_its_help_and_all_options(name, verb):
    found = section(name)
    assert verb.help.split(".")[0].split("\n")[0].split("[")[0] in found
    for each in verb.params:
        if each.param_type_name == "option":
            assert each.opts[0] in found, each.name


def test_exit_codes_are_in_it():
    assert "51 trained alone" in section("PEER")


@pytest.mark.skipif(shutil.which("groff") is None, reason="no program groff: apt-get install groff-base")
def test_groff_finds_no_fault():
    done = subprocess.run(["groff", "-man", "-ww", "-z"], input=PAGE, capture_output=True, text=True, check=True)
    assert done.stderr == ""
