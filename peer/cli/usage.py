"""Errors of the command's parser in the form of all configuration errors: ``--peers: expected an integer, got 'x'``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinator_free_bootstrap.errors import ConfigProblem, UsageError
from coordinator_free_bootstrap.validation import alternatives, choice, near, phrases, unknown_name
from peer.cli.gone import GONE, GONE_VERBS


@contextmanager
def in_one_form() -> Iterator[None]:
    """Raise an error of the parser as a `UsageError`; other exceptions, such as the request for help, pass."""
    try:
        yield
    except Exception as error:
        # by their names and attributes: typer has classes of its own or those of click, depending on its release
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise UsageError(_problem(error)) from None


def _problem(error: Any) -> ConfigProblem | str:
    context, message = error.ctx, error.message
    verb = "peer" if context is None else context.command_path
    fix = f"Run {verb} --help."
    if (option := getattr(error, "option_name", None)) is not None:
        if hasattr(error, "possibilities"):
            return _unknown_option(option, context)
        takes_none = message.endswith("does not take a value.")
        return ConfigProblem(option, *(("no value", "one") if takes_none else ("a value", "nothing")))
    if (parameter := getattr(error, "param", None)) is not None:
        key = _key(parameter)
        if type(error).__name__ == "MissingParameter":
            return ConfigProblem(key, "a value", "nothing", fix)
        return ConfigProblem(key, *_expected_and_got(error))
    if unknown := re.match(r"No such command '(.*?)'", message):
        return _unknown_verb(unknown[1], context)
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return ConfigProblem(verb, "no further argument", repr(extra[1]), fix)
    return ConfigProblem(verb, "a verb", "nothing", fix) if message == "Missing command." else f"{verb}: {message}"


def _unknown_option(option: str, context: Any) -> ConfigProblem:
    verb = context.command_path
    if instead := GONE.get(f"{verb.partition(' ')[2]} {option}", GONE.get(option)):
        return ConfigProblem(option, instead, "a removed option")
    known = [each for parameter in context.command.params for each in parameter.opts if each.startswith("-")]
    return ConfigProblem(option, f"an option of {verb}", f"an unknown option ({near(option, [*known, '--help'])})")


def _unknown_verb(name: str, context: Any) -> ConfigProblem | str:
    group = context.command_path
    gone = f"{group.partition(' ')[2]} {name}".strip()
    if instead := GONE_VERBS.get(gone):
        return ConfigProblem(f"peer {gone}", instead, "a removed verb")
    return unknown_name(group, name, context.command.list_commands(context))


def _key(parameter: Any) -> str:
    """Return an option as it is written, and an argument as the usage line has it."""
    name = str(parameter.opts[-1])
    return name if name.startswith("-") else str(parameter.metavar or name).strip("[].").upper()


def _expected_and_got(error: Any) -> tuple[str, str]:
    items = (
        error.__cause__.errors(include_url=False)
        if hasattr(error.__cause__, "errors")
        else [{"type": "", "msg": error.message}]
    )
    expected = [each for item in items for each in phrases(item)]
    if not (of_click := re.fullmatch(r"'?(.*?)'? is not (one of|a valid|in the range) (.*?)\.?", expected[0])):
        return alternatives(expected), _shown(items[0].get("input", "another value"))
    got, kind, allowed = of_click.groups()
    if kind == "one of":
        return alternatives(map(choice, allowed.split(", "))), _shown(got)
    return f"a number in the range {allowed}" if "range" in kind else f"a valid {allowed}", _shown(got)


def _shown(value: object) -> str:
    """Return a value of the command line: a number as it is, a text with quotation marks."""
    text = str(value)
    return text if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else repr(text)
