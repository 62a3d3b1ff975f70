"""The status that a peer answers, validated: nothing that a peer says is shown before its types and limits are checked."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.strict_json import printable
from coordinator_free_bootstrap.validation import sentences
from peer.store.records import PeerStatus

_STATUS = TypeAdapter(PeerStatus)


def read_status(value: object, peer_id: int | None = None) -> PeerStatus:
    """Return a status after validation, without unknown keys.

    Args:
        value: the JSON object of a status reply.
        peer_id: of the peer that was asked; None: any.

    Raises:
        RemoteProtocolError: MALFORMED; the sentence names the first wrong key, what is expected and the actual value.
    """
    try:
        status = _STATUS.validate_python(value, strict=True)
    except ValidationError as error:
        raise _not_valid(sentences(error, None, value)[0]) from error
    if peer_id is not None and status["peer_id"] != peer_id:
        raise _not_valid(f"peer_id: expected {peer_id}, the peer that was asked, got {status['peer_id']}")
    return status


def _not_valid(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(RefusalCode.MALFORMED, f"not a valid status: {printable(problem)}")
