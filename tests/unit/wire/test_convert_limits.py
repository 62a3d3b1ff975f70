"""Every limit of a message, at the limit and one past it; and the enums of the proto against ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RemoteProtocolError
from peer.core.messages import Announce, Beat, Outcome, Phase, PushReply
from peer.wire import codec, convert
from peer.wire.generated import peer_pb2

HELLO: dict[str, Any] = {"phase": peer_pb2.PHASE_RUNNING}
BEAT: dict[str, Any] = {"phase": peer_pb2.PHASE_RUNNING}
HEADER: dict[str, Any] = {"total": 1, "size_bytes": 4, "encoding": peer_pb2.ENCODING_FLOAT32}
CASES = [
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "round_index", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "graph_digest", "x" * 128, "x" * 129),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "manifest", "x" * (1 << 20), "x" * ((1 << 20) + 1)),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "phase", 4, 5),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "phase", 1, 0),
    (convert.unpack_beat, peer_pb2.BeatRequest, BEAT, "persisted_round", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "total", -1, -2),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "selected", -1, -2),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "scalars", [0.0] * 4096, [0.0] * 4097),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "scalars", [1e308], [np.inf]),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "sketch", bytes(1 << 20), bytes((1 << 20) + 4)),
    (convert.unpack_announce, peer_pb2.AnnounceRequest, {}, "sketch", bytes(4), bytes(3)),
    (convert.unpack_push_reply, peer_pb2.PushReply, {"outcome": 1}, "reason", "x" * 4096, "x" * 4097),
    (convert.unpack_push_reply, peer_pb2.PushReply, {"outcome": 1}, "refusal", "too_slow", "too_fast"),
    (convert.unpack_watch, peer_pb2.WatchStatusRequest, {}, "interval_s", 0.05, 0.04),
    (convert.unpack_watch, peer_pb2.WatchStatusRequest, {}, "interval_s", 60.0, 61.0),
    (convert.unpack_status, peer_pb2.StatusReply, {}, "json", "{}", "[]"),
]
HEADER_CASES = [
    ("slot", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    ("index", 0, 1),
    ("sample_count", convert.SAMPLES_MAX, convert.SAMPLES_MAX + 1),
    ("mass", 0.0, -1.0),
    ("mass", 1e300, np.nan),
    ("size_bytes", 1, 0),
]


@pytest.mark.parametrize(("unpack", "kind", "others", "field", "allowed", "refused"), CASES)
def test_a_field_is_taken_at_its_limit_and_refused_past_it(
    unpack: Any, kind: Any, others: dict[str, Any], field: str, allowed: Any, refused: Any
) -> None:
    unpack(kind(**(others | {field: allowed})).SerializeToString())
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        unpack(kind(**(others | {field: refused})).SerializeToString())
    assert caught.value.code is Refusal.MALFORMED


@pytest.mark.parametrize(("field", "allowed", "refused"), HEADER_CASES)
def test_a_header_field_is_taken_at_its_limit_and_refused_past_it(field: str, allowed: Any, refused: Any) -> None:
    convert.read_header(peer_pb2.ModelHeader(**(HEADER | {field: allowed})))
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        convert.read_header(peer_pb2.ModelHeader(**(HEADER | {field: refused})))
    assert caught.value.code is Refusal.MALFORMED


def test_a_sketch_must_be_finite() -> None:
    sketch = np.array([1.0, np.nan], "<f4").tobytes()
    with pytest.raises(RemoteProtocolError) as caught:
        convert.unpack_announce(peer_pb2.AnnounceRequest(sketch=sketch).SerializeToString())
    assert caught.value.code is Refusal.NON_FINITE


@pytest.mark.parametrize(
    ("ours", "theirs"), [(list(Phase), "Phase"), (list(Outcome), "Outcome"), (codec.ENCODINGS, "Encoding")]
)
def test_our_enums_are_those_of_the_proto(ours: list[str], theirs: str) -> None:
    names = peer_pb2.DESCRIPTOR.enum_types_by_name[theirs].values_by_name
    assert set(names) == {f"{theirs.upper()}_{name.upper()}" for name in ["unspecified", *ours]}


def test_a_long_reason_is_cut_and_a_value_that_does_not_fit_is_our_bug() -> None:
    reply = convert.unpack_push_reply(convert.pack_push_reply(PushReply(Outcome.STALE, None, "x" * 5000)))
    assert len(reply.reason) == convert.REASON_CHARS_MAX
    with pytest.raises(LocalProtocolError, match="BeatRequest"):
        convert.pack_beat(Beat(-1, 0, 0, 0, Phase.RUNNING))
    with pytest.raises(LocalProtocolError, match="Phase"):
        convert.pack_beat(Beat(1, 0, 0, 0, "asleep"))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="AnnounceRequest"):
        convert.pack_announce(Announce(1, 0, 2**32, 0, 0))
