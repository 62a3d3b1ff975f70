"""Failed calls in words: gRPC's status code and text as a short phrase, without gRPC's own wording."""

from __future__ import annotations

import grpc

from coordinator_free_bootstrap.strict_json import printable

# Parts of gRPC's error text for a server whose certificate is not the one that the channel trusts, or that has none.
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "WRONG_VERSION_NUMBER")

CLOSED = "connection closed by the server"  # what a client without TLS hears of a server with it
_PASSWORD = "the proxy demands another user or password (https_proxy)"
_PHRASES = (
    ("HTTP proxy returned response code 407", _PASSWORD),
    ("HTTP proxy returned response code 401", _PASSWORD),  # of tinyproxy
    ("HTTP proxy returned", "the proxy does not connect to it"),
    ("WRONG_VERSION_NUMBER", "the server does not use TLS"),
    ("CERTIFICATE_VERIFY_FAILED", "TLS identity mismatch"),
    ("Hostname Verification Check failed", "TLS identity mismatch"),
    ("Ssl handshake failed", "TLS handshake failed"),
    ("Connection refused", "connection refused"),
    ("No route to host", "no route to the host"),
    ("Network is unreachable", "network unreachable"),
    ("DNS resolution failed", "the host name has no address"),
    ("Name or service not known", "the host name has no address"),
    ("timed out", "connection timed out"),
    ("FD Shutdown", "connection timed out"),
    ("Connection reset", CLOSED),
    ("Socket closed", CLOSED),
    ("Broken pipe", CLOSED),
    ("handshaker", CLOSED),
)


def in_words(code: grpc.StatusCode, details: str, timeout_s: float) -> str:
    """Return why a call failed.

    Args:
        code: gRPC's status code.
        details: gRPC's text, or the server's, which is foreign.
        timeout_s: of the call.
    """
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer in {timeout_s:g} s"
    if code is grpc.StatusCode.UNAVAILABLE:
        for sign, phrase in _PHRASES:
            if sign.lower() in details.lower():
                return phrase
        return f"not reachable ({printable(details)})"
    return f"{code.name.lower().replace('_', ' ')}: {printable(details)}"
