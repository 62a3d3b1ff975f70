"""Protobuf bytes to the values of `peer.core.messages` and back.

Reading has one oracle: any bytes give a value whose fields have the types, shapes and ranges below, or
RemoteProtocolError.
What a field means for a run (is the round too far ahead? is there such a slot?) is judged by the engine, not here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from peer.core.messages import Announce, Beat, Hello, HelloReply, ModelHeader, Outcome, Phase, PushReply
from peer.wire.frames import Frame
from peer.wire.generated import peer_pb2
from peer.wire.inbound import PullRequest

COUNT_MAX = 2**31 - 1  # rounds, steps, slots, totals, degrees: what a signed 32-bit integer of any language holds
SAMPLES_MAX = 2**53  # a count that every JSON reader and float64 holds exactly
SCALARS_MAX = 4096
SKETCH_BYTES_MAX = 1 << 20
DIGEST_CHARS_MAX = 128  # SHA-256 and SHA-512 in hex fit
MANIFEST_CHARS_MAX = 1 << 20
REASON_CHARS_MAX = 4096
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.05, 60.0

M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=StrEnum)


def unpack_hello(data: bytes) -> Hello:
    """Read a HelloRequest; raises RemoteProtocolError MALFORMED."""
    return _hello(parse(peer_pb2.HelloRequest, data))


def pack_hello(hello: Hello) -> bytes:
    """Write a HelloRequest."""
    return _hello_message(hello).SerializeToString()


def unpack_hello_reply(data: bytes) -> HelloReply:
    """Read a HelloReply; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.HelloReply, data)
    return HelloReply(_hello(message.hello), _refusal(message), _text(message, "reason", REASON_CHARS_MAX))


def pack_hello_reply(reply: HelloReply) -> bytes:
    """Write a HelloReply; a reason longer than the limit is cut."""
    message = _build(peer_pb2.HelloReply, hello=_hello_message(reply.hello), **_why(reply.refusal, reply.reason))
    return message.SerializeToString()


def unpack_beat(data: bytes) -> Beat:
    """Read a BeatRequest; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.BeatRequest, data)
    return Beat(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        persisted_round=_count(message, "persisted_round"),
        phase=_choice(message, "phase", Phase, Refusal.MALFORMED),
    )


def pack_beat(beat: Beat) -> bytes:
    """Write a BeatRequest."""
    return _build(
        peer_pb2.BeatRequest,
        sender=beat.sender,
        incarnation=beat.incarnation,
        round_index=beat.round_index,
        persisted_round=beat.persisted_round,
        phase=_number(peer_pb2.Phase, beat.phase),
    ).SerializeToString()


def unpack_announce(data: bytes) -> Announce:
    """Read an AnnounceRequest; raises RemoteProtocolError MALFORMED, or NON_FINITE for its sketch."""
    message = parse(peer_pb2.AnnounceRequest, data)
    sketch = message.sketch
    if len(sketch) > SKETCH_BYTES_MAX or len(sketch) % 4:
        raise _wrong(message, "sketch", f"{len(sketch)} bytes", f"multiples of 4 up to {SKETCH_BYTES_MAX}")
    if not np.isfinite(np.frombuffer(sketch, "<f4")).all():
        raise RemoteProtocolError(Refusal.NON_FINITE, "AnnounceRequest.sketch holds a NaN or an infinity")
    return Announce(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        step=_count(message, "step"),
        total=_count(message, "total", low=-1),
        selected=_count(message, "selected", low=-1),
        scalars=_scalars(message),
        sketch=sketch,
    )


def pack_announce(announce: Announce) -> bytes:
    """Write an AnnounceRequest."""
    return _build(
        peer_pb2.AnnounceRequest,
        sender=announce.sender,
        incarnation=announce.incarnation,
        round_index=announce.round_index,
        step=announce.step,
        total=announce.total,
        selected=announce.selected,
        scalars=announce.scalars,
        sketch=announce.sketch,
    ).SerializeToString()


def unpack_acknowledgement(data: bytes) -> tuple[Refusal | None, str]:
    """Read an Acknowledgement as refusal (None: accepted) and reason; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.Acknowledgement, data)
    return _refusal(message), _text(message, "reason", REASON_CHARS_MAX)


def pack_acknowledgement(refusal: Refusal | None, reason: str) -> bytes:
    """Write an Acknowledgement."""
    return _build(peer_pb2.Acknowledgement, **_why(refusal, reason)).SerializeToString()


