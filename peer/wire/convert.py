"""Conversion of `peer.core.messages` to protobuf bytes (`pack_*`) and back (`unpack_*`).

Any bytes give a value whose fields have the types, shapes and ranges below, or RemoteProtocolError. The engine checks what
depends on the run: rounds, slots, weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.handshake import REVISIONS_TOLD
from coordinator_free_bootstrap.meaning import MEANING_CHARS_MAX
from coordinator_free_bootstrap.strict_json import dumps, loads, printable
from peer.core.messages import (
    HEADER_NUMBERS_MAX,
    NUMBERS_MAX,
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Numbers,
    Opening,
    Outcome,
    Pass,
    Phase,
    PullRequest,
    PushReply,
    Select,
    Statistics,
    SumMessage,
)
from peer.wire.frames import Frame
from peer.wire.generated import peer_pb2
from peer.wire.round_ring import RecordBatch

COUNT_MAX = 2**31 - 1  # of rounds, steps, slots, totals: the largest signed 32-bit integer
SAMPLES_MAX = 2**53  # up to here float64, and so every JSON reader, holds an integer exactly
DIGEST_CHARS_MAX = 128  # SHA-512 in hex
MANIFEST_CHARS_MAX = 1 << 20
REASON_CHARS_MAX = 4096
PADDING_BYTES_MAX = 1 << 20
# Of secure sums of 500 peers, the most of a graph file: 122 bytes and more of a key, 48 of a share, 32 of an opened one.
SUM_KEY_BYTES_MAX, ROSTER_BYTES_MAX, SHARES_BYTES_MAX, SUM_BYTES_MAX = 256, 1 << 17, 1 << 15, 1 << 15
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.05, 60.0

M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=StrEnum)


def unpack_hello(data: bytes) -> Hello:
    """Read a HelloRequest; raises RemoteProtocolError MALFORMED."""
    return _hello(parse(peer_pb2.HelloRequest, data))


def pack_hello(hello: Hello) -> bytes:
    """Write a HelloRequest."""
    return _message(peer_pb2.HelloRequest, hello).SerializeToString()


def unpack_hello_reply(data: bytes) -> HelloReply:
    """Read a HelloReply; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.HelloReply, data)
    return HelloReply(_hello(message.hello), _refusal(message), message.cannot_dial)


def pack_hello_reply(reply: HelloReply) -> bytes:
    """Write a HelloReply."""
    message = _build(
        peer_pb2.HelloReply,
        hello=_message(peer_pb2.HelloRequest, reply.hello),
        refusal=_refusal_message(reply.refusal),
        cannot_dial=reply.cannot_dial,
    )
    return message.SerializeToString()


def unpack_tunnel_ends(data: bytes) -> tuple[int, int, bool]:
    """Read the first frame of a tunnel: sender, other end, whether it is a probe; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.TunnelFrame, data)
    if not message.HasField("ends") or message.HasField("data"):
        raise RemoteProtocolError(
            RefusalCode.MALFORMED, "TunnelFrame: expected ends alone, got no ends, or data beside them"
        )
    return message.ends.sender, message.ends.other, message.ends.probe


def pack_tunnel_ends(sender: int, other: int, *, probe: bool = False) -> bytes:
    """Write the first frame of a tunnel."""
    return peer_pb2.TunnelFrame(ends=peer_pb2.TunnelEnds(sender=sender, other=other, probe=probe)).SerializeToString()


def unpack_heartbeat(data: bytes) -> Heartbeat:
    """Read a HeartbeatRequest; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.HeartbeatRequest, data)
    return Heartbeat(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        phase=_choice(message, "phase", Phase, RefusalCode.MALFORMED),
    )


