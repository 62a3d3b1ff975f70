"""The limits of every message field, at the limit and one beyond it; the enums of the proto and of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import LocalProtocolError, Refusal, RefusalCode, RemoteProtocolError
from peer.core.encoding import ENCODINGS, MASKED
from peer.core.messages import HEADER_NUMBERS_MAX, NUMBERS_MAX, Heartbeat, Numbers, Outcome, Phase, Select
from peer.wire import convert
from peer.wire.generated import peer_pb2

HELLO: dict[str, Any] = {"phase": peer_pb2.PHASE_RUNNING}
HEADER: dict[str, Any] = {"total": 1, "size_bytes": 4, "encoding": peer_pb2.ENCODING_FLOAT32}
CASES = [
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "round_index", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "graph_digest", "x" * 128, "x" * 129),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "manifest", "x" * (1 << 20), "x" * ((1 << 20) + 1)),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "continues", ["x" * 128] * 16, ["x"] * 17),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "continues", [], ["x" * 129]),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "phase", 4, 5),
    (convert.unpack_hello, peer_pb2.HelloRequest, HELLO, "phase", 1, 0),
    (
        convert.unpack_heartbeat,
        peer_pb2.HeartbeatRequest,
        HELLO,
        "round_index",
        convert.COUNT_MAX,
        convert.COUNT_MAX + 1,
    ),
    (convert.unpack_heartbeat, peer_pb2.HeartbeatRequest, {}, "phase", 4, 5),
    (convert.unpack_pass, peer_pb2.PassRequest, {}, "round_index", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_pass, peer_pb2.PassRequest, {}, "step", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_pull, peer_pb2.PullRequest, {}, "slot", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_select, peer_pb2.SelectRequest, {}, "round_index", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    (convert.unpack_select, peer_pb2.SelectRequest, {}, "selected", -1, -2),
    (convert.unpack_select, peer_pb2.SelectRequest, {}, "numbers", bytes(8 * NUMBERS_MAX), bytes(8 * NUMBERS_MAX + 8)),
    (convert.unpack_select, peer_pb2.SelectRequest, {}, "numbers", bytes(16), bytes(15)),
    (convert.unpack_pass, peer_pb2.PassRequest, {}, "numbers", bytes(8 * NUMBERS_MAX), bytes(8 * NUMBERS_MAX + 8)),
    (
        convert.unpack_statistics,
        peer_pb2.StatisticsRequest,
        {},
        "numbers",
        bytes(8 * NUMBERS_MAX),
        bytes(8 * NUMBERS_MAX + 8),
    ),
    (convert.unpack_watch, peer_pb2.WatchStatusRequest, {}, "interval_s", 0.05, 0.04),
    (convert.unpack_watch, peer_pb2.WatchStatusRequest, {}, "interval_s", 60.0, 61.0),
    (convert.unpack_status, peer_pb2.StatusReply, {}, "json", "{}", "[]"),
]
REFUSAL_CASES = [
    ("reason", "x" * 4096, "x" * 4097),
    ("code", "too_slow", "too_fast"),
    ("code", "too_slow", ""),
]
HEADER_CASES = [
    ("slot", convert.COUNT_MAX, convert.COUNT_MAX + 1),
    ("index", 0, 1),
    ("sample_count", convert.SAMPLES_MAX, convert.SAMPLES_MAX + 1),
    ("mass", 0.0, -1.0),
    ("mass", 1e300, np.nan),
    ("size_bytes", 1, 0),
    ("numbers", bytes(8 * HEADER_NUMBERS_MAX), bytes(8 * HEADER_NUMBERS_MAX + 8)),
]


@pytest.mark.parametrize(("unpack", "kind", "others", "field", "allowed", "refused"), CASES)
def test_field_is_accepted_at_its_limit_and_refused_beyond_it(
    unpack: Any, kind: Any, others: dict[str, Any], field: str, allowed: Any, refused: Any
) -> None:
    unpack(kind(**(others | {field: allowed})).SerializeToString())
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        unpack(kind(**(others | {field: refused})).SerializeToString())
    assert caught.value.refusal.code is RefusalCode.MALFORMED


@pytest.mark.parametrize("kind", [peer_pb2.PushReply, peer_pb2.Acknowledgement])
@pytest.mark.parametrize(("field", "allowed", "refused"), REFUSAL_CASES)
def test_field_of_a_refusal_is_accepted_at_its_limit_and_refused_beyond_it(
    kind: Any, field: str, allowed: str, refused: str
) -> None:
    unpack = {peer_pb2.PushReply: convert.unpack_push_reply, peer_pb2.Acknowledgement: convert.unpack_acknowledgement}[
        kind
    ]

    def answer(value: str) -> bytes:
        data: bytes = kind(refusal=peer_pb2.Refusal(**({"code": "malformed"} | {field: value}))).SerializeToString()
        return data

    assert isinstance(unpack(answer(allowed)), Refusal)
    with pytest.raises(RemoteProtocolError, match=f"Refusal.{field}") as caught:
        unpack(answer(refused))
    assert caught.value.refusal.code is RefusalCode.MALFORMED


def test_push_reply_that_says_nothing_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match=r"PushReply\.outcome"):
        convert.unpack_push_reply(b"")


@pytest.mark.parametrize(("field", "allowed", "refused"), HEADER_CASES)
def test_header_field_is_accepted_at_its_limit_and_refused_beyond_it(field: str, allowed: Any, refused: Any) -> None:
    convert.read_header(peer_pb2.ModelHeader(**(HEADER | {field: allowed})))
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        convert.read_header(peer_pb2.ModelHeader(**(HEADER | {field: refused})))
    assert caught.value.refusal.code is RefusalCode.MALFORMED


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    numbers = Numbers.of(1.0, wrong).data
    for unpack, kind in (
        (convert.unpack_select, peer_pb2.SelectRequest),
        (convert.unpack_pass, peer_pb2.PassRequest),
        (convert.unpack_statistics, peer_pb2.StatisticsRequest),
    ):
        with pytest.raises(RemoteProtocolError, match="numbers") as caught:
            unpack(kind(numbers=numbers).SerializeToString())
        assert caught.value.refusal.code is RefusalCode.NON_FINITE
    with pytest.raises(RemoteProtocolError, match="numbers") as caught:
        convert.read_header(peer_pb2.ModelHeader(**(HEADER | {"numbers": numbers})))
    assert caught.value.refusal.code is RefusalCode.NON_FINITE


@pytest.mark.parametrize(
    ("ours", "theirs"), [(list(Phase), "Phase"), (list(Outcome), "Outcome"), ([*ENCODINGS, MASKED], "Encoding")]
)
def test_enums_of_python_and_proto_have_the_same_names(ours: list[str], theirs: str) -> None:
    names = peer_pb2.DESCRIPTOR.enum_types_by_name[theirs].values_by_name
    assert set(names) == {f"{theirs.upper()}_{name.upper()}" for name in ["unspecified", *ours]}


def test_long_reason_is_cut() -> None:
    data = convert.pack_push_reply(Refusal(RefusalCode.MALFORMED, "x" * 5000))
    assert len(peer_pb2.PushReply.FromString(data).refusal.reason) == convert.REASON_CHARS_MAX


def test_outgoing_value_that_does_not_fit_its_field_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="HeartbeatRequest"):
        convert.pack_heartbeat(Heartbeat(-1, 0, 0, Phase.RUNNING))
    with pytest.raises(LocalProtocolError, match="Phase"):
        convert.pack_heartbeat(Heartbeat(1, 0, 0, "asleep"))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="SelectRequest"):
        convert.pack_select(Select(1, 0, 2**32))


def test_reason_of_a_neighbor_is_safe_to_print() -> None:
    """Before, a reason had up to 4,096 characters and any character, as the neighbor wrote it."""
    refusal = peer_pb2.Refusal(code="too_slow", reason="\u202e" + "x" * 4057)
    reason = convert.unpack_push_reply(peer_pb2.PushReply(refusal=refusal).SerializeToString()).reason
    assert reason == "\\u202e" + "x" * 194 + "... (4058 characters)"


def test_status_with_nan_is_sent_as_null_and_refused_if_received() -> None:
    assert convert.unpack_status(convert.pack_status({"metric_value": float("nan")})) == {"metric_value": None}
    with pytest.raises(RemoteProtocolError, match=r"StatusReply\.json: expected a JSON object, got invalid JSON"):
        convert.unpack_status(peer_pb2.StatusReply(json='{"metric_value": NaN}').SerializeToString())
