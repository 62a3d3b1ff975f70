"""A removed option is refused with what replaces it."""

import pytest
import typer
from tools.verbs_of import leaves
from typer.main import get_command
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from peer.cli.gone import GONE, GONE_VERBS
from peer.cli.main import app
from peer.cli.usage import in_one_form


def refused(*words):
    """Return the sentence that refuses a wrong use of the command."""
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, words, prog_name="peer", catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize("gone", GONE)
def test_an_option_that_is_no_more_is_refused_with_its_successor(gone):
    verbs = {
        name.removeprefix("peer "): {option for each in verb.params for option in each.opts}
        for name, verb in leaves(get_command(app))
    }
    verb, _, option = gone.rpartition(" ")
    verb = verb or next(iter(verbs))
    assert option not in verbs[verb]
    assert refused(*verb.split(), option) == f"{option}: expected {GONE[gone]}, got a removed option"


@pytest.mark.parametrize("gone", GONE_VERBS)
def test_a_verb_that_is_no_more_is_refused_with_its_successor(gone):
    assert refused(*gone.split(" "), "--peer", "3") == f"peer {gone}: expected {GONE_VERBS[gone]}, got a removed verb"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("list foo", "WHAT: expected tasks, splits, models, algorithms, encodings or faults, got 'foo'"),
        ("run --stay foo", "--stay: expected never, completed or error, got 'foo'"),
        ("health --timeout 0", "--timeout: expected at least 0.1, got 0"),
        ("health --timeout x", "--timeout: expected a number, got 'x'"),
        ("testbed --peers 0", "--peers: expected at least 2, got 0"),
        ("graph make --peers x", "--peers: expected an integer, got 'x'"),
        ("graph make --peers", "--peers: expected a value, got nothing"),
        ("graph make a b", "peer graph make: expected no further argument, got 'a b'. Run peer graph make --help."),
        ("testbed --fresh=3", "--fresh: expected no value, got one"),
        ("run", "--id: expected a value, got nothing. Run peer run --help."),
        ("status", "WHERE: expected a value, got nothing. Run peer status --help."),
        ("graph nothing", "peer graph: expected one of check, diff, keys, make, next, pin, show, sign, got 'nothing'"),
        ("run --round 3", "--round: expected an option of peer run, got an unknown option (known: --id, --neighbors, "),
        (
            "run --neighbor g",
            "--neighbor: expected an option of peer run, got an unknown option (did you mean --neighbors?)",
        ),
        ("--nothing", "--nothing: expected an option of peer, got an unknown option (known: --version"),
        ("nothing", "peer: expected one of chaos, data, "),
    ],
)
def test_what_the_parser_refuses_has_the_form_of_all_errors(words, sentence):
    """Before: "Invalid value for '--peers': Input should be a valid integer, unable to parse string as an integer"."""
    assert refused(*words.split()).startswith(sentence)


def test_the_words_of_click_are_replaced_too():
    """Older releases of typer take the parser of click, whose errors are texts."""
    peers = next(each for each in dict(leaves(get_command(app)))["peer testbed"].params if each.name == "peers")
    for message, words in (
        ("'x' is not a valid integer.", "--peers: expected a valid integer, got 'x'"),
        ("0 is not in the range x>=1.", "--peers: expected a number in the range x>=1, got 0"),
        ("'x' is not one of 'a', 'b'.", "--peers: expected a or b, got 'x'"),
    ):
        with pytest.raises(UsageError, match=f"^{words}$"), in_one_form():
            raise typer.BadParameter(message, param=peers)
