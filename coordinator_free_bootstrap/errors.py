"""The error tree. Every leaf says what is wrong, where, and what to do about it.

    PeerError
    +-- UsageError                exit 2     a command line that cannot be carried out
    +-- ConfigError               exit 10    a manifest key, a local option, a task or a shard
    |   +-- GraphError            exit 11    the graph file
    |   +-- TaskError             exit 12    a task, model or data set
    |   +-- ShardError            exit 13    a shard file
    +-- IdentityError             exit 20    keys, certificates, pins
    +-- StorageError              exit 30    the state directory cannot be used
    |   +-- CheckpointCorrupt     exit 31    a checkpoint that must not be used
    +-- NeighborUnavailable       exit 40    a neighbor that does not answer
    +-- LocalProtocolError        exit 70    a bug of ours: an invariant is broken
    +-- RemoteProtocolError       (no exit)  a neighbor's misbehavior; carries a refusal code and leaves the peer up

This module imports nothing but the standard library and is the only place that knows exit codes.
"""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Why a message was refused: the code that travels back to the sender and is counted by the receiver."""

    NOT_A_NEIGHBOR = "not_a_neighbor"
    IDENTITY_MISMATCH = "identity_mismatch"
    INSECURE = "insecure"
    WIRE_VERSION = "wire_version"
    MANIFEST_MISMATCH = "manifest_mismatch"
    GRAPH_MISMATCH = "graph_mismatch"
    SCHEMA_MISMATCH = "schema_mismatch"
    INITIAL_MODELS_MISMATCH = "initial_models_mismatch"
    OLD_INCARNATION = "old_incarnation"
    NO_HANDSHAKE = "no_handshake"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    WRONG_SIZE = "wrong_size"
    WRONG_ENCODING = "wrong_encoding"
    ROUND_OUT_OF_RANGE = "round_out_of_range"
    ROUND_TOO_FAR_AHEAD = "round_too_far_ahead"
    SLOT_OUT_OF_RANGE = "slot_out_of_range"
    NOT_ANNOUNCED = "not_announced"
    CONTRADICTS_ANNOUNCEMENT = "contradicts_announcement"
    WEIGHT_OUT_OF_RANGE = "weight_out_of_range"
    DIGEST_MISMATCH = "digest_mismatch"
    NON_FINITE = "non_finite"
    NORM_BOUND = "norm_bound"
    LABEL_CONFLICT = "label_conflict"
    TOO_MANY_STREAMS = "too_many_streams"
    RATE_LIMITED = "rate_limited"
    TOO_SLOW = "too_slow"
    SHUTTING_DOWN = "shutting_down"


class PeerError(Exception):
    """Abstract base of every error this project raises on purpose; never raised itself."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        if type(self) is PeerError:
            raise TypeError("PeerError is abstract: raise one of its leaves")
        super().__init__(message)


class UsageError(PeerError):
    """The command line cannot be carried out as given."""

    exit_code = 2


class ConfigError(PeerError):
    """A manifest key or local option is wrong; the message names file, field, what was found, what is allowed."""

    exit_code = 10


class GraphError(ConfigError):
    """The graph file is unreadable or describes no valid graph."""

    exit_code = 11


class TaskError(ConfigError):
    """A task, model or data set cannot be used."""

    exit_code = 12


class ShardError(ConfigError):
    """A shard file is truncated, of the wrong shape, or holds impossible values."""

    exit_code = 13


class IdentityError(PeerError):
    """A key, certificate or pin is missing, expired, unreadable, too open, or not the one the graph file names."""

    exit_code = 20


class StorageError(PeerError):
    """The state directory cannot be read or written."""

    exit_code = 30


class CheckpointCorrupt(StorageError):
    """A checkpoint is torn, rotten, foreign or from the future, and must not be used."""

    exit_code = 31


class NeighborUnavailable(PeerError):
    """A neighbor does not answer; retried while the graph says it exists."""

    exit_code = 40


class LocalProtocolError(PeerError):
    """An invariant of ours is broken: a bug, never an operating condition."""

    exit_code = 70


class RemoteProtocolError(PeerError):
    """A neighbor sent something it must not send. State is unchanged; the refusal code is counted and sent back."""

    exit_code = 1

    def __init__(self, code: Refusal, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.sentence = message