def pack_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Write a HeartbeatRequest."""
    return _message(peer_pb2.HeartbeatRequest, heartbeat).SerializeToString()


def unpack_select(data: bytes) -> Select:
    """Read a SelectRequest; raises RemoteProtocolError MALFORMED or NON_FINITE."""
    message = parse(peer_pb2.SelectRequest, data)
    return Select(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        selected=_count(message, "selected", low=-1),
        numbers=_numbers(message, NUMBERS_MAX),
        declines=message.declines,
        roster=_bytes(message, "roster", ROSTER_BYTES_MAX),
    )


def pack_select(select: Select) -> bytes:
    """Write a SelectRequest."""
    return _message(peer_pb2.SelectRequest, select).SerializeToString()


def unpack_pass(data: bytes) -> Pass:
    """Read a PassRequest; raises RemoteProtocolError MALFORMED or NON_FINITE."""
    message = parse(peer_pb2.PassRequest, data)
    return Pass(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        step=_count(message, "step"),
        numbers=_numbers(message, NUMBERS_MAX),
    )


def pack_pass(message: Pass) -> bytes:
    """Write a PassRequest."""
    return _message(peer_pb2.PassRequest, message).SerializeToString()


def unpack_statistics(data: bytes) -> Statistics:
    """Read a StatisticsRequest; raises RemoteProtocolError MALFORMED or NON_FINITE."""
    message = parse(peer_pb2.StatisticsRequest, data)
    return Statistics(sender=message.sender, incarnation=message.incarnation, numbers=_numbers(message, NUMBERS_MAX))


def pack_statistics(message: Statistics) -> bytes:
    """Write a StatisticsRequest."""
    return _message(peer_pb2.StatisticsRequest, message).SerializeToString()


def unpack_sum(data: bytes) -> SumMessage:
    """Read a SumRequest; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.SumRequest, data)
    return SumMessage(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        kind=_choice(message, "kind", Opening, RefusalCode.MALFORMED),
        data=_bytes(message, "data", SUM_BYTES_MAX),
    )


def pack_sum(message: SumMessage) -> bytes:
    """Write a SumRequest."""
    return _message(peer_pb2.SumRequest, message).SerializeToString()


def unpack_acknowledgement(data: bytes) -> Refusal | None:
    """Read an Acknowledgement as refusal; None: accepted; raises RemoteProtocolError MALFORMED."""
    return _refusal(parse(peer_pb2.Acknowledgement, data))


def pack_acknowledgement(refusal: Refusal | None) -> bytes:
    """Write an Acknowledgement."""
    return _build(peer_pb2.Acknowledgement, refusal=_refusal_message(refusal)).SerializeToString()


def read_header(message: peer_pb2.ModelHeader) -> ModelHeader:
    """Check a parsed header; raises RemoteProtocolError MALFORMED, NON_FINITE, or WRONG_ENCODING for an unknown encoding."""
    if message.index >= message.total:
        raise _wrong(message, "index", message.index, f"0 to total - 1, which is {message.total - 1}")
    if message.size_bytes == 0:
        raise _wrong(message, "size_bytes", 0, "1 or more")
    if not (math.isfinite(message.mass) and message.mass >= 0):
        raise _wrong(message, "mass", message.mass, "a finite number, 0 or more")
    return ModelHeader(
        sender=message.sender,
        incarnation=message.incarnation,
        round_index=_count(message, "round_index"),
        step=_count(message, "step"),
        slot=_count(message, "slot"),
        index=_count(message, "index"),
        total=_count(message, "total"),
        sample_count=_count(message, "sample_count", high=SAMPLES_MAX),
        mass=message.mass,
        size_bytes=message.size_bytes,
        encoding=_choice(message, "encoding", _Encoding, RefusalCode.WRONG_ENCODING).value,
        base=message.base,
        numbers=_numbers(message, HEADER_NUMBERS_MAX),
        shares=_bytes(message, "shares", SHARES_BYTES_MAX),
    )


def first_header(frame: Frame) -> ModelHeader:
    """Check and return the header of a stream's first frame; raises RemoteProtocolError as `read_header` does."""
    if frame.header is None:
        raise RemoteProtocolError(RefusalCode.MALFORMED, "the first frame is not a header")
    return read_header(frame.header)


def pack_header(header: ModelHeader) -> bytes:
    """Write the first frame of a model stream."""
    return peer_pb2.PushFrame(header=_message(peer_pb2.ModelHeader, header)).SerializeToString()


def unpack_push_reply(data: bytes) -> PushReply:
    """Read a PushReply; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.PushReply, data)
    return _refusal(message) or _choice(message, "outcome", Outcome, RefusalCode.MALFORMED)


def pack_push_reply(reply: PushReply) -> bytes:
    """Write a PushReply."""
    if isinstance(reply, Refusal):
        return _build(peer_pb2.PushReply, refusal=_refusal_message(reply)).SerializeToString()
    return _build(peer_pb2.PushReply, outcome=_number(peer_pb2.Outcome, reply)).SerializeToString()


def unpack_pull(data: bytes) -> PullRequest:
    """Read a PullRequest; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.PullRequest, data)
    return PullRequest(message.sender, message.incarnation, _count(message, "slot"))


def pack_pull(request: PullRequest) -> bytes:
    """Write a PullRequest."""
    return _message(peer_pb2.PullRequest, request).SerializeToString()