def read_header(message: peer_pb2.ModelHeader) -> ModelHeader:
    """Validate a parsed header; raises RemoteProtocolError MALFORMED, or WRONG_ENCODING for an unknown encoding."""
    if message.index >= message.total:
        raise _wrong(message, "index", message.index, f"0 to total - 1, which is {message.total - 1}")
    if message.size_bytes == 0:
        raise _wrong(message, "size_bytes", 0, "the encoded size, 1 or more")
    if not (math.isfinite(message.mass) and message.mass >= 0):
        raise _wrong(message, "mass", message.mass, "finite numbers from 0")
    return ModelHeader(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        step=_count(message, "step"),
        slot=_count(message, "slot"),
        index=_count(message, "index"),
        total=_count(message, "total"),
        sample_count=_count(message, "sample_count", high=SAMPLES_MAX),
        degree=_count(message, "degree"),
        mass=message.mass,
        scalars=_scalars(message),
        size_bytes=message.size_bytes,
        encoding=_choice(message, "encoding", _Encoding, Refusal.WRONG_ENCODING).value,
    )


def first_header(frame: Frame) -> ModelHeader:
    """Validate the header that a stream begins with; raises RemoteProtocolError MALFORMED or WRONG_ENCODING."""
    if frame.header is None:
        raise RemoteProtocolError(Refusal.MALFORMED, "the first frame is not a header")
    return read_header(frame.header)


def pack_header(header: ModelHeader) -> bytes:
    """Write the first frame of a model stream."""
    message = _build(
        peer_pb2.ModelHeader,
        sender=header.sender,
        incarnation=header.incarnation,
        round_index=header.round_index,
        step=header.step,
        slot=header.slot,
        index=header.index,
        total=header.total,
        sample_count=header.sample_count,
        degree=header.degree,
        mass=header.mass,
        scalars=header.scalars,
        size_bytes=header.size_bytes,
        encoding=_number(peer_pb2.Encoding, header.encoding),
    )
    return peer_pb2.PushFrame(header=message).SerializeToString()


def unpack_push_reply(data: bytes) -> PushReply:
    """Read a PushReply; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.PushReply, data)
    outcome = _choice(message, "outcome", Outcome, Refusal.MALFORMED)
    return PushReply(outcome, _refusal(message), _text(message, "reason", REASON_CHARS_MAX))


def pack_push_reply(reply: PushReply) -> bytes:
    """Write a PushReply; a reason longer than the limit is cut."""
    outcome = _number(peer_pb2.Outcome, reply.outcome)
    return _build(peer_pb2.PushReply, outcome=outcome, **_why(reply.refusal, reply.reason)).SerializeToString()


def unpack_pull(data: bytes) -> PullRequest:
    """Read a PullRequest; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.PullRequest, data)
    return PullRequest(message.sender, message.incarnation, _count(message, "slot"))


def pack_pull(request: PullRequest) -> bytes:
    """Write a PullRequest."""
    message = _build(peer_pb2.PullRequest, sender=request.sender, incarnation=request.incarnation, slot=request.slot)
    return message.SerializeToString()


def unpack_watch(data: bytes) -> float:
    """Read a WatchStatusRequest as seconds between two answers; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.WatchStatusRequest, data)
    interval_s = message.interval_s or 1.0
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise _wrong(message, "interval_s", interval_s, f"{INTERVAL_S_MIN} to {INTERVAL_S_MAX}, or 0 for 1")
    return interval_s


def pack_watch(interval_s: float) -> bytes:
    """Write a WatchStatusRequest."""
    return _build(peer_pb2.WatchStatusRequest, interval_s=interval_s).SerializeToString()


def unpack_status(data: bytes) -> dict[str, Any]:
    """Read a StatusReply as the JSON object it carries; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.StatusReply, data)
    try:
        status = json.loads(message.json)
    except (ValueError, RecursionError) as error:
        raise _wrong(message, "json", "no JSON", "one object") from error
    if not isinstance(status, dict):
        raise _wrong(message, "json", type(status).__name__, "one object")
    return status


def pack_status(status: dict[str, Any]) -> bytes:
    """Write a StatusReply: everything as JSON, and the fields that it has typed where ``status`` names them."""
    typed = {name: status[name] for name in ("peer_id", "incarnation", "round_index") if status.get(name) is not None}
    phase = _number(peer_pb2.Phase, status["phase"]) if status.get("phase") else 0
    return _build(peer_pb2.StatusReply, **typed, phase=phase, json=json.dumps(status)).SerializeToString()


