"""Failed calls in words, from texts of gRPC 1.6x."""

import grpc
import pytest

from peer.wire.failures import in_words

UNAVAILABLE, LAST = (
    grpc.StatusCode.UNAVAILABLE,
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:74:",
)


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        (
            UNAVAILABLE,
            f"{LAST} Failed to connect to remote host: connect: Connection refused (111)",
            "connection refused",
        ),
        (
            UNAVAILABLE,
            f"{LAST} Ssl handshake failed (TSI_PROTOCOL_FAILURE): CERTIFICATE_VERIFY_FAILED",
            "TLS identity mismatch",
        ),
        (UNAVAILABLE, f"{LAST} Ssl handshake failed: WRONG_VERSION_NUMBER: Invalid", "the server does not use TLS"),
        (
            UNAVAILABLE,
            "DNS resolution failed for nowhere:1: C-ares status is not ARES_SUCCESS",
            "the host name has no address",
        ),
        (UNAVAILABLE, "Socket closed", "connection closed by the server"),
        (UNAVAILABLE, "something \u202e new", "not reachable (something \\u202e new)"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "no answer in 5 s"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "x" * 900, f"resource exhausted: {'x' * 200}... (900 characters)"),
    ],
)
def test_a_failed_call_is_told_in_words(code, details, words):
    """Before, the text of gRPC was passed on: its status code, its wording, and whatever the server wrote."""
    assert in_words(code, details, 5.0) == words