def unpack_watch(data: bytes) -> tuple[float, int | None]:
    """Read a WatchStatusRequest: seconds between two replies, and the round from which on records are wanted, or None.

    Raises:
        RemoteProtocolError: MALFORMED.
    """
    message = parse(peer_pb2.WatchStatusRequest, data)
    interval_s = message.interval_s or 1.0
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise _wrong(message, "interval_s", interval_s, f"{INTERVAL_S_MIN} to {INTERVAL_S_MAX}, or 0 for 1")
    return interval_s, message.rounds_since if message.HasField("rounds_since") else None


def pack_watch(interval_s: float, rounds_since: int | None = None) -> bytes:
    """Write a WatchStatusRequest."""
    since = {} if rounds_since is None else {"rounds_since": rounds_since}
    return _build(peer_pb2.WatchStatusRequest, interval_s=interval_s, **since).SerializeToString()


def unpack_watched(data: bytes) -> tuple[dict[str, object], RecordBatch]:
    """Read a reply of WatchStatus: the status, and the records of rounds that came with it, not validated."""
    message = parse(peer_pb2.StatusReply, data)
    return unpack_status(data), RecordBatch(tuple(message.rounds), message.rounds_from)


def unpack_status_request(data: bytes) -> int:
    """Read the bytes of padding that a StatusRequest asks for; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.StatusRequest, data)
    if message.reply_bytes > PADDING_BYTES_MAX:
        raise _wrong(message, "reply_bytes", str(message.reply_bytes), f"at most {PADDING_BYTES_MAX} bytes")
    return message.reply_bytes


def pack_status_request(padding_bytes: int = 0, reply_bytes: int = 0) -> bytes:
    """Write a StatusRequest with ``padding_bytes`` of padding, which asks for ``reply_bytes`` of padding in return."""
    return peer_pb2.StatusRequest(padding=bytes(padding_bytes), reply_bytes=reply_bytes).SerializeToString()


def unpack_status(data: bytes) -> dict[str, object]:
    """Read the JSON object of a StatusReply; raises RemoteProtocolError MALFORMED."""
    message = parse(peer_pb2.StatusReply, data)
    try:
        status = loads(message.json)
    except ValueError as error:
        raise _wrong(message, "json", "invalid JSON", "a JSON object") from error
    if not isinstance(status, dict):
        raise _wrong(message, "json", f"a JSON {type(status).__name__}", "a JSON object")
    return status


def pack_status(status: Mapping[str, object], batch: RecordBatch | None = None, padding_bytes: int = 0) -> bytes:
    """Write a StatusReply: ``status`` as JSON, with null for NaN and Infinity; its typed fields are keys of the same names."""
    typed = {name: status[name] for name in ("peer_id", "incarnation", "round_index") if status.get(name) is not None}
    phase = _number(peer_pb2.Phase, str(status["phase"])) if status.get("phase") else 0
    optional: dict[str, object] = {"rounds": batch.records, "rounds_from": batch.rounds_from} if batch else {}
    if padding_bytes:
        optional["padding"] = bytes(padding_bytes)
    return _build(peer_pb2.StatusReply, **typed, **optional, phase=phase, json=dumps(status)).SerializeToString()


def parse(kind: type[M], data: bytes) -> M:
    """Parse bytes as a message of the given kind; raises RemoteProtocolError MALFORMED."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        sentence = f"{len(data)} bytes that cannot be parsed as {kind.DESCRIPTOR.name}"
        raise RemoteProtocolError(RefusalCode.MALFORMED, sentence) from error


