"""proto/WIRE.md against the code: methods, wire version, outcomes, encodings, limits, manifest keys."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap import Manifest
from coordinator_free_bootstrap.errors import RefusalCode
from coordinator_free_bootstrap.handshake import REVISIONS_TOLD
from coordinator_free_bootstrap.identity import INCARNATION_MAX
from coordinator_free_bootstrap.manifest import Limits
from coordinator_free_bootstrap.meaning import MEANING_CHARS_MAX, Meaning
from coordinator_free_bootstrap.rates import RATE_EXPECTED
from peer.core.constants import DEFAULTS
from peer.core.encoding import ENCODINGS, MASKED, payload_size
from peer.core.messages import HEADER_NUMBERS_MAX, NUMBERS_MAX, WIRE_VERSION, Outcome
from peer.core.schema import Schema, TensorSpec
from peer.wire import access, convert
from peer.wire.access import REFUSAL_TRAILER
from peer.wire.arrival_reader import ACCEPTED_METADATA
from peer.wire.generated import peer_pb2
from peer.wire.limits import WireLimits
from peer.wire.options import SERVICE
from peer.wire.round_ring import ROUNDS_KEPT
from peer.wire.switchboard import CONNECTIONS_PER_OFFER

TEXT = (Path(__file__).resolve().parents[3] / "proto/WIRE.md").read_text()
WIRE = WireLimits()
CODE = re.compile(r"`([^`]+)`")


def rows(first_heading: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this heading."""
    table = TEXT[TEXT.index(f"| {first_heading} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def power(value: int) -> str:
    """Return a number near a power of two as the document writes it."""
    exponent = (value + 1).bit_length() - 1
    return f"2^{exponent}" if value == 1 << exponent else f"2^{exponent} - 1"


def test_meaning_table_has_every_key_once() -> None:
    keys = [key for first, _value, _effect in rows("key") for key in CODE.findall(first)]
    assert sorted(keys) == sorted(Meaning.__dataclass_fields__)


def test_outcome_table_has_every_outcome_once() -> None:
    assert [CODE.findall(first)[0].lower() for first, _ in rows("outcome")] == list(Outcome)


def test_method_table_is_the_service_of_the_proto() -> None:
    service = peer_pb2.DESCRIPTOR.services_by_name["PeerService"]
    assert service.full_name == SERVICE and f"`{SERVICE}`" in TEXT

    def shown(name: str, streaming: bool) -> str:
        return f"stream of `{name}`" if streaming else f"`{name}`"

    assert [row[:3] for row in rows("method")] == [
        [
            f"`{method.name}`",
            shown(method.input_type.name, method.client_streaming),
            shown(method.output_type.name, method.server_streaming),
        ]
        for method in service.methods
    ]


def test_wire_version_is_the_version_of_the_code() -> None:
    assert re.findall(r"Wire version: \*\*(\d+)\*\*", TEXT) == [str(WIRE_VERSION)]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encoding_table_has_the_payload_size(encoding: str) -> None:
    assert [CODE.findall(row[0]) for row in rows("encoding")] == [[name] for name in (*ENCODINGS, MASKED)]
    formula = next(row[1] for row in rows("encoding") if row[0] == f"`{encoding}`")
    schema = Schema((TensorSpec("weight", (3, 2)), TensorSpec("bias", (5,))))
    for whole, number in (("ceil(d / 8)", "2"), ("2 ceil(d / 100)", "2"), ("2 ceil(d / 10)", "4")):  # d is 11
        formula = formula.replace(whole, number)
    value = formula.replace("4 d", "44").replace("2 d", "22").replace("4 T", "8").replace("d", "11")
    assert sum(int(term) for term in value.split("+")) == payload_size(schema, encoding)
    assert f"saturated at {np.finfo(np.float16).max:.0f} |" in TEXT


LIMITS = {
    "payload bytes of a frame": f"{WIRE.frame_bytes_max >> 20} MiB",
    "open pushes, pulls and watches of one caller": str(WIRE.streams_per_neighbor),
    "models read at a time, from all neighbors": str(DEFAULTS.concurrent_receives),
    "rounds ahead of the receiver (lockstep)": str(DEFAULTS.rounds_ahead),
    "`mass`, `sample_count`": "1e-9 to 1e6" if (DEFAULTS.weight_min, DEFAULTS.weight_max) == (1e-9, 1e6) else "other",
    "requests of one caller in flight": str(access.REQUESTS_MAX),
    "open connections between the two ends of a tunnel": str(CONNECTIONS_PER_OFFER),
    "connections that a relay carries": "`relay.connections`",
    "messages of one caller": f"{WIRE.requests_per_second:g} per second, bursts of {access.BURST_S:g} s",
    "`round_index`, `step`, `slot`, `total`": f"0 to {power(convert.COUNT_MAX)};",
    "`selected`": f"-1 to {power(convert.COUNT_MAX)},",
    "`sample_count` as a number": f"0 to {power(convert.SAMPLES_MAX)}",
    "`incarnation` of a hello": f"1 to {power(INCARNATION_MAX)}",
    "bytes of `sum_key`, `roster`, `shares`, `SumRequest.data`": ", ".join(
        [str(convert.SUM_KEY_BYTES_MAX)]
        + [f"{n >> 10} Ki" for n in (convert.ROSTER_BYTES_MAX, convert.SHARES_BYTES_MAX, convert.SUM_BYTES_MAX)]
    ),
    "`numbers`": f"{NUMBERS_MAX:,} finite float64; of a header {HEADER_NUMBERS_MAX}",
    "characters of a digest": str(convert.DIGEST_CHARS_MAX),
    "characters of `manifest`": f"{convert.MANIFEST_CHARS_MAX >> 20} Mi",
    "characters of `meaning`": f"{MEANING_CHARS_MAX >> 20} Mi",
    "entries of `continues`": str(REVISIONS_TOLD),
    "characters of `reason`": str(convert.REASON_CHARS_MAX),
    "`StatusRequest.reply_bytes`": f"{convert.PADDING_BYTES_MAX >> 20} MiB",
    "`WatchStatusRequest.interval_s`": f"{convert.INTERVAL_S_MIN:g} to {convert.INTERVAL_S_MAX:g}, or 0 for 1",
    "round records that a peer keeps for watchers": str(ROUNDS_KEPT),
}


def test_limit_table_has_the_constants_of_the_code() -> None:
    found = {first: value for first, value, _code in rows("limit")}
    assert len(found) == len(rows("limit"))
    for first, value in found.items():
        if first in LIMITS:
            assert LIMITS[first] in value, first
        else:
            assert value.startswith("`limits."), f"{first}: neither a constant nor a manifest key"
    assert set(LIMITS) <= set(found)
    assert f"{RATE_EXPECTED >> 10} KiB/s" in TEXT


def test_limit_table_has_every_limit_of_the_manifest() -> None:
    named = {name.removeprefix("limits.") for row in rows("limit") for name in CODE.findall(row[1])}
    assert set(Limits.model_fields) - named == {"kept_bytes_max"}  # of folds, no limit of a message


def test_codes_beyond_a_limit_are_refusals() -> None:
    for first, _value, beyond in rows("limit"):
        assert beyond == "waits" or set(CODE.findall(beyond)) <= set(RefusalCode), first


def test_metadata_keys_are_those_of_the_code() -> None:
    assert f"`{ACCEPTED_METADATA}: 1`" in TEXT and f"`{REFUSAL_TRAILER}: <code>`" in TEXT


def test_manifest_keys_exist() -> None:
    manifest = Manifest()
    for section, key in re.findall(r"`(limits|timeouts|screening)\.(\w+)`", TEXT):
        assert hasattr(getattr(manifest, section), key), f"{section}.{key}"


def test_every_refusal_has_a_cause_of_its_own_and_says_what_to_do() -> None:
    causes = [code.cause for code in RefusalCode]
    assert all(cause and cause != code for code, cause in zip(RefusalCode, causes, strict=True))
    assert len(set(causes)) == len(causes)
    assert all(code.answers and code.remedy.endswith(".") for code in RefusalCode)
