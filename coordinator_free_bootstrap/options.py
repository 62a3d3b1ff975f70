"""Options declared once: type, default, bounds, help and effect of each, for every face that offers it.

A declaration is a pydantic field, in a `BaseModel` or in a `TypedDict` of keyword arguments (`model_of`). From it come the
options of a command (`peer.cli.declared`), keyword arguments of a Python call, keys of a manifest, lists for people, the
error for a wrong value (`parsed`), and the refusal of a value without effect (`without_effect`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo
from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigProblem, Option, PeerError, UsageError
from coordinator_free_bootstrap.strict_json import shortened
from coordinator_free_bootstrap.validation import alternatives, near, phrases

Given = Mapping[str, object]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class EffectiveWhen:
    """A rule beside a declaration: without it, a value that is not the default changes nothing.

    Attributes:
        rule: says by the settings around the option whether it has an effect.
        why_not: why it has none, as the end of a sentence; text, or a function of the settings.
        by_run: the rule of an option asks for keys of the run, which may be set elsewhere: `parsed` leaves it to those who
            know which keys were set.
        stated: ``why_not`` for all settings, for tables of options; needed where that is a function.
    """

    rule: Callable[[Any], bool]
    why_not: str | Callable[[Any], str]
    by_run: bool = False
    stated: str = ""

    @classmethod
    def never(cls, why: str) -> EffectiveWhen:
        """Return the rule of an option that has no effect here."""
        return cls(lambda settings: False, why)

    def __post_init__(self) -> None:
        if not self.stated and isinstance(self.why_not, str):
            object.__setattr__(self, "stated", self.why_not)

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
    around: Callable[[M], object] | None = None,
) -> M:
    """Return the settings, complete and of the declared types.

    Args:
        model: declares the options; ``gone``, a class variable, has what replaces removed ones, by name.
        given: values by name.
        name: returns an option as messages name it.
        error: class of the error to raise.
        owner: what has the options, for the message about an unknown one.
        around: returns what the rules are asked about; None: the settings.

    Raises:
        PeerError: of class ``error``: an option is unknown, out of range or without effect.
    """
    try:
        settings = model.model_validate(dict(given))
    except ValidationError as wrong:
        raise error(_problem(wrong, model, name, owner)) from None
    for key, value, why in without_effect(settings, None if around is None else around(settings), by_run=False):
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


def without_effect(
    settings: BaseModel, around: object = None, prefix: str = "", *, by_run: bool = True
) -> Iterator[tuple[str, Any, str]]:
    """Yield each option that is not its default and changes nothing: dotted key, value, reason.

    Args:
        settings: their rules are asked, and those of their sections.
        around: what the rules are asked about; None: ``settings``.
        prefix: of the keys.
        by_run: also ask the rules that depend on the run.
    """
    for key, value, field in changed(settings, prefix):
        asked = (rule for rule in rules_of(field) if by_run or not rule.by_run)
        reasons = (rule.reason(settings if around is None else around) for rule in asked)
        if why := next(filter(None, reasons), ""):
            yield key, value, why


def rules_of(field: FieldInfo) -> list[EffectiveWhen]:
    """Return the rules beside a declaration; an option has an effect if all of them say so."""
    return [rule for rule in field.metadata if isinstance(rule, EffectiveWhen)]


def given_keys(run: Given) -> Iterator[str]:
    """Yield the keys of a run in dotted form: ``run.rounds``, ``run.timeouts.suspicion_s``."""
    for key, value in run.items():
        if isinstance(value, Mapping):
            yield from (f"run.{key}.{leaf}" for leaf in value)
        else:
            yield f"run.{key}"


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


def refuse_replaced(given: Mapping[str, object], replaced: Mapping[str, tuple[str, str]]) -> None:
    """Refuse a removed option with what replaces it.

    Args:
        given: values by name.
        replaced: for each removed option the option that replaces it, and the form of its value.

    Raises:
        UsageError: the first that is given.
    """
    for name in replaced.keys() & given.keys():
        instead, form = replaced[name]
        raise UsageError(ConfigProblem(Option(name), f"{Option(instead)} {form}", "a removed option"))


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
    if first["type"] == "extra_forbidden" and (instead := getattr(model, "gone", {}).get(key)):
        return ConfigProblem(name(key), "no such option", shortened(repr(first["input"])), instead)
    if first["type"] == "extra_forbidden":
        known = near(key, sorted(model.model_fields)) if model.model_fields else "there is none"
        return ConfigProblem(name(key), f"an option of {owner or 'this call'}", f"an unknown option ({known})")
    of_key = (item for item in errors if item["loc"][0] == key)
    return ConfigProblem(
        name(key), alternatives(each for item in of_key for each in phrases(item)), shortened(repr(first["input"]))
    )


@dataclass(frozen=True)
class Bounds:
    """The numbers that an option allows.

    Attributes:
        least: the smallest; None: no bound.
        most: the largest; None: no bound.
        above: ``least`` itself is not allowed.
        below: ``most`` itself is not allowed.
    """

    least: float | None = None
    most: float | None = None
    above: bool = False
    below: bool = False

    @override
    def __str__(self) -> str:
        """Return the bounds as a phrase; empty without any."""
        least = "" if self.least is None else f"above {self.least:g}" if self.above else f"from {self.least:g}"
        most = "" if self.most is None else f"below {self.most:g}" if self.below else f"up to {self.most:g}"
        if least and most and not (self.above or self.below):
            return f"{self.least:g} to {self.most:g}"
        if most:
            return f"{least}, {most}" if least else most
        return least if self.above or not least else f"{self.least:g} or more"


def bounds_of(field: FieldInfo) -> Bounds:
    """Return the bounds of a declaration."""

    def bounds(*names: str) -> tuple[float | None, ...]:
        return tuple(next((getattr(rule, n) for rule in field.metadata if hasattr(rule, n)), None) for n in names)

    least, above, most, below = bounds("ge", "gt", "le", "lt")
    return Bounds(
        least if above is None else above, most if below is None else below, above is not None, below is not None
    )


def members_of(annotation: Any) -> list[Any]:
    """Return the alternatives of a type: those of a union, else the type itself."""
    if get_origin(annotation) is Annotated:
        return members_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for each in get_args(annotation) for member in members_of(each)]
    return [annotation]
