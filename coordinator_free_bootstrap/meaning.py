"""What gives the numbers of a model their meaning: classes, columns, scaling, metric. Neighbors compare it. Pure.

Models are averaged number by number, so two peers must agree on what stands where, and a peer with its saved models. Each peer
describes its task and data in a `Meaning`; its hello carries the text, and `compare` finds what differs; `changes` compares it
with that of a state directory. No mean and no deviation of a peer's data is in it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from coordinator_free_bootstrap.errors import Option, Refusal, RefusalCode
from coordinator_free_bootstrap.strict_json import loads, printable, shown, word
from coordinator_free_bootstrap.validation import counted

LIST_CHARS_MAX = 1 << 16  # of one value of the record as JSON; of a longer one the record has length and digest
MEANING_CHARS_MAX = 1 << 20  # of a whole record
KNOWN_CLASSES_MAX = 4096  # names that a peer collects from its neighbors' hellos
NAME_CHARS_MAX = 256  # of such a name
_NAMES_SHOWN, _VALUE_CHARS_SHOWN = 8, 160
_SETTING_CHARS_MAX = 2000  # of a setting in a refusal, since a neighbor's names are in it
OWN = "of an own loop"  # `Meaning.targets` of data that only the task knows
RAW, SCALED, CONSTANT = "r", "s", "?"  # letters of `Meaning.scaled`

MeaningValues = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What gives numbers their meaning at one peer; None: not declared.

    Attributes:
        kind: classification, multilabel or regression.
        target: name of the column that is predicted.
        columns: names of the model's inputs, in order; those of a column of text have the form ``column=text``.
        read: names of the table's columns that become these inputs, in order.
        classes: names of the labels, in order; only their number if they have no names.
        targets: form of one target.
        inputs: dtype of the model's input, or of several inputs by name.
        divisor: of raw values, 255 for pixels.
        scaling: whether inputs are scaled by mean and deviation.
        scaled: a letter for each input: `RAW`, `SCALED`, or `CONSTANT` where the data cannot tell.
        mean: numbers that are the same for all peers, where the task scales; those of a peer's own data are not sent.
        std: as ``mean``.
        agreed: digest of the numbers of all sites, where inputs are scaled by them, once the peer knows them.
        facts: further facts by name, as the task declares them.
        metric: name and direction.
        more_metrics: their names.
        loss: default or own.
        shape: of one sample.
        task_file: digest of the user's file.
        algorithm_file: digest of the file of an algorithm that is not of this project.
        tensors: name and shape of each tensor of a model.
        versions: of the libraries that draw initial models.
        open: names of ``run.task_options`` that the manifest leaves to each peer's data.
        known: all classes that the peer knows of, its neighbors' included, where ``classes`` is open.
    """

    kind: str
    target: str | None = None
    columns: tuple[str, ...] | None = None
    read: tuple[str, ...] | None = None
    classes: tuple[str, ...] | int | None = None
    targets: str | None = None
    inputs: str | Mapping[str, str] | None = None
    divisor: float | None = None
    scaling: str | None = None
    scaled: str | None = None
    mean: Any = None
    std: Any = None
    agreed: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None
    more_metrics: tuple[str, ...] = ()
    loss: str | None = None
    shape: Any = None
    task_file: str | None = None
    algorithm_file: str | None = None
    tensors: tuple[str, ...] = ()
    versions: str | None = None
    open: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    def text(self) -> str:
        """Return canonical JSON of at most `MEANING_CHARS_MAX` characters, the form that a hello carries."""
        return _text_of({name: value for name, value in asdict(self).items() if value not in (None, (), {})})


def without_pattern(meaning: str) -> str:
    """Return a meaning without ``scaled``, the one field that is computed from training samples."""
    values: MeaningValues = json.loads(meaning)
    return _text_of({name: value for name, value in values.items() if name != "scaled"})


def _text_of(values: MeaningValues) -> str:
    return json.dumps({name: _bounded(value) for name, value in values.items()}, sort_keys=True, separators=(",", ":"))


