"""Encodings: round trip, error bounds, error feedback. Messages: any bytes give a value or RemoteProtocolError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError
from peer.core.encoding import ENCODINGS, ErrorFeedback, checked_norm_squared, decode, encode, payload_size
from peer.core.messages import (
    Heartbeat,
    Hello,
    HelloReply,
    ModelHeader,
    Numbers,
    Opening,
    Pass,
    Phase,
    PullRequest,
    Select,
    Statistics,
    SumMessage,
)
from peer.core.schema import Schema, TensorSpec
from peer.wire import convert, frames
from peer.wire.generated import peer_pb2

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=4)


@st.composite
def models(draw: st.DrawFn, elements: st.SearchStrategy[float] = FLOATS) -> tuple[Schema, np.ndarray]:
    schema = Schema(tuple(TensorSpec(f"t{i}", shape) for i, shape in enumerate(draw(SHAPES))))
    return schema, draw(st_numpy.arrays(np.float32, schema.size, elements=elements))


@given(models(st.floats(width=32)))
def test_float32_round_trip_is_exact_and_without_a_copy(model: tuple[Schema, np.ndarray]) -> None:
    schema, theta = model
    payload = encode(theta, schema, "float32")
    assert bytes(payload) == theta.astype("<f4").tobytes()
    assert decode(payload, schema, "float32").tobytes() == theta.tobytes()
    if theta.size:
        assert np.shares_memory(np.frombuffer(payload, np.uint8), theta)
        received = np.frombuffer(bytes(payload), np.uint8)
        assert np.shares_memory(decode(received, schema, "float32"), received)


@given(models(), st.sampled_from(ENCODINGS))
def test_payload_has_the_predicted_size_and_any_other_size_is_refused(
    model: tuple[Schema, np.ndarray], encoding: str
) -> None:
    schema, theta = model
    payload = bytes(encode(theta, schema, encoding))
    assert len(payload) == payload_size(schema, encoding)
    for wrong in (payload + b"\0", payload[:-1]):
        if len(wrong) != len(payload):
            with pytest.raises(RemoteProtocolError) as caught:
                decode(wrong, schema, encoding)
            assert caught.value.refusal.code is RefusalCode.WRONG_SIZE


@given(models())
def test_float16_error_is_half_a_unit_and_large_values_saturate(model: tuple[Schema, np.ndarray]) -> None:
    schema, theta = model
    decoded = decode(encode(theta, schema, "float16"), schema, "float16")
    truth = np.clip(theta.astype(np.float64), -65504, 65504)
    assert np.all(np.abs(decoded - truth) <= np.maximum(np.abs(truth) * 2.0**-11, 2.0**-25))


@given(models(st.floats(width=32, allow_nan=False, allow_infinity=False)))
@example(
    (Schema((TensorSpec("t", (2,)),)), np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max], np.float32))
)
def test_bfloat16_rounds_to_nearest_even_and_stays_finite(model: tuple[Schema, np.ndarray]) -> None:
    schema, theta = model
    decoded = decode(encode(theta, schema, "bfloat16"), schema, "bfloat16")
    bits = theta.view(np.uint32).astype(np.int64)
    low, kept = bits & 0xFFFF, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (kept & 1 == 1))
    expected = kept + up
    expected = np.where(expected & 0x7FFF == 0x7F80, expected - 1, expected)  # infinity becomes the largest number
    assert np.array_equal(decoded.view(np.uint32) >> 16, expected.astype(np.uint32))
    assert np.isfinite(decoded).all()


@given(models())
def test_int8_error_is_half_a_step_of_the_tensor(model: tuple[Schema, np.ndarray]) -> None:
    schema, theta = model
    decoded = decode(encode(theta, schema, "int8"), schema, "int8")
    for _tensor, place in schema.slices():
        step = np.abs(theta[place]).max(initial=0) / 127
        # Where the step underflows float32's normal numbers its own rounding counts, too.
        assert np.all(np.abs(decoded[place].astype(float) - theta[place]) <= step * 0.5001 + 127 * 2.0**-149)


@given(models(st.floats(-10, 10, width=32)), st.sampled_from(["float16", "bfloat16", "int8"]), st.integers(1, 30))
def test_sum_of_models_with_error_feedback_is_exact_up_to_one_residual(
    model: tuple[Schema, np.ndarray], encoding: str, repeats: int
) -> None:
    schema, theta = model
    feedback, total = ErrorFeedback(schema), np.zeros(schema.size)
    for _ in range(repeats):
        total += decode(feedback.encode(theta, encoding), schema, encoding)
    # The sum of all errors is one residual, for any number of repeats; float32 rounding grows with the repeats.
    assert np.allclose(total + feedback.residual, repeats * theta.astype(float), atol=repeats * 1e-5)
    assert np.abs(feedback.residual).max(initial=0) <= 0.1


@given(models(), st.sampled_from(ENCODINGS), st.data())
def test_any_payload_of_the_right_size_decodes_or_is_refused(
    model: tuple[Schema, np.ndarray], encoding: str, data: st.DataObject
) -> None:
    schema, _theta = model
    size = payload_size(schema, encoding)
    payload = data.draw(st.binary(min_size=size, max_size=size))
    try:
        decoded = decode(payload, schema, encoding)
    except RemoteProtocolError as error:
        assert error.refusal.code is RefusalCode.MALFORMED
    else:
        assert decoded.shape == (schema.size,) and decoded.dtype == np.float32


@given(st_numpy.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
def test_norm_is_refused_exactly_if_an_element_is_not_finite(theta: np.ndarray) -> None:
    if np.isfinite(theta).all():
        assert checked_norm_squared(theta) == pytest.approx(
            float(np.square(theta.astype(float)).sum()), rel=1e-5, abs=1e-35
        )
    else:
        with pytest.raises(RemoteProtocolError) as caught:
            checked_norm_squared(theta)
        assert caught.value.refusal.code is RefusalCode.NON_FINITE


@given(st.binary(min_size=1, max_size=400), st.integers(1, 100).map(lambda n: 4 * n))
def test_frames_of_a_model_are_read_back_here_and_by_protobuf(payload: bytes, frame_bytes: int) -> None:
    buffer = np.zeros(len(payload), np.uint8)
    writer = frames.ChunkWriter(buffer, frame_bytes_max=frame_bytes, float32=False)
    made = [frame for frame, _size in frames.model_frames(convert.pack_header(HEADER), payload, frame_bytes)]
    read = [frames.read_frame(frame) for frame in made]
    assert convert.first_header(read[0]) == HEADER
    assert len(read) == (1 if len(payload) <= frame_bytes else 1 + -(-len(payload) // frame_bytes))
    read[0] = read[0]._replace(header=None)
    assert [writer.write(frame) for frame in read] == [False] * (len(made) - 1) + [True]
    assert buffer.tobytes() == payload
    standard = [peer_pb2.PushFrame.FromString(frame) for frame in made]
    assert b"".join(frame.chunk for frame in standard) == payload
    assert standard[-1].end.digest == xxhash.xxh3_128(payload).digest()
    assert [frame.SerializeToString() for frame in standard] == made


FIELDS = [
    "0a020801",
    "0a020802",
    "120161",
    "12026263",
    "1a030a0164",
    "4001",
]  # two headers, two chunks, an end, an unknown one


@given(st.lists(st.sampled_from(FIELDS).map(bytes.fromhex)))
def test_fields_in_any_order_are_read_as_by_protobuf(fields: list[bytes]) -> None:
    test_frame_is_parsed_as_by_protobuf.hypothesis.inner_test(b"".join(fields))  # type: ignore[attr-defined]


@given(st.binary(max_size=300))
@example(bytes([frames.CHUNK_TAG]))
@example(bytes([frames.CHUNK_TAG, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01]))
def test_frame_is_parsed_as_by_protobuf(data: bytes) -> None:
    try:
        frame = frames.read_frame(data)
    except RemoteProtocolError as error:
        assert error.refusal.code is RefusalCode.MALFORMED
    else:
        standard = peer_pb2.PushFrame.FromString(data)
        assert (frame.chunk is not None) == standard.HasField("chunk")
        assert bytes(frame.chunk or b"") == standard.chunk
        assert (frame.end or peer_pb2.ModelEnd()) == standard.end
        assert (frame.header or peer_pb2.ModelHeader()) == standard.header


@st.composite
def nearly(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid message with a few bytes changed, removed or inserted; it passes more checks than random bytes."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


HELLO = Hello(
    wire_version=2,
    manifest_digest="m" * 64,
    graph_digest="g" * 64,
    schema_digest="s" * 64,
    frozen_digest="f" * 32,
    manifest='{"a": 1}',
    meaning='{"b": 2}',
    sender=2,
    incarnation=2**64 - 1,
    round_index=3,
    phase=Phase.RUNNING,
    seen_incarnation=5,
    continues=("c" * 64, "d" * 64),
    sum_key=b"k",
)
HEARTBEAT = Heartbeat(2, 7, 3, Phase.LEAVING)
SELECT = Select(2, 7, 3, 4, Numbers.of(0.5, -2.0), roster=b"keys")
PASS = Pass(2, 7, 3, 1, Numbers.of(1e300))
SUM = SumMessage(2, 7, 3, Opening.AGREED, bytes(range(40)))
STATISTICS = Statistics(1, 7, Numbers.of(1, [2.0, 0.5]))
HEADER = ModelHeader(2, 7, 3, 0, 1, 0, 2, 100, 0.25, 1 << 40, "bfloat16", numbers=Numbers.of(1.5), shares=b"sealed")
REPLY = Refusal(RefusalCode.NON_FINITE, "a NaN")
STATUS: dict[str, Any] = {"peer_id": 3, "phase": "running", "metric_value": 0.5}
Reader = Callable[[bytes], Any]
MESSAGES: list[tuple[Reader, bytes, Any]] = [
    (convert.unpack_hello, convert.pack_hello(HELLO), HELLO),
    (
        convert.unpack_hello_reply,
        convert.pack_hello_reply(HelloReply(HELLO, Refusal(RefusalCode.GRAPH_MISMATCH, "other graph"))),
        HelloReply(HELLO, Refusal(RefusalCode.GRAPH_MISMATCH, "other graph")),
    ),
    (convert.unpack_heartbeat, convert.pack_heartbeat(HEARTBEAT), HEARTBEAT),
    (convert.unpack_select, convert.pack_select(SELECT), SELECT),
    (convert.unpack_pass, convert.pack_pass(PASS), PASS),
    (convert.unpack_statistics, convert.pack_statistics(STATISTICS), STATISTICS),
    (convert.unpack_sum, convert.pack_sum(SUM), SUM),
    (
        convert.unpack_acknowledgement,
        convert.pack_acknowledgement(Refusal(RefusalCode.NO_HANDSHAKE, "no hello")),
        Refusal(RefusalCode.NO_HANDSHAKE, "no hello"),
    ),
    (lambda data: convert.first_header(frames.read_frame(data)), convert.pack_header(HEADER), HEADER),
    (convert.unpack_push_reply, convert.pack_push_reply(REPLY), REPLY),
    (convert.unpack_pull, convert.pack_pull(PullRequest(2, 7, 1)), PullRequest(2, 7, 1)),
    (convert.unpack_watch, convert.pack_watch(0.5), (0.5, None)),
    (convert.unpack_watch, convert.pack_watch(0.5, 0), (0.5, 0)),
    (convert.unpack_status, convert.pack_status(STATUS), STATUS),
]


@pytest.mark.parametrize(("unpack", "data", "value"), MESSAGES)
def test_message_round_trip_is_exact(unpack: Reader, data: bytes, value: Any) -> None:
    assert unpack(data) == value


@pytest.mark.parametrize(("unpack", "data"), [message[:2] for message in MESSAGES])
@given(st.data())
def test_any_bytes_give_a_value_or_a_remote_protocol_error(unpack: Reader, data: bytes, draw: st.DataObject) -> None:
    for tried in (draw.draw(st.binary(max_size=100)), draw.draw(nearly(data))):
        try:
            unpack(tried)
        except RemoteProtocolError as error:
            assert error.refusal.code in (RefusalCode.MALFORMED, RefusalCode.WRONG_ENCODING, RefusalCode.NON_FINITE)
