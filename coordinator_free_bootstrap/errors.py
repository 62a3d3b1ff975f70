"""The error tree and its exit codes. A message says where, what was expected, what it got and what to do.

    PeerError
    +-- UsageError                exit 2     the command line
    +-- ConfigError               exit 10    a manifest key or a local option
    |   +-- GraphError            exit 11    the graph file
    |   +-- TaskError             exit 12    a task, a model or a data set
    |   +-- ShardError            exit 13    a shard file
    +-- IdentityError             exit 20    a key, a certificate or a pin
    +-- StorageError              exit 30    the state directory
    |   +-- CheckpointCorrupt     exit 31    a checkpoint that is not usable
    +-- DivergedError             exit 50    training made a model that is not finite
    +-- NeighborUnavailable       exit 40    a neighbor does not answer
    +-- RunFailed                 exit 1     a peer of a run on this machine failed
    +-- LocalProtocolError        exit 70    a bug in this program: an invariant is broken
    +-- RemoteProtocolError       (no exit)  a neighbor broke the protocol; carries a refusal code, the peer continues

This module imports only the standard library. Exit codes are defined here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class RefusalCode(StrEnum):
    """The codes of refusals: the receiver counts each one and returns it to the sender."""

    NOT_A_NEIGHBOR = "not_a_neighbor"
    IDENTITY_MISMATCH = "identity_mismatch"
    INSECURE = "insecure"
    WIRE_VERSION = "wire_version"
    MANIFEST_MISMATCH = "manifest_mismatch"
    GRAPH_MISMATCH = "graph_mismatch"
    MEANING_MISMATCH = "meaning_mismatch"
    SCHEMA_MISMATCH = "schema_mismatch"
    FROZEN_MISMATCH = "frozen_mismatch"
    INITIAL_MODELS_MISMATCH = "initial_models_mismatch"
    OLD_INCARNATION = "old_incarnation"
    NO_HANDSHAKE = "no_handshake"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    WRONG_SIZE = "wrong_size"
    WRONG_ENCODING = "wrong_encoding"
    NO_BASE = "no_base"
    ROUND_OUT_OF_RANGE = "round_out_of_range"
    ROUND_TOO_FAR_AHEAD = "round_too_far_ahead"
    SLOT_OUT_OF_RANGE = "slot_out_of_range"
    NOT_SELECTED = "not_selected"
    CONTRADICTS_SELECTION = "contradicts_selection"
    WEIGHT_OUT_OF_RANGE = "weight_out_of_range"
    DIGEST_MISMATCH = "digest_mismatch"
    NON_FINITE = "non_finite"
    NORM_BOUND = "norm_bound"
    LABEL_CONFLICT = "label_conflict"
    TOO_MANY_STREAMS = "too_many_streams"
    RATE_LIMITED = "rate_limited"
    TOO_SLOW = "too_slow"
    SHUTTING_DOWN = "shutting_down"

    @property
    def cause(self) -> str:
        """What the receiver refuses, as a phrase."""
        return _CAUSES[self]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is not accepted: the code that is counted, and a sentence. The receiver's state stays as it was.

    >>> str(Refusal(RefusalCode.MALFORMED, "the call has no message"))
    'malformed: the call has no message'
    """

    code: RefusalCode
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}" if self.reason else str(self.code)


_CAUSES = {
    RefusalCode.NOT_A_NEIGHBOR: "the caller is no neighbor in the graph file",
    RefusalCode.IDENTITY_MISMATCH: "the sender is not the authenticated caller, or its key is not pinned",
    RefusalCode.INSECURE: "no client certificate",
    RefusalCode.WIRE_VERSION: "another wire version",
    RefusalCode.MANIFEST_MISMATCH: "the manifests differ",
    RefusalCode.GRAPH_MISMATCH: "the graph files differ",
    RefusalCode.SCHEMA_MISMATCH: "the model schemas differ",
    RefusalCode.MEANING_MISMATCH: "what gives the numbers their meaning differs",
    RefusalCode.FROZEN_MISMATCH: "the weights that are neither trained nor sent differ",
    RefusalCode.INITIAL_MODELS_MISMATCH: "the initial models differ",
    RefusalCode.OLD_INCARNATION: "a message of an older incarnation",
    RefusalCode.NO_HANDSHAKE: "no handshake with this incarnation",
    RefusalCode.MALFORMED: "bytes that are not the message, or a field out of range",
    RefusalCode.TOO_LARGE: "a frame or model beyond its limit",
    RefusalCode.WRONG_SIZE: "a model or sketch of another size than the schema's",
    RefusalCode.WRONG_ENCODING: "another encoding than the manifest's",
    RefusalCode.NO_BASE: "a delta from a model that the receiver does not have",
    RefusalCode.ROUND_OUT_OF_RANGE: "a round or step that the run does not have",
    RefusalCode.ROUND_TOO_FAR_AHEAD: "a round too far ahead of the receiver's",
    RefusalCode.SLOT_OUT_OF_RANGE: "a slot that the run does not have",
    RefusalCode.NOT_SELECTED: "a model without a selection before it",
    RefusalCode.CONTRADICTS_SELECTION: "a model that does not match the sender's selection",
    RefusalCode.WEIGHT_OUT_OF_RANGE: "a weight or count outside of its limits",
    RefusalCode.DIGEST_MISMATCH: "the bytes received do not have the sender's digest",
    RefusalCode.NON_FINITE: "NaN or infinity in a model",
    RefusalCode.NORM_BOUND: "a model beyond screening.norm_bound",
    RefusalCode.LABEL_CONFLICT: "a model that fits another center than the one of its tag",
    RefusalCode.TOO_MANY_STREAMS: "too many streams or requests at once",
    RefusalCode.RATE_LIMITED: "more messages than limits.requests_per_second",
    RefusalCode.TOO_SLOW: "a request or transfer beyond its time limit",
    RefusalCode.SHUTTING_DOWN: "the receiver is leaving",
}


