"""A removed option is refused with what replaces it."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from peer.cli.gone import GONE, GONE_VERBS
from peer.cli.main import app


def said(*words):
    """Return what a wrong use of the command prints, on one line without its frame."""
    done = CliRunner(env={"COLUMNS": "500", "TERM": "dumb"}).invoke(app, words, prog_name="peer")
    assert done.exit_code == 2
    return " ".join(done.output.replace("│", " ").split())


def options_of(command, path=(), context=None):
    """Yield the path of each verb and its options."""
    names = getattr(command, "list_commands", None)
    if names is None:
        yield path, {option for each in command.params for option in each.opts}
        return
    context = command.context_class(command, parent=context, info_name=command.name)
    for name in names(context):
        yield from options_of(command.get_command(context, name), (*path, name), context)


@pytest.mark.parametrize("gone", GONE)
def test_an_option_that_is_no_more_is_refused_with_its_successor(gone):
    verbs = dict(options_of(get_command(app)))
    *path, option = gone.split(" ")
    path = path or next(iter(verbs))
    assert option not in verbs[tuple(path)]
    assert f"expected {GONE[gone]}, got {option}, which was removed." in said(*path, option)


@pytest.mark.parametrize("gone", GONE_VERBS)
def test_a_verb_that_is_no_more_is_refused_with_its_successor(gone):
    assert f"expected {GONE_VERBS[gone]}, got {gone}, which was removed." in said(*gone.split(" "), "--peer", "3")
    assert "No such command 'nothing'" in said(gone.split(" ")[0], "nothing")


def test_other_unknown_options_are_refused_as_before():
    assert "No such option: --rounds" in said("run", "--rounds", "3")