def _bounded(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    if len(text) <= LIST_CHARS_MAX:
        return value
    return f"{len(value)} values, digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"


class _Weight(Enum):
    REFUSE = 1  # the average of two models would have no meaning
    WARN = 2  # may be meant
    EXPLAIN = 3  # the cause where schemas or initial models differ


class _Field(NamedTuple):
    name: str
    what: str
    weight: _Weight
    remedy: str = "give both the same task file"


_SAME_DATA = "give both data of the same form, and the same task file"
_NOT_MEANT = "if that is not meant, give both the same task file"
_FIELDS = (
    _Field("kind", "kinds of targets", _Weight.REFUSE),
    _Field("target", "target columns", _Weight.REFUSE, _SAME_DATA),
    _Field("columns", "input columns", _Weight.REFUSE, "give both the same columns in the same order"),
    _Field("classes", "classes", _Weight.REFUSE, "give both the same class names in the same order"),
    _Field("targets", "forms of a target", _Weight.REFUSE, _SAME_DATA),
    _Field("inputs", "inputs of the model", _Weight.REFUSE, _SAME_DATA),
    _Field("divisor", "divisors of raw inputs", _Weight.REFUSE),
    _Field("scaling", "scalings of inputs", _Weight.REFUSE, "scale at both peers, or at none"),
    _Field("scaled", "scaled inputs", _Weight.REFUSE, "scale the same inputs at both peers"),
    _Field("mean", "means of the task's preprocessing", _Weight.REFUSE),
    _Field("std", "deviations of the task's preprocessing", _Weight.REFUSE),
    _Field(
        "agreed",
        "numbers of all sites (SHA-256)",
        _Weight.REFUSE,
        "start all peers anew, each with the data of its first start",
    ),
    _Field("facts", "facts of the task", _Weight.REFUSE),
    _Field("metric", "metrics", _Weight.REFUSE),
    _Field("more_metrics", "further metrics", _Weight.WARN, _NOT_MEANT),
    _Field("loss", "losses", _Weight.WARN, _NOT_MEANT),
    _Field("shape", "shapes of a sample", _Weight.WARN, "if that is not meant, give both samples of one shape"),
    _Field("task_file", "task files (SHA-256)", _Weight.WARN, _NOT_MEANT),
    _Field(
        "algorithm_file",
        "algorithm files (SHA-256)",
        _Weight.WARN,
        "if that is not meant, give both the same algorithm file",
    ),
    _Field("tensors", "tensors of a model", _Weight.EXPLAIN, ""),
    _Field("versions", "library versions", _Weight.EXPLAIN, ""),
)


class Comparison(NamedTuple):
    """The result of `compare`; empty where the records agree.

    ``refusal`` has the first difference that makes averages meaningless, and what to do; None where the two may average their
    models. ``warnings`` are differences that may be meant. ``causes`` may explain that models have other shapes or initial
    values.
    """

    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def compare(ours: str, theirs: str, me: str, other: str) -> Comparison:
    """Compare two records.

    Args:
        ours: a record.
        theirs: another one, or any text that a neighbor sent as its record.
        me: the name of the first one's owner, such as ``peer 3``.
        other: the name of the second one's owner.
    """
    if ours == theirs:
        return Comparison()
    mine, foreign = _values(ours), _values(theirs)
    if mine is None or foreign is None:
        wrong = me if mine is None else other
        sentence = f"{wrong} has no record of its classes and inputs; give both the same version of this program"
        return Comparison(Refusal(RefusalCode.MEANING_MISMATCH, sentence))
    refused: list[tuple[_Field, str]] = []
    warnings, causes = [], []
    for each, a, b in _differing(mine, foreign):
        sentence = f"{each.what} differ: {me} has {_shown(a)}, {other} has {_shown(b)}{_note(a, b, me, other)}"
        if each.weight is _Weight.EXPLAIN:
            causes.append(sentence)
        elif each.weight is _Weight.WARN:
            warnings.append(f"{sentence}; {each.remedy}")
        elif _undeclared(a, b):
            warnings.append(f"{sentence}; declare them at both peers, so that they can be compared")
        else:
            refused.append((each, sentence))
    said = tuple(warnings), (*warnings, *causes)
    if not refused:
        return Comparison(None, *said)
    (first, sentence), *more = refused
    too = f"; {', '.join(each.what for each, _ in more)} differ too" if more else ""
    sentence += f"; {_remedy(first, mine, foreign, me < other)}{too}"
    return Comparison(Refusal(RefusalCode.MEANING_MISMATCH, sentence), *said)


def changes(before: MeaningValues, now: MeaningValues) -> tuple[list[str], list[str]]:
    """Compare the record that saved models were trained with and that of a start.

    Returns:
        Phrases such as ``classes were [a, b], are now [b, a]``: those that refuse the models, and those that may be meant.
    """
    refused: list[str] = []
    meant: list[str] = []
    for each, a, b in _differing(before, now):
        if each.weight is _Weight.EXPLAIN:
            continue
        is_refused = each.weight is _Weight.REFUSE and not _undeclared(a, b)
        note = _note(a, b, "the state", "this start")
        (refused if is_refused else meant).append(f"{each.what} were {_shown(a)}, are now {_shown(b)}{note}")
    return refused, meant


def _differing(mine: MeaningValues, other: MeaningValues) -> Iterator[tuple[_Field, object, object]]:
    """Yield the fields that do not agree, with both values as they are shown."""
    for each in _FIELDS:
        a, b = mine.get(each.name), other.get(each.name)
        if isinstance(a, dict) or isinstance(b, dict):
            each, a, b = _first_entry(each, a or {}, b or {})  # noqa: PLW2901
        if _agree(each.name, a, b):
            continue
        if each.name == "scaled" and isinstance(a, str) and isinstance(b, str):
            a, b = (_unscaled(one, another, _names(mine, "columns")) for one, another in ((a, b), (b, a)))
        yield each, a, b


def summary(text: str) -> str:
    """Return what neighbors of a peer with this record must have in common, as readable text."""
    values = _values(text) or {}
    given = [each for each in _FIELDS if each.weight is _Weight.REFUSE and values.get(each.name) is not None]
    return "; ".join(f"{each.name} {_shown(values[each.name])}" for each in given)


def goal(text: str) -> str:
    """Return how a run with this record interprets its targets, and its metric: ``regression; metric mse, lower is better``."""
    values = _values(text) or {}
    kind, form, classes, column = (values.get(name) for name in ("kind", "targets", "classes", "target"))
    words = str(form) if kind == "regression" and form != "regression []" else str(kind)
    words = "by an own loop" if form == OWN else words
    words += "" if column is None else f" of {_shown(column)}"
    if isinstance(classes, list):
        words += f" with {counted(len(classes), 'class')} {_shown(classes)}"
    elif classes is not None:  # they have no names, or more than the record holds
        words += f" with {counted(classes, 'class') if isinstance(classes, int) else classes}"
    return f"{printable(words)}; metric {_shown(values.get('metric'))}"


def _values(text: str) -> MeaningValues | None:
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _first_entry(each: _Field, a: Any, b: Any) -> tuple[_Field, object, object]:
    """Return the first entry of two objects that differs, as a field of its own."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return each, a, b
    differing = [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]
    if not differing:
        return each, None, None
    key = differing[0]
    return each._replace(what=f"{each.what} ({word(key)})"), a.get(key), b.get(key)


def _agree(name: str, a: Any, b: Any) -> bool:
    if name == "agreed" and None in (a, b):
        return True  # one of the two has not begun yet
    if name != "scaled":
        return bool(a == b)
    if not (isinstance(a, str) and isinstance(b, str)):
        return True
    return len(a) != len(b) or not _contradictions(a, b)  # one number for all inputs says nothing about each


def _undeclared(a: Any, b: Any) -> bool:
    """Return whether one of two values is absent, or is the number of the classes that the other names."""
    for one, another in ((a, b), (b, a)):
        if one is None or (isinstance(one, int) and isinstance(another, list) and one == len(another)):
            return True
    return False


def _contradictions(a: str, b: str) -> list[int]:
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y and CONSTANT not in (x, y)]


def _unscaled(pattern: str, beside: str, columns: list[str]) -> str:
    """Return which inputs of a peer are not scaled but are at the other one, by name if they have names."""
    raw = [i for i in _contradictions(pattern, beside) if pattern[i] == RAW]
    names = columns if len(columns) == len(pattern) else [str(i) for i in range(len(pattern))]
    return f"{_shown([names[i] for i in raw])} not scaled" if raw else "all of these scaled"


def _shown(value: Any) -> str:
    """Return a value of a record in a short form that is safe to print."""
    if value is None:
        return "none declared"
    if isinstance(value, list):
        names = [word(item) if isinstance(item, str) else printable(shown(item)) for item in value[:_NAMES_SHOWN]]
        more = f" and {len(value) - _NAMES_SHOWN} more" if len(value) > _NAMES_SHOWN else ""
        return f"[{', '.join(names)}{more}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{word(key)}: {shown(item)}" for key, item in list(value.items())[:_NAMES_SHOWN]) + "}"
    return printable(value, _VALUE_CHARS_SHOWN) if isinstance(value, str) else printable(shown(value))


def _note(a: Any, b: Any, me: str, other: str) -> str:
    """Return how two lists differ, as text."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return ""
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    where = ""
    if first >= _NAMES_SHOWN:
        where = f"; number {first + 1} is {_shown(a[first : first + 1])} and {_shown(b[first : first + 1])}"
    mine, theirs = ([item if isinstance(item, str) else shown(item) for item in items] for items in (a, b))
    said = []
    for owner, items, others in ((me, mine, set(theirs)), (other, theirs, set(mine))):
        if only := [item for item in items if item not in others]:
            said.append(f"only {owner} has {_shown(only)}")
    if not said and len(a) == len(b):
        said.append("the same in another order")
    return f" ({', '.join(said)}{where})" if said else where


def _remedy(each: _Field, mine: MeaningValues, theirs: MeaningValues, mine_first: bool) -> str:
    """Return what to do; where the manifest can decide for all peers, the exact setting."""
    options = set(_names(mine, "open")) & set(_names(theirs, "open"))
    if each.name == "target" and "target" in options:
        return f"name it in the graph file of all peers: {Option('set')} run.task_options.target=NAME"
    if each.name == "classes" and "classes" in options:
        names = classes_of(mine) | classes_of(theirs)
        return f"give the classes of all peers in their graph file: {_setting('classes', sorted(names))}"
    if each.name != "columns":
        return each.remedy
    first, second = (_names(values, "read") for values in ((mine, theirs) if mine_first else (theirs, mine)))
    texts = [name for name in {*_names(mine, "columns"), *_names(theirs, "columns")} - {*first} if "=" in name]
    if first == second and texts and "categories" in options:
        return f"give the texts of all peers in their graph file: {_setting('categories', sorted(texts))}"
    known = set(second)
    common = [name for name in first if name in known]
    if first == second or not common or "columns" not in options:
        return each.remedy
    return f"give the columns of the model in the graph file of all peers: {_setting('columns', common)}"


def _names(values: MeaningValues, name: str) -> list[str]:
    value = values.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _setting(option: str, names: list[str]) -> str:
    text = f"{Option('set')} {shlex.quote(f'run.task_options.{option}={json.dumps(names)}')}"
    return text if len(text) <= _SETTING_CHARS_MAX else f"run.task_options.{option}, {len(names)} names"


def with_algorithm(text: str, digest: str | None) -> str:
    """Return a record with the digest of the file of an algorithm; None: it is one of this project."""
    values = _values(text)
    return text if digest is None or values is None else _text_of(values | {"algorithm_file": digest})


def with_agreed(text: str, digest: str) -> str:
    """Return a record with the digest of the numbers of all sites."""
    values = _values(text)
    return text if values is None else _text_of(values | {"agreed": digest})


# ---- classes spread over several peers ---------------------------------------------------------------------------------------


def classes_of(values: MeaningValues) -> set[str]:
    """Return the names of all classes in a record, those of other peers included; too long or too many are left out."""
    names: set[str] = set()
    for key in ("classes", "known"):
        names |= {name for name in _names(values, key) if len(name) <= NAME_CHARS_MAX}
    return names if len(names) <= KNOWN_CLASSES_MAX else set()


def with_known(ours: str, theirs: str) -> str:
    """Return our record with the classes that a neighbor knows of, where each peer takes its classes from its data.

    A refused hello passes them on, so that after some hellos every peer names the classes of all in its refusals.
    """
    if ours == theirs:
        return ours
    mine, foreign = _values(ours), _values(theirs)
    if not mine or not foreign or not all("classes" in _names(values, "open") for values in (mine, foreign)):
        return ours
    known = classes_of(mine)
    union = known | classes_of(foreign)
    if union == known or len(union) > KNOWN_CLASSES_MAX:
        return ours
    text = _text_of(mine | {"known": sorted(union)})
    return text if len(text) <= MEANING_CHARS_MAX else ours


def first_refusal(meanings: Mapping[int, str], edges: Iterable[tuple[int, int]]) -> Refusal | None:
    """Compare the records of peers of one process, edge by edge; return the first refusal, None if there is none."""
    if len({*meanings.values()}) == 1:
        return None
    union = min(meanings.items())[1]
    for text in meanings.values():
        union = with_known(union, text)
    texts = {peer: with_known(text, union) for peer, text in meanings.items()}
    refusals = (compare(texts[a], texts[b], f"peer {a}", f"peer {b}").refusal for a, b in edges)
    return next((refusal for refusal in refusals if refusal), None)
