"""Declared options as options of a verb; see `coordinator_free_bootstrap.options`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from coordinator_free_bootstrap.options import Shown, bounds_of, fields_of, members_of

Verb = Callable[..., None]


def takes_options(parameter: str, declared: type, *names: str) -> Callable[[Verb], Verb]:
    """Replace a parameter of a verb by declared options; the verb gets under its name those that the user gives, by name.

    Args:
        parameter: of the verb.
        declared: a `TypedDict`.
        names: of the options that the verb has; none: all.
    """
    fields = fields_of(declared)
    chosen = names or tuple(fields)

    def decorate(verb: Verb) -> Verb:
        hints = get_type_hints(verb, include_extras=True)
        own_parameters = dict(signature(verb).parameters)
        within = own_parameters.pop("context", None) is not None  # a verb that takes other declared options too
        parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        for name, own in own_parameters.items():
            if name == parameter:
                parameters += [typer_parameter(each, fields[each]) for each in chosen]
            else:
                parameters.append(own.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

        @wraps(verb)
        def with_options(context: typer.Context, **values: Any) -> None:
            read = {name: values.pop(name) for name in chosen}
            given = {name: value for name, value in read.items() if _is_given(context, name)}
            verb(**{parameter: given}, **values, **({"context": context} if within else {}))

        return with_parameters(with_options, parameters)

    return decorate


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether the user gave an option, be it with the value of its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def with_parameters(verb: Verb, parameters: list[Parameter]) -> Verb:
    """Return a verb that typer reads as having these parameters."""
    vars(verb)["__signature__"] = Signature(parameters)
    verb.__annotations__ = {each.name: each.annotation for each in parameters}
    return verb


def typer_parameter(name: str, field: FieldInfo) -> Parameter:
    """Return a declared option as a parameter of a function that typer reads."""
    kind, default = _kind(field.annotation), field.get_default()
    if get_origin(kind) is list:
        kind, default = kind | None, None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option_of(name, field)])


def option_of(name: str, field: FieldInfo) -> Any:
    """Return what typer reads of a declared option: its name, help, bounds, and how they are shown."""
    shown = next((each for each in field.metadata if isinstance(each, Shown)), Shown())
    bounds = bounds_of(field)
    return typer.Option(
        f"--{name.replace('_', '-')}",
        help=field.description,
        min=None if bounds.above else bounds.least,  # `parsed` refuses what typer cannot
        max=None if bounds.below else bounds.most,
        metavar=shown.metavar,
        show_default=shown.default or True,
        readable=False,
    )


def _kind(annotation: Any) -> Any:
    """Return the type that typer reads: of a path or a text, a path; of a text or several, several; of others, itself."""
    members = members_of(annotation)
    optional = type(None) in members
    if Path in members:
        kind: Any = Path
    elif any(getattr(get_origin(each) or each, "__name__", "") in ("Sequence", "list", "tuple") for each in members):
        kind = list[str]
    else:
        kind = next(each for each in members if each is not type(None))
    return kind | None if optional and kind is not Literal else kind
