"""A refusal is one pair of code and reason, whoever makes it: the handshake, the decoder of messages, or an exception."""

import pytest

from coordinator_free_bootstrap.errors import Refusal, RefusalCode, RemoteProtocolError


@pytest.mark.parametrize("code", RefusalCode)
def test_an_error_of_the_protocol_carries_its_refusal(code):
    error = RemoteProtocolError(code, "expected 1, got 2")
    assert error.refusal == Refusal(code, "expected 1, got 2")
    assert str(error) == str(error.refusal) == f"{code.value}: expected 1, got 2"


def test_a_refusal_without_a_reason_reads_as_its_code():
    assert str(Refusal(RefusalCode.NO_HANDSHAKE)) == "no_handshake"
