"""Options declared once: type, default, bounds, help and effect of each, for every face that offers it.

A declaration is a pydantic field, in a `BaseModel` or in a `TypedDict` of keyword arguments (`model_of`). From it come the
options of a command (`peer.cli.declared`), keyword arguments of a Python call, keys of a manifest, lists for people, the
error for a wrong value (`parsed`), and the refusal of a value without effect (`without_effect`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from coordinator_free_bootstrap.errors import ConfigProblem, Option, PeerError, UsageError
from coordinator_free_bootstrap.validation import near

Given = Mapping[str, object]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class EffectiveWhen:
    """A rule beside a declaration: without it, a value that is not the default changes nothing.

    Attributes:
        rule: says by the settings around the option whether it has an effect.
        why_not: why it has none, as the end of a sentence; text, or a function of the settings.
    """

    rule: Callable[[Any], bool]
    why_not: str | Callable[[Any], str]

    def reason(self, settings: object) -> str:
        """Return why the option has no effect; empty if it has one."""
        if self.rule(settings):
            return ""
        return self.why_not if isinstance(self.why_not, str) else self.why_not(settings)


@dataclass(frozen=True)
class Shown:
    """How a command's help shows an option: the name of its value, and its default where a text says it better."""

    metavar: str | None = None
    default: str | None = None


Texts = Annotated[
    str | Sequence[str], AfterValidator(lambda given: (given,) if isinstance(given, str) else tuple(given))
]
Whole = Annotated[
    int, BeforeValidator(lambda given: int(given) if isinstance(given, float) and given.is_integer() else given)
]


class NoOptions(BaseModel):
    """The options of something that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WrongOption(ValueError):
    """Raised by a validator of several options whose values do not fit together."""

    def __init__(self, key: str, expected: str, got: object) -> None:
        super().__init__(key)
        self.key, self.expected, self.got = key, expected, got


@functools.cache
def model_of(declared: type) -> type[BaseModel]:
    """Return the pydantic model of a `TypedDict` whose values are annotated fields."""
    fields: dict[str, Any] = get_type_hints(declared, include_extras=True)
    return create_model(declared.__name__, __config__=ConfigDict(extra="forbid", strict=True, frozen=True), **fields)


def fields_of(declared: Any) -> dict[str, FieldInfo]:
    """Return the fields of a `BaseModel` or a `TypedDict`, by name."""
    is_model = issubclass(declared, BaseModel)
    fields: dict[str, FieldInfo] = (declared if is_model else model_of(declared)).model_fields
    return fields


def parsed(
    model: type[M],
    given: Given,
    name: Callable[[str], Option | str] = Option,
    error: Callable[[ConfigProblem], PeerError] = PeerError,
    owner: str = "",
) -> M:
    """Return the settings, complete and of the declared types.

    Args:
        model: declares the options.
        given: values by name.
        name: returns an option as messages name it.
        error: class of the error to raise.
        owner: what has the options, for the message about an unknown one.

    Raises:
        PeerError: of class ``error``: an option is unknown, out of range or without effect.
    """
    try:
        settings = model.model_validate(dict(given))
    except ValidationError as wrong:
        raise error(_problem(wrong, model, name, owner)) from None
    for key, value, why in without_effect(settings):
        raise error(ConfigProblem.without_effect(name(key), value, why))
    return settings


def changed(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, FieldInfo]]:
    """Yield each option that is not its default, those of sections too: dotted key, value, declaration."""
    for name, field in type(settings).model_fields.items():
        key, value = f"{prefix}{name}", getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from changed(value, f"{key}.")
        elif value != field.get_default(call_default_factory=True):
            yield key, value, field


def without_effect(settings: BaseModel, around: object = None, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each option that is not its default and changes nothing: dotted key, value, reason.

    Args:
        settings: their rules are asked, and those of their sections.
        around: what the rules are asked about; None: ``settings``.
        prefix: of the keys.
    """
    for key, value, field in changed(settings, prefix):
        for rule in field.metadata:
            if isinstance(rule, EffectiveWhen) and (why := rule.reason(settings if around is None else around)):
                yield key, value, why


def refuse_given(why: str, **options: object) -> None:
    """Refuse options that have no effect here.

    Args:
        why: they have none, as the end of a sentence.
        options: name and value of each; None or False: not given.

    Raises:
        UsageError: the first that is given.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise UsageError(ConfigProblem.without_effect(Option(name), value, why))


def _problem(
    wrong: ValidationError, model: type[BaseModel], name: Callable[[str], Option | str], owner: str
) -> ConfigProblem:
    """Return the first problem; pydantic reports each member of a union, which are alternatives."""
    errors = wrong.errors(include_url=False)
    first = errors[0]
    if isinstance(rule := first.get("ctx", {}).get("error"), WrongOption):
        return ConfigProblem(name(rule.key), rule.expected, repr(rule.got))
    if not first["loc"]:  # a rule over several options
        return ConfigProblem(owner or "options", first["msg"].removeprefix("Value error, "), repr(first["input"]))
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = near(key, sorted(model.model_fields)) if model.model_fields else "there is none"
        return ConfigProblem(name(key), f"an option of {owner or 'this call'}", f"an unknown option ({known})")
    of_key = (item for item in errors if item["loc"][0] == key)
    rules = dict.fromkeys(item["msg"].removeprefix("Value error, ").removeprefix("Input should be ") for item in of_key)
    return ConfigProblem(name(key), " or ".join(rules), repr(first["input"]))


def bounds_of(field: FieldInfo) -> tuple[float | None, float | None]:
    """Return the least and the largest value; None: no bound."""
    least = next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), None)
    most = next((rule.le for rule in field.metadata if hasattr(rule, "le")), None)
    return least, most
