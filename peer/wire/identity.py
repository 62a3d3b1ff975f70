"""Who is calling: the authenticated peer or observer where the transport knows one, and what its messages may claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from coordinator_free_bootstrap import Subject
from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError

Identify: TypeAlias = Callable[[Any], Subject | None]


def peer_of(caller: Subject | None) -> int | None:
    """Return the caller's peer id; None where the transport is plaintext.

    Raises:
        RemoteProtocolError: NOT_A_NEIGHBOR for an observer.
    """
    if isinstance(caller, str):
        raise RemoteProtocolError(Refusal.NOT_A_NEIGHBOR, f"observer {caller} may read status and nothing else")
    return caller


def caller_key(caller: Subject | None, context: Any) -> Subject:
    """Return what limits are counted by: the authenticated peer or observer, else the connection."""
    return str(context.peer()) if caller is None else caller


def same_sender(caller: int | None, sender: int) -> None:
    """Refuse a message that claims another sender than the authenticated one.

    Raises:
        RemoteProtocolError: IDENTITY_MISMATCH.
    """
    if caller is not None and sender != caller:
        sentence = f"the message says peer {sender}; the connection is peer {caller}'s"
        raise RemoteProtocolError(Refusal.IDENTITY_MISMATCH, sentence)
