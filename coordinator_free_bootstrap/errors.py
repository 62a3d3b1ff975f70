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
    +-- RemovedError              exit 52    the peer was removed from the federation
    +-- BehindError               exit 53    the peer's graph file is too old for all its neighbors
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

from typing_extensions import override


class RefusalCode(StrEnum):
    """The codes of refusals: the receiver counts each one and returns it to the sender."""

    NOT_A_NEIGHBOR = "not_a_neighbor"
    IDENTITY_MISMATCH = "identity_mismatch"
    INSECURE = "insecure"
    WIRE_VERSION = "wire_version"
    MANIFEST_MISMATCH = "manifest_mismatch"
    GRAPH_MISMATCH = "graph_mismatch"
    REVISION_BEHIND = "revision_behind"
    REVISION_AHEAD = "revision_ahead"
    REMOVED = "removed"
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
        return _EXPLAINED[self][0]

    @property
    def answers(self) -> str:
        """Which messages are answered with it."""
        return _EXPLAINED[self][1]

    @property
    def remedy(self) -> str:
        """What the operator does about it, as a sentence."""
        return _EXPLAINED[self][2]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message is not accepted: the code that is counted, and a sentence. The receiver's state stays as it was.

    >>> str(Refusal(RefusalCode.MALFORMED, "the call has no message"))
    'malformed: the call has no message'
    """

    code: RefusalCode
    reason: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.code}: {self.reason}" if self.reason else str(self.code)


_SAME_GRAPH = "Give all peers the same graph file."
_SENDER = "Look at the sender: a peer of this release does not send this."
_EXPLAINED = {  # cause, the messages that get it as an answer, remedy; the table of docs/refusals-and-events.md
    RefusalCode.NOT_A_NEIGHBOR: (
        "the caller is no neighbor in the graph file, the tunnel is not in it, or an observer asks for more than the status",
        "any",
        _SAME_GRAPH,
    ),
    RefusalCode.IDENTITY_MISMATCH: (
        "the sender is not the authenticated caller, its key is not pinned, or another peer answers at its address",
        "any",
        "Compare key, pin and address of the peer with the graph file; peer doctor does it.",
    ),
    RefusalCode.INSECURE: (
        "no client certificate",
        "any",
        "Let proxies pass TCP through: TLS ends at the peer, not in front of it.",
    ),
    RefusalCode.WIRE_VERSION: (
        "another wire version",
        "a hello",
        "Install releases of the same wire version for all peers; peer --version shows it.",
    ),
    RefusalCode.MANIFEST_MISMATCH: ("the manifests differ", "a hello", _SAME_GRAPH + " The reason names the keys."),
    RefusalCode.GRAPH_MISMATCH: ("the graph files differ", "a hello", _SAME_GRAPH),
    RefusalCode.REVISION_BEHIND: (
        "the sender's graph file is of an earlier revision, with which the receiver cannot exchange",
        "a hello",
        "Give the sender the later file: SIGHUP, or a restart.",
    ),
    RefusalCode.REVISION_AHEAD: (
        "the sender's graph file is of a later revision, with which the receiver cannot exchange",
        "a hello",
        "Give the receiver the later file: SIGHUP, or a restart.",
    ),
    RefusalCode.REMOVED: (
        "the sender was removed from the federation",
        "any",
        "Stop the sender; its neighbors have a graph file without it.",
    ),
    RefusalCode.MEANING_MISMATCH: (
        "what gives the numbers their meaning differs",
        "a hello",
        "Set the classes, columns or scaling that the reason names to the same values for all peers.",
    ),
    RefusalCode.SCHEMA_MISMATCH: (
        "the model schemas differ",
        "a hello",
        "Give all peers the same model and the same shape of inputs and outputs.",
    ),
    RefusalCode.FROZEN_MISMATCH: (
        "the weights that are neither trained nor sent differ",
        "a hello",
        "Give all peers the same frozen weights.",
    ),
    RefusalCode.INITIAL_MODELS_MISMATCH: (
        "the initial models differ",
        "a hello",
        "Give all peers the same seed, initial weights and library versions.",
    ),
    RefusalCode.OLD_INCARNATION: (
        "the sender's incarnation is lower than one that the receiver knows",
        "any",
        "Nothing: the sender takes a higher incarnation. If it repeats, two processes run as one peer: stop one.",
    ),
    RefusalCode.NO_HANDSHAKE: (
        "no hello of this incarnation, or the sender does not answer the receiver's hellos",
        "any but a hello",
        "Nothing: the sender says hello. If it repeats, open the sender's port to the receiver.",
    ),
    RefusalCode.MALFORMED: (
        "bytes that are not the message, a field out of range, frames out of order, or a stream without an end",
        "any",
        _SENDER,
    ),
    RefusalCode.TOO_LARGE: (
        "a frame or model beyond its limit",
        "a model",
        "Raise limits.model_bytes_max for a larger model.",
    ),
    RefusalCode.WRONG_SIZE: ("a model or sketch of another size than the schema's", "a model or selection", _SENDER),
    RefusalCode.WRONG_ENCODING: ("an unknown encoding, or not the manifest's", "a model", _SENDER),
    RefusalCode.NO_BASE: (
        "a delta from a model that the receiver does not have",
        "a model",
        "Nothing: the sender sends the whole model.",
    ),
    RefusalCode.ROUND_OUT_OF_RANGE: (
        "a round or step that the run does not have",
        "a selection, pass or model",
        _SENDER,
    ),
    RefusalCode.ROUND_TOO_FAR_AHEAD: (
        "a round too far ahead of the receiver's",
        "a selection, pass or model",
        "Nothing: the receiver was away and catches up.",
    ),
    RefusalCode.SLOT_OUT_OF_RANGE: (
        "a slot that the run or the round does not have",
        "a selection, model or pull",
        _SENDER,
    ),
    RefusalCode.NOT_SELECTED: ("a model without a selection before it", "a model", _SENDER),
    RefusalCode.CONTRADICTS_SELECTION: (
        "a model, or a second selection, that does not match the sender's selection",
        "a selection or model",
        _SENDER,
    ),
    RefusalCode.WEIGHT_OUT_OF_RANGE: ("a weight or count outside of its limits", "a model", _SENDER),
    RefusalCode.DIGEST_MISMATCH: (
        "the bytes received do not have the sender's digest",
        "a model",
        "Nothing: the sender sends it again. If it repeats, test the network and the memory of both machines.",
    ),
    RefusalCode.NON_FINITE: (
        "NaN or infinity, or a norm beyond float32",
        "a model or selection",
        "Look at the sender's log: its training diverges. Lower the learning rate.",
    ),
    RefusalCode.NORM_BOUND: (
        "a model beyond screening.norm_bound",
        "a model",
        "Look at the sender's data and log. Raise screening.norm_bound if its models are sound.",
    ),
    RefusalCode.LABEL_CONFLICT: (
        "a model that fits another center than the one of its tag",
        "a model",
        "Nothing if it is rare. Otherwise look at the sender: its cluster tags are wrong.",
    ),
    RefusalCode.TOO_MANY_STREAMS: (
        "too many streams or requests at once",
        "any",
        "Nothing: the sender tries again. If it repeats, look at what else calls with its key.",
    ),
    RefusalCode.RATE_LIMITED: (
        "more messages per second than a caller may send",
        "any",
        "Nothing: the sender tries again. If it repeats, look at what else calls with its key.",
    ),
    RefusalCode.TOO_SLOW: (
        "a request or transfer beyond its time limit",
        "any",
        "Declare upload_limit or download_limit of the slow end in the graph file, or raise timeouts.suspicion_s.",
    ),
    RefusalCode.SHUTTING_DOWN: ("the receiver is leaving", "any", "Nothing."),
}


Face = Literal["command line", "python"]
_face: ContextVar[Face | None] = ContextVar("face", default=None)
_written: ContextVar[Mapping[str, str]] = ContextVar(
    "written", default=MappingProxyType({})
)  # option -> as the user wrote it


_ON_COMMAND_LINE = {"peer_id": "--id"}  # where it has another name


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

    @override
    def __str__(self) -> str:
        if written := _written.get().get(self.name):
            return written
        return (
            f"{self.name}="
            if face() == "python"
            else _ON_COMMAND_LINE.get(self.name, f"--{self.name.replace('_', '-')}")
        )


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

    @override
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


class PolicyError(ConfigError):
    """The policy of a device's owner is wrong, or refuses a run; the message names the key of the policy and that of the run."""

    exit_code = 14


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
    """A peer trained without any neighbor in most rounds, folded no model, or waited too long for neighbors."""

    exit_code = 51


class RemovedError(PeerError):
    """This peer was removed from the federation: the new graph file, or its neighbors, say so."""

    exit_code = 52


class BehindError(PeerError):
    """The graph file of this peer is too old: its neighbors have later revisions, and none works with it any more."""

    exit_code = 53


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
