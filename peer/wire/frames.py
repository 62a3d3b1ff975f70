"""Frames of a model stream: hand-made protobuf for chunks, and the intake that writes chunks in place.

A chunk frame is the protobuf encoding of ``PushFrame{chunk}``: one tag byte, the length as a varint, the payload.
Making and reading it here instead of through the message class saves two copies of every byte; any standard protobuf
peer understands the result, and frames of any standard peer are understood. Holds no sockets and knows no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import Refusal, RemoteProtocolError
from peer.wire.codec import Payload, norm_squared, view_of
from peer.wire.generated import peer_pb2

CHUNK_TAG = 0x12  # field 2, wire type 2 (length-delimited)
DIGEST_BYTES = 16
ALIGNMENT_BYTES = 4  # of every chunk but the last: no float32 straddles two chunks
MESSAGE_OVERHEAD_BYTES = 5  # gRPC's prefix of each message: compression flag and length


class Frame(NamedTuple):
    """What one frame holds, not yet validated: a header alone, or a chunk, or an end, or a chunk and the end."""

    header: peer_pb2.ModelHeader | None = None
    chunk: memoryview | None = None
    end: peer_pb2.ModelEnd | None = None


def chunk_frame(chunk: memoryview, end: bytes = b"") -> bytes:
    """Return the wire form of a chunk, and of an end frame after it; copies the payload once."""
    prefix = bytearray((CHUNK_TAG,))
    length = chunk.nbytes
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return b"".join((prefix, chunk, end))


def end_frame(digest: bytes) -> bytes:
    """Return the wire form of an end alone."""
    return peer_pb2.PushFrame(end=peer_pb2.ModelEnd(digest=digest)).SerializeToString()


def read_frame(frame: bytes) -> Frame:
    """Return what a frame holds; the payload of a chunk that comes first is not copied.

    Raises:
        RemoteProtocolError: MALFORMED, if ``frame`` is no PushFrame, an empty one, or mixes a header with more.
    """
    chunk, rest = _leading_chunk(frame)
    if chunk is not None and not rest:
        return Frame(chunk=chunk)
    try:
        message = peer_pb2.PushFrame.FromString(rest)
    except DecodeError as error:
        raise RemoteProtocolError(Refusal.MALFORMED, f"a frame of {len(frame)} bytes is no PushFrame") from error
    if message.HasField("chunk"):  # protobuf: of a field that comes twice, the last one counts
        chunk = memoryview(message.chunk)
    header = message.header if message.HasField("header") else None
    end = message.end if message.HasField("end") else None
    if (header is None) == (chunk is None and end is None):
        raise RemoteProtocolError(Refusal.MALFORMED, "a frame holds neither a header alone nor a chunk or an end")
    return Frame(header, chunk, end)


def _leading_chunk(frame: bytes) -> tuple[memoryview | None, bytes]:
    """Split a frame into the chunk that it begins with, if it does, and the rest."""
    if not frame or frame[0] != CHUNK_TAG:
        return None, frame
    length = shift = 0
    for place in range(1, min(len(frame), 6)):
        byte = frame[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            end = place + 1 + length
            return (memoryview(frame)[place + 1 : end], frame[end:]) if end <= len(frame) else (None, frame)
        shift += 7
    return None, frame


def model_frames(payload: Payload, frame_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield each frame after the header with its number of payload bytes; the last one carries the end.

    Args:
        payload: the encoded model, not empty; read only, must not change meanwhile.
        frame_bytes: payload bytes per chunk, a multiple of 4.
    """
    view = view_of(payload)
    digest = xxhash.xxh3_128()
    for start in range(0, view.nbytes, frame_bytes):
        chunk = view[start : start + frame_bytes]
        digest.update(chunk)
        last = start + frame_bytes >= view.nbytes
        yield chunk_frame(chunk, end_frame(digest.digest()) if last else b""), chunk.nbytes


class ModelIntake:
    """Writes the chunks of one model into its reserved buffer and checks each as it comes.

    Args:
        buffer: uint8 [size_bytes], contiguous and 4-byte aligned; mutated.
        frame_bytes_max: largest chunk accepted.
        float32: whether the payload is float32, so that its norm and finiteness can be had on the way.
    """

    def __init__(self, buffer: NDArray[np.uint8], *, frame_bytes_max: int, float32: bool) -> None:
        self.norm_squared: float | None = 0.0 if float32 else None
        self.size_bytes = buffer.nbytes
        self._buffer = buffer
        self._frame_bytes_max = frame_bytes_max
        self._position = 0
        self._digest = xxhash.xxh3_128()

    def take(self, frame: Frame) -> bool:
        """Write a frame's chunk in place; return whether the model is complete and its digest true.

        Raises:
            RemoteProtocolError: MALFORMED for a header, TOO_LARGE for a chunk over the frame limit, and what the chunk's
                or the end's own checks say.
        """
        if frame.header is not None:
            raise RemoteProtocolError(Refusal.MALFORMED, "a second header in one stream")
        if frame.chunk is not None:
            self._write(frame.chunk)
        if frame.end is None:
            return False
        self._finish(frame.end.digest)
        return True

    def _write(self, chunk: memoryview) -> None:
        """Write one chunk: WRONG_SIZE past the model's end, MALFORMED if misaligned, NON_FINITE (float32)."""
        start, size = self._position, chunk.nbytes
        end = start + size
        if size > self._frame_bytes_max:
            found = f"a chunk has {size} payload bytes; allowed are {self._frame_bytes_max} (limits.frame_bytes_max)"
            raise RemoteProtocolError(Refusal.TOO_LARGE, found)
        if end > self._buffer.nbytes:
            found = f"chunks run to {end} bytes; the header says {self._buffer.nbytes}"
            raise RemoteProtocolError(Refusal.WRONG_SIZE, found)
        if size == 0 or (size % ALIGNMENT_BYTES and end != self._buffer.nbytes):
            found = f"a chunk of {size} bytes at byte {start}; allowed are multiples of 4 above 0, or the model's rest"
            raise RemoteProtocolError(Refusal.MALFORMED, found)
        place = self._buffer[start:end]
        place[:] = np.frombuffer(chunk, np.uint8)
        self._digest.update(place.data)
        if self.norm_squared is not None:
            self.norm_squared += norm_squared(place.view("<f4"))
        self._position = end

    def _finish(self, digest: bytes) -> None:
        """Compare at the end of the stream: WRONG_SIZE if bytes are missing, DIGEST_MISMATCH if they are not those sent."""
        if self._position != self._buffer.nbytes:
            found = f"the model ends after {self._position} bytes; the header says {self._buffer.nbytes}"
            raise RemoteProtocolError(Refusal.WRONG_SIZE, found)
        if digest != self._digest.digest():
            found = f"the end says digest {digest.hex()[:32]!r}; the bytes have {self._digest.hexdigest()!r}"
            raise RemoteProtocolError(Refusal.DIGEST_MISMATCH, found)