class _Encoding(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    DELTA_INT8 = "delta_int8"
    DELTA_TOP10 = "delta_top10"
    DELTA_TOP1 = "delta_top1"
    MASKED = "masked"


def _hello(message: peer_pb2.HelloRequest) -> Hello:
    return Hello(
        sender=message.sender,
        incarnation=message.incarnation,
        wire_version=message.wire_version,
        manifest_digest=_text(message, "manifest_digest", DIGEST_CHARS_MAX),
        graph_digest=_text(message, "graph_digest", DIGEST_CHARS_MAX),
        schema_digest=_text(message, "schema_digest", DIGEST_CHARS_MAX),
        frozen_digest=_text(message, "frozen_digest", DIGEST_CHARS_MAX),
        initial_models_digest=_text(message, "initial_models_digest", DIGEST_CHARS_MAX),
        round_index=_count(message, "round_index"),
        phase=_choice(message, "phase", Phase, RefusalCode.MALFORMED),
        manifest=_text(message, "manifest", MANIFEST_CHARS_MAX),
        seen_incarnation=message.seen_incarnation,
        meaning=_text(message, "meaning", MEANING_CHARS_MAX),
        continues=_texts(message, "continues", REVISIONS_TOLD, DIGEST_CHARS_MAX),
        sum_key=_bytes(message, "sum_key", SUM_KEY_BYTES_MAX),
    )


def _message(kind: type[M], value: Any) -> M:
    """Make the message with the fields of a value of `peer.core.messages`."""
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if "numbers" in fields:
        fields["numbers"] = fields["numbers"].data
    if "phase" in fields:
        fields["phase"] = _number(peer_pb2.Phase, fields["phase"])
    if "kind" in fields:
        fields["kind"] = _number(peer_pb2.Opening, fields["kind"])
    if "encoding" in fields:
        fields["encoding"] = _number(peer_pb2.Encoding, fields["encoding"])
    return _build(kind, **fields)


def _build(kind: type[M], /, **fields: Any) -> M:
    """Make an outgoing message; raises LocalProtocolError for a value that does not fit its field."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"cannot send {kind.DESCRIPTOR.name}: {error}") from error


def _wrong(message: Message, field: str, actual: object, allowed: str) -> RemoteProtocolError:
    sentence = f"{message.DESCRIPTOR.name}.{field}: expected {allowed}, got {actual}"
    return RemoteProtocolError(RefusalCode.MALFORMED, sentence)


def _count(message: Message, field: str, *, low: int = 0, high: int = COUNT_MAX) -> int:
    value: int = getattr(message, field)
    if not low <= value <= high:
        raise _wrong(message, field, value, f"{low} to {high}")
    return value


def _text(message: Message, field: str, chars_max: int) -> str:
    value: str = getattr(message, field)
    if len(value) > chars_max:
        raise _wrong(message, field, len(value), f"at most {chars_max} characters")
    return value


def _texts(message: Message, field: str, most: int, chars_max: int) -> tuple[str, ...]:
    values: tuple[str, ...] = tuple(getattr(message, field))
    if len(values) > most or any(len(value) > chars_max for value in values):
        raise _wrong(message, field, f"{len(values)} texts", f"at most {most} texts of {chars_max} characters")
    return values


def _bytes(message: Message, field: str, most: int) -> bytes:
    value: bytes = getattr(message, field)
    if len(value) > most:
        raise _wrong(message, field, f"{len(value)} bytes", f"at most {most} bytes")
    return value


def _numbers(message: Any, most: int) -> Numbers:
    data: bytes = message.numbers
    if len(data) > 8 * most or len(data) % 8:
        raise _wrong(message, "numbers", f"{len(data)} bytes", f"at most {most} numbers of 8 bytes")
    numbers = Numbers(data)
    if data and not np.isfinite(numbers.array).all():
        raise RemoteProtocolError(
            RefusalCode.NON_FINITE,
            f"{message.DESCRIPTOR.name}.numbers: expected finite numbers, got a NaN or an infinity",
        )
    return numbers


def _refusal(message: Any) -> Refusal | None:
    """Read the refusal of an answer; its reason is safe to print, at most 200 characters and its length."""
    if not message.HasField("refusal"):
        return None
    refusal: peer_pb2.Refusal = message.refusal
    try:
        code = RefusalCode(refusal.code)
    except ValueError as error:
        raise _wrong(refusal, "code", repr(refusal.code[:64]), "a code of WIRE.md") from error
    return Refusal(code, printable(_text(refusal, "reason", REASON_CHARS_MAX)))


def _refusal_message(refusal: Refusal | None) -> peer_pb2.Refusal | None:
    """Make the refusal of an answer; a reason longer than the limit is cut."""
    if refusal is None:
        return None
    return _build(peer_pb2.Refusal, code=refusal.code, reason=refusal.reason[:REASON_CHARS_MAX])


def _choice(message: Message, field: str, kind: type[E], code: RefusalCode) -> E:
    """Read a protobuf enum by name: PHASE_RUNNING is Phase.RUNNING; 0 and unknown numbers are refused with ``code``."""
    number: int = getattr(message, field)
    values = getattr(message.DESCRIPTOR.fields_by_name[field].enum_type, "values_by_number", {})
    name = values[number].name.partition("_")[2].lower() if number in values else ""
    try:
        return kind(name)
    except ValueError as error:
        raise RemoteProtocolError(code, f"{message.DESCRIPTOR.name}.{field}: unknown number {number}") from error


def _number(kind: Any, value: str) -> int:
    try:
        return int(kind.Value(f"{kind.DESCRIPTOR.name.upper()}_{value.upper()}"))
    except ValueError as error:
        raise LocalProtocolError(f"{value!r} has no number in {kind.DESCRIPTOR.name}") from error
