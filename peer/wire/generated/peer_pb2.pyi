from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_RUNNING: _ClassVar[Phase]
    PHASE_FINISHED: _ClassVar[Phase]
    PHASE_LEAVING: _ClassVar[Phase]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FLOAT32: _ClassVar[Encoding]
    ENCODING_FLOAT16: _ClassVar[Encoding]
    ENCODING_BFLOAT16: _ClassVar[Encoding]
    ENCODING_INT8: _ClassVar[Encoding]
    ENCODING_DELTA_INT8: _ClassVar[Encoding]
    ENCODING_DELTA_TOP10: _ClassVar[Encoding]
    ENCODING_DELTA_TOP1: _ClassVar[Encoding]
    ENCODING_MASKED: _ClassVar[Encoding]

class Opening(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPENING_UNSPECIFIED: _ClassVar[Opening]
    OPENING_MEMBERS: _ClassVar[Opening]
    OPENING_AGREES: _ClassVar[Opening]
    OPENING_AGREED: _ClassVar[Opening]
    OPENING_REVEALS: _ClassVar[Opening]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_FOLDED: _ClassVar[Outcome]
    OUTCOME_DUPLICATE: _ClassVar[Outcome]
    OUTCOME_STALE: _ClassVar[Outcome]
    OUTCOME_UNUSED: _ClassVar[Outcome]
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_RUNNING: Phase
PHASE_FINISHED: Phase
PHASE_LEAVING: Phase
ENCODING_UNSPECIFIED: Encoding
ENCODING_FLOAT32: Encoding
ENCODING_FLOAT16: Encoding
ENCODING_BFLOAT16: Encoding
ENCODING_INT8: Encoding
ENCODING_DELTA_INT8: Encoding
ENCODING_DELTA_TOP10: Encoding
ENCODING_DELTA_TOP1: Encoding
ENCODING_MASKED: Encoding
OPENING_UNSPECIFIED: Opening
OPENING_MEMBERS: Opening
OPENING_AGREES: Opening
OPENING_AGREED: Opening
OPENING_REVEALS: Opening
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_FOLDED: Outcome
OUTCOME_DUPLICATE: Outcome
OUTCOME_STALE: Outcome
OUTCOME_UNUSED: Outcome

class Refusal(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "wire_version", "manifest_digest", "graph_digest", "schema_digest", "initial_models_digest", "round_index", "phase", "manifest", "seen_incarnation", "frozen_digest", "meaning", "continues", "sum_key")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MODELS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SEEN_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FROZEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    SUM_KEY_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    wire_version: int
    manifest_digest: str
    graph_digest: str
    schema_digest: str
    initial_models_digest: str
    round_index: int
    phase: Phase
    manifest: str
    seen_incarnation: int
    frozen_digest: str
    meaning: str
    continues: _containers.RepeatedScalarFieldContainer[str]
    sum_key: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., wire_version: _Optional[int] = ..., manifest_digest: _Optional[str] = ..., graph_digest: _Optional[str] = ..., schema_digest: _Optional[str] = ..., initial_models_digest: _Optional[str] = ..., round_index: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., manifest: _Optional[str] = ..., seen_incarnation: _Optional[int] = ..., frozen_digest: _Optional[str] = ..., meaning: _Optional[str] = ..., continues: _Optional[_Iterable[str]] = ..., sum_key: _Optional[bytes] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("hello", "refusal", "cannot_dial")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CANNOT_DIAL_FIELD_NUMBER: _ClassVar[int]
    hello: HelloRequest
    refusal: Refusal
    cannot_dial: bool
    def __init__(self, hello: _Optional[_Union[HelloRequest, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., cannot_dial: _Optional[bool] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "round_index", "phase")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    round_index: int
    phase: Phase
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class SelectRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "round_index", "selected", "numbers", "declines", "roster")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DECLINES_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    round_index: int
    selected: int
    numbers: bytes
    declines: bool
    roster: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., selected: _Optional[int] = ..., numbers: _Optional[bytes] = ..., declines: _Optional[bool] = ..., roster: _Optional[bytes] = ...) -> None: ...

class PassRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "round_index", "step", "numbers")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    round_index: int
    step: int
    numbers: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., step: _Optional[int] = ..., numbers: _Optional[bytes] = ...) -> None: ...

class StatisticsRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "numbers")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    numbers: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., numbers: _Optional[bytes] = ...) -> None: ...

class SumRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "round_index", "kind", "data")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    round_index: int
    kind: Opening
    data: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., kind: _Optional[_Union[Opening, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("sender", "incarnation", "round_index", "step", "slot", "index", "total", "sample_count", "mass", "numbers", "size_bytes", "encoding", "base", "shares")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    round_index: int
    step: int
    slot: int
    index: int
    total: int
    sample_count: int
    mass: float
    numbers: bytes
    size_bytes: int
    encoding: Encoding
    base: int
    shares: bytes
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., step: _Optional[int] = ..., slot: _Optional[int] = ..., index: _Optional[int] = ..., total: _Optional[int] = ..., sample_count: _Optional[int] = ..., mass: _Optional[float] = ..., numbers: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., base: _Optional[int] = ..., shares: _Optional[bytes] = ...) -> None: ...

class ModelEnd(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class PushFrame(_message.Message):
    __slots__ = ("header", "chunk", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    chunk: bytes
    end: ModelEnd
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., end: _Optional[_Union[ModelEnd, _Mapping]] = ...) -> None: ...

class TunnelFrame(_message.Message):
    __slots__ = ("ends", "data")
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ends: TunnelEnds
    data: bytes
    def __init__(self, ends: _Optional[_Union[TunnelEnds, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TunnelEnds(_message.Message):
    __slots__ = ("sender", "other", "probe")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    sender: int
    other: int
    probe: bool
    def __init__(self, sender: _Optional[int] = ..., other: _Optional[int] = ..., probe: _Optional[bool] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("outcome", "refusal")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    refusal: Refusal
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("sender", "incarnation", "slot")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    sender: int
    incarnation: int
    slot: int
    def __init__(self, sender: _Optional[int] = ..., incarnation: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("padding", "reply_bytes")
    PADDING_FIELD_NUMBER: _ClassVar[int]
    REPLY_BYTES_FIELD_NUMBER: _ClassVar[int]
    padding: bytes
    reply_bytes: int
    def __init__(self, padding: _Optional[bytes] = ..., reply_bytes: _Optional[int] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("interval_s", "rounds_since")
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_SINCE_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    rounds_since: int
    def __init__(self, interval_s: _Optional[float] = ..., rounds_since: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("peer_id", "incarnation", "round_index", "phase", "json", "rounds", "rounds_from", "padding")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FROM_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    peer_id: int
    incarnation: int
    round_index: int
    phase: Phase
    json: str
    rounds: _containers.RepeatedScalarFieldContainer[str]
    rounds_from: int
    padding: bytes
    def __init__(self, peer_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., round_index: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., json: _Optional[str] = ..., rounds: _Optional[_Iterable[str]] = ..., rounds_from: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...
