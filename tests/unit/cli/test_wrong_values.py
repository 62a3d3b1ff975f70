"""Each option and argument of each verb that has a type or bounds, with a wrong value: ``--option: expected ..., got ...``."""

import re

import pytest
from tools.verbs_of import leaves
from typer.main import get_command
from typer.testing import CliRunner

from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.generators import GraphOptions
from coordinator_free_bootstrap.options import fields_of, model_of, parsed
from peer.bed.options import BedOptions
from peer.bed.verbs.testbed import IN_SETTINGS
from peer.cli.main import app
from peer.cli.problem import KEYS
from peer.lab.options import SimulatedOptions
from peer.runtime.local_options import IN_FILE, LocalOptions
from peer.view.options import PageOptions

TEXT = "no-such-value"  # what neither a number nor a choice is
BELOW = "-1000000"


def typed_options():
    """Yield verb, option and a wrong value for each that is a number, a choice or has bounds; texts and paths take any value."""
    for name, verb in leaves(get_command(app)):
        for parameter in verb.params:
            kind = str(parameter.type_descriptor.annotation)
            words = name.split()[1:]
            key = parameter.opts[-1]
            if not key.startswith("-"):
                if "Literal" in kind:
                    yield pytest.param([*words, TEXT], str(parameter.metavar), TEXT, id=f"{name} {key}")
                continue
            if getattr(parameter, "is_flag", False):
                yield pytest.param([*words, f"{key}={TEXT}"], key, "one", id=f"{name} {key}")
            elif re.search(r"\b(int|float|Literal)\b", kind):
                yield pytest.param([*words, key, TEXT], key, repr(TEXT), id=f"{name} {key}")
                if getattr(parameter, "min", None) is not None:
                    yield pytest.param([*words, key, BELOW], key, BELOW, id=f"{name} {key} below")


@pytest.mark.parametrize(("words", "key", "got"), list(typed_options()))
def test_a_wrong_value_of_an_option_is_refused_by_its_name(words, key, got):
    """Before: "Invalid value for '--peers': Input should be a valid integer, unable to parse string as an integer"."""
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, words, prog_name="peer", catch_exceptions=False)
    assert re.fullmatch(rf"{key}: expected .+, got '?{got.strip(chr(39))}'?", str(caught.value))


def test_every_verb_has_such_an_option_and_they_are_many():
    cases = list(typed_options())
    assert len(cases) > 60
    assert not any(
        re.search(r"Input should|Invalid value|greater than|valid integer", case.values[1]) for case in cases
    )


DECLARED = {
    **dict.fromkeys(("peer run", "peer doctor", "peer health"), LocalOptions),
    "peer testbed": BedOptions,
    "peer experiment run": SimulatedOptions,
    "peer graph make": GraphOptions,
    "peer watch": PageOptions,
}


@pytest.mark.parametrize("verb", DECLARED)
def test_an_option_of_the_same_name_as_a_declared_one_is_the_declared_one(verb):
    declared = fields_of(DECLARED[verb])
    options = {each.name: each for each in dict(leaves(get_command(app)))[verb].params}
    common = declared.keys() & options.keys()
    assert common and {name: options[name].help for name in common if name != "state_dir"} == {
        name: declared[name].description for name in common if name != "state_dir"
    }


@pytest.mark.parametrize("declared", [LocalOptions, BedOptions, SimulatedOptions, GraphOptions, PageOptions, None])
def test_a_declared_option_is_refused_in_the_same_words_on_the_command_line(declared):
    """Those of the options in a file and with --set too, which the parser does not see."""
    model = KEYS if declared is None else model_of(declared)
    assert {*IN_FILE} <= fields_of(LocalOptions).keys() and {*IN_SETTINGS} <= fields_of(BedOptions).keys()
    for name in model.model_fields:
        with pytest.raises(UsageError) as caught:
            parsed(model, {name: object()}, error=UsageError)
        assert re.fullmatch(rf"--{name.replace('_', '-')}: expected .+, got .+", str(caught.value))