Face = Literal["command line", "python"]
_face: ContextVar[Face | None] = ContextVar("face", default=None)
_written: ContextVar[Mapping[str, str]] = ContextVar(
    "written", default=MappingProxyType({})
)  # option -> as the user wrote it


@contextmanager
def names_for(face: Face) -> Iterator[None]:
    """Name each `Option` in the messages of a block as this face does; the outermost block decides."""
    token = _face.set(_face.get() or face)
    try:
        yield
    finally:
        _face.reset(token)


@contextmanager
def written_as(forms: Mapping[str, str]) -> Iterator[None]:
    """Name options in the messages of a block as the user wrote them there: ``{"threads": "threads in options.toml"}``."""
    token = _written.set({**_written.get(), **forms})
    try:
        yield
    finally:
        _written.reset(token)


def face() -> Face:
    """Return the face for which messages are written."""
    return _face.get() or "command line"


@dataclass(frozen=True)
class Option:
    """An option or argument in a message: ``--data-root`` on the command line, ``data_root=`` in Python.

    >>> f"give {Option('data_root')}"
    'give --data-root'
    >>> with names_for("python"):
    ...     f"give {Option('data_root')}"
    'give data_root='
    >>> with written_as({"data_root": "data_root in options.toml"}):
    ...     f"remove {Option('data_root')}"
    'remove data_root in options.toml'
    """

    name: str

    def __str__(self) -> str:
        if written := _written.get().get(self.name):
            return written
        return f"{self.name}=" if face() == "python" else f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class ConfigProblem:
    """What is wrong with the value of one option or manifest key; its text names an `Option` as the reader's face does.

    Attributes:
        key: the option, or a manifest key such as ``run.momentum``.
        expected: the allowed values, as a phrase.
        got: the actual value, as it is to be shown; "nothing" where there is none.
        fix: what to do, as a sentence; empty if `expected` says it.

    >>> str(ConfigProblem("run.rounds", "a number from 1 to 1000000", "0"))
    'run.rounds: expected a number from 1 to 1000000, got 0'
    """

    key: Option | str
    expected: str
    got: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.key}: expected {self.expected}, got {self.got}" + (f". {self.fix}" if self.fix else "")

    @classmethod
    def without_effect(cls, key: Option | str, got: object, why: str) -> ConfigProblem:
        """Return the problem of a key that is given and changes nothing."""
        shown = str(got) if hasattr(got, "__fspath__") else got
        return cls(key, f"no value (no effect, because {why})", repr(shown), "Remove it.")


class PeerError(Exception):
    """Abstract base of the errors that this project raises on purpose.

    Attributes:
        problem: the fields of the message, where the error is about one option or key.
    """

    exit_code = 1

    def __init__(self, message: str | ConfigProblem) -> None:
        if type(self) is PeerError:
            raise TypeError("PeerError is abstract: raise one of its subclasses")
        super().__init__(str(message))
        self.problem = message if isinstance(message, ConfigProblem) else None


class UsageError(PeerError):
    """An argument or option of the command line is wrong."""

    exit_code = 2


class ConfigError(PeerError):
    """A manifest key or local option is wrong; the message names file, field, expected values and got value."""

    exit_code = 10


class GraphError(ConfigError):
    """The graph file cannot be read, or its graph is invalid."""

    exit_code = 11


class TaskError(ConfigError):
    """A task, model or data set cannot be used."""

    exit_code = 12


class ShardError(ConfigError):
    """A shard is truncated, has wrong shapes, or has values out of range."""

    exit_code = 13


class IdentityError(PeerError):
    """A key, certificate or pin is missing, expired, unreadable, readable by other users, or not the one in the graph file."""

    exit_code = 20


class StorageError(PeerError):
    """The state directory cannot be read or written."""

    exit_code = 30


class CheckpointCorrupt(StorageError):
    """A checkpoint is incomplete, damaged, of another run, peer or format; it is not used."""

    exit_code = 31


class NeighborUnavailable(PeerError):
    """A neighbor does not answer; the call is retried as long as the graph file has the neighbor."""

    exit_code = 40


class DivergedError(PeerError):
    """A model of this peer is not finite, or so large that averages of it overflow; nothing is learned any more."""

    exit_code = 50


class AloneError(PeerError):
    """A peer trained without any neighbor in most rounds, folded no model, or waited too long for a neighbor."""

    exit_code = 51


class RunFailed(PeerError):
    """A peer of a run on this machine failed; the message has its exit code and its last error."""

    exit_code = 1


class LocalProtocolError(PeerError):
    """An invariant of this program is broken: a bug, never an operating condition."""

    exit_code = 70


class RemoteProtocolError(PeerError):
    """A neighbor sent a message that the protocol forbids; the peer's state is unchanged, the refusal is returned."""

    exit_code = 1

    def __init__(self, code: RefusalCode, reason: str) -> None:
        self.refusal = Refusal(code, reason)
        super().__init__(str(self.refusal))