def parse(kind: type[M], data: bytes) -> M:
    """Parse bytes as a message of one kind; raises RemoteProtocolError MALFORMED."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        sentence = f"{len(data)} bytes are no {kind.DESCRIPTOR.name}"
        raise RemoteProtocolError(Refusal.MALFORMED, sentence) from error


class _Encoding(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def _hello(message: peer_pb2.HelloRequest) -> Hello:
    return Hello(
        sender=message.sender,
        incarnation=message.incarnation,
        wire_version=message.wire_version,
        manifest_digest=_text(message, "manifest_digest", DIGEST_CHARS_MAX),
        graph_digest=_text(message, "graph_digest", DIGEST_CHARS_MAX),
        schema_digest=_text(message, "schema_digest", DIGEST_CHARS_MAX),
        initial_models_digest=_text(message, "initial_models_digest", DIGEST_CHARS_MAX),
        round_index=_count(message, "round_index"),
        phase=_choice(message, "phase", Phase, Refusal.MALFORMED),
        manifest=_text(message, "manifest", MANIFEST_CHARS_MAX),
        seen_incarnation=message.seen_incarnation,
    )


def _hello_message(hello: Hello) -> peer_pb2.HelloRequest:
    return _build(
        peer_pb2.HelloRequest,
        sender=hello.sender,
        incarnation=hello.incarnation,
        wire_version=hello.wire_version,
        manifest_digest=hello.manifest_digest,
        graph_digest=hello.graph_digest,
        schema_digest=hello.schema_digest,
        initial_models_digest=hello.initial_models_digest,
        round_index=hello.round_index,
        phase=_number(peer_pb2.Phase, hello.phase),
        manifest=hello.manifest,
        seen_incarnation=hello.seen_incarnation,
    )


def _build(kind: type[M], **fields: Any) -> M:
    """Make a message of our own; a value that does not fit its field is our bug."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"cannot send {kind.DESCRIPTOR.name}: {error}") from error


def _wrong(message: Message, field: str, found: object, allowed: str) -> RemoteProtocolError:
    sentence = f"{message.DESCRIPTOR.name}.{field} is {found}; allowed are {allowed}"
    return RemoteProtocolError(Refusal.MALFORMED, sentence)


def _count(message: Message, field: str, *, low: int = 0, high: int = COUNT_MAX) -> int:
    value: int = getattr(message, field)
    if not low <= value <= high:
        raise _wrong(message, field, value, f"{low} to {high}")
    return value


def _text(message: Message, field: str, chars_max: int) -> str:
    value: str = getattr(message, field)
    if len(value) > chars_max:
        raise _wrong(message, field, f"{len(value)} characters", f"at most {chars_max}")
    return value


def _scalars(message: Any) -> tuple[float, ...]:
    values: Sequence[float] = message.scalars
    if len(values) > SCALARS_MAX:
        raise _wrong(message, "scalars", f"{len(values)} numbers", f"at most {SCALARS_MAX}")
    if not all(map(math.isfinite, values)):
        raise _wrong(message, "scalars", "not finite", "finite numbers")
    return tuple(values)


def _refusal(message: Any) -> Refusal | None:
    code: str = message.refusal
    if not code:
        return None
    try:
        return Refusal(code)
    except ValueError as error:
        raise _wrong(message, "refusal", repr(code[:64]), "the codes of WIRE.md") from error


def _why(refusal: Refusal | None, reason: str) -> dict[str, str]:
    return {"refusal": refusal.value if refusal else "", "reason": reason[:REASON_CHARS_MAX]}


def _choice(message: Message, field: str, kind: type[E], code: Refusal) -> E:
    """Read a protobuf enum as ours by name: PHASE_RUNNING is Phase.RUNNING; 0 and unknown numbers are refused."""
    number: int = getattr(message, field)
    values = getattr(message.DESCRIPTOR.fields_by_name[field].enum_type, "values_by_number", {})
    name = values[number].name.partition("_")[2].lower() if number in values else ""
    try:
        return kind(name)
    except ValueError as error:
        raise RemoteProtocolError(code, f"{message.DESCRIPTOR.name}.{field} is {number}: unknown") from error


def _number(kind: Any, value: str) -> int:
    try:
        return int(kind.Value(f"{kind.DESCRIPTOR.name.upper()}_{value.upper()}"))
    except ValueError as error:
        raise LocalProtocolError(f"{value!r} has no number in {kind.DESCRIPTOR.name}") from error
