"""What this package uses of gRPC's calls, as types: gRPC has none."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Protocol, TypeAlias

import grpc

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


class Stream(Protocol):
    """Either end of a bidirectional stream of bytes: a server's context or a client's call."""

    def read(self) -> Awaitable[bytes]:
        """Return the next message, or grpc.aio.EOF."""

    def write(self, message: bytes, /) -> Awaitable[None]:
        """Send a message."""


class Context(Stream, Protocol):
    """A call, as its server sees it."""

    def peer(self) -> str:
        """Return the address of the connection."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return what TLS says of the caller."""

    def send_initial_metadata(self, metadata: Metadata, /) -> Awaitable[None]:
        """Send metadata before the first message."""

    def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> Awaitable[None]:
        """End the call with a status; it raises."""


class Call(Stream, Protocol):
    """A call, as its client sees it; awaited, its reply."""

    def __await__(self) -> Generator[None, None, bytes]: ...

    def cancel(self) -> bool:
        """End the call; return whether it had not ended."""

    def done(self) -> bool:
        """Return whether the call has ended."""

    def done_writing(self) -> Awaitable[None]:
        """End the own direction."""

    def code(self) -> Awaitable[grpc.StatusCode]:
        """Return the status, once the call has ended."""

    def details(self) -> Awaitable[str | None]:
        """Return what the status says, once the call has ended."""

    def initial_metadata(self) -> Awaitable[Metadata]:
        """Return what the server sent before its first message."""

    def trailing_metadata(self) -> Awaitable[Metadata]:
        """Return what the server sent with the status."""
