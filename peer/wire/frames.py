"""A model as a stream of frames: `model_frames` makes them, `read_frame` parses them, `ChunkWriter` puts them into a buffer.

The first frame has the header, each frame has at most one chunk, and the last one has the end. A small model is a stream of one
frame. Chunks are encoded and parsed here, as the protobuf fields ``PushFrame.chunk`` and ``TunnelFrame.data``: one tag byte, the
length as a varint, the payload. Compared with the message class this saves two copies of every byte. The bytes are the same: any
protobuf implementation reads these frames, and its frames are read here. No sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator_free_bootstrap.errors import RefusalCode, RemoteProtocolError
from peer.core.encoding import Payload, Sliced, checked_norm_squared, view_of
from peer.core.messages import ModelHeader
from peer.wire.generated import peer_pb2

HEADER_TAG, CHUNK_TAG = 0x0A, 0x12  # fields 1 and 2, wire type 2 (length-delimited)
SINGLE_BYTES_MAX = 512 << 10  # a sender puts models up to this size, and up to a chunk's, into one frame
HEADER_BYTES_MAX = 64 << 10  # what header and end add to a frame at most: 4096 numbers and the fields
DIGEST_BYTES = 16
ALIGNMENT_BYTES = 4  # of every chunk but the last: no float32 is split between two chunks
MESSAGE_OVERHEAD_BYTES = 5  # gRPC's prefix of each message: compression flag and length


class Frame(NamedTuple):
    """A parsed frame, not yet checked."""

    header: peer_pb2.ModelHeader | None = None
    chunk: memoryview | None = None
    end: peer_pb2.ModelEnd | None = None


def chunk_frame(chunk: memoryview, end: bytes = b"", header: bytes = b"") -> bytes:
    """Return the encoding of a chunk after that of a header and before that of an end; copies the payload once."""
    prefix = bytearray((CHUNK_TAG,))
    length = chunk.nbytes
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return b"".join((header, prefix, chunk, end))


def end_frame(digest: bytes) -> bytes:
    """Return the encoding of an end alone."""
    return peer_pb2.PushFrame(end=peer_pb2.ModelEnd(digest=digest)).SerializeToString()


def read_frame(frame: bytes) -> Frame:
    """Parse a frame; a chunk at its beginning, or after a header there, is not copied.

    Raises:
        RemoteProtocolError: MALFORMED, if ``frame`` is no PushFrame, or is empty.
    """
    head = _leading_end(frame, HEADER_TAG)
    chunk, rest = _leading_chunk(frame, head)
    if chunk is not None and not rest and not head:
        return Frame(chunk=chunk)
    try:
        message = peer_pb2.PushFrame.FromString(frame[:head] + rest if chunk is not None else frame)
    except DecodeError as error:
        raise RemoteProtocolError(
            RefusalCode.MALFORMED, f"{len(frame)} bytes that cannot be parsed as PushFrame"
        ) from error
    if message.HasField("chunk"):  # protobuf: where a field occurs twice, the last one is taken
        chunk = memoryview(message.chunk)
    header = message.header if message.HasField("header") else None
    end = message.end if message.HasField("end") else None
    if header is None and chunk is None and end is None:
        raise RemoteProtocolError(
            RefusalCode.MALFORMED, "PushFrame: expected a header, a chunk or an end, got no field"
        )
    return Frame(header, chunk, end)


def data_of(frame: bytes) -> memoryview:
    """Return the bytes that a tunnel's frame carries, without a copy.

    Raises:
        RemoteProtocolError: MALFORMED, if ``frame`` is anything but ``TunnelFrame{data}``.
    """
    data, rest = _leading_chunk(frame)
    if data is None or rest:
        raise RemoteProtocolError(RefusalCode.MALFORMED, "TunnelFrame: expected data alone, got other fields than data")
    return data


def _leading_chunk(frame: bytes, start: int = 0) -> tuple[memoryview | None, bytes]:
    """Split what follows ``start`` into the chunk at its beginning (None: it begins with something else) and the rest."""
    end = _leading_end(frame, CHUNK_TAG, start)
    if end == start:
        return None, frame
    at = start + 1
    while frame[at] >= 0x80:
        at += 1
    return memoryview(frame)[at + 1 : end], frame[end:]


def _leading_end(frame: bytes, tag: int, start: int = 0) -> int:
    """Return where the field of a tag that begins at ``start`` ends; ``start`` itself, if no complete one begins there."""
    if len(frame) <= start or frame[start] != tag:
        return start
    length = shift = 0
    for at in range(start + 1, min(len(frame), start + 6)):
        byte = frame[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            end = at + 1 + length
            return end if end <= len(frame) else start
        shift += 7
    return start


class SentModel(NamedTuple):
    """A model that is being sent, or was, for the audit log.

    Attributes:
        receiver: of it.
        header: of it.
        bytes: of the payload that went out; fewer than in the header where it was interrupted.
        digest: XXH3-128 of the frames that were made of it, hexadecimal.
        answer: outcome or code of refusal, or why there is none; "" before the first byte.
    """

    receiver: int
    header: ModelHeader
    bytes: int = 0
    digest: str = ""
    answer: str = ""


OnSent = Callable[[SentModel], None]


def model_frames(
    header: bytes,
    payload: Payload | Sliced,
    frame_bytes: int | Callable[[], int],
    digest: xxhash.xxh3_128 | None = None,
) -> Iterator[tuple[bytes, int]]:
    """Yield each frame of a model, with its number of payload bytes.

    A model of more than a chunk or `SINGLE_BYTES_MAX` begins with a frame of the header alone: its receiver keeps the first frame
    in memory until it accepts the model.

    Args:
        header: encoded, as a frame (`convert.pack_header`).
        payload: the encoded model, not empty; must not change until the last frame is made.
        frame_bytes: payload bytes per chunk, a multiple of 4; or a function that is asked before each chunk.
        digest: is given the payload, chunk by chunk.
    """
    digest = xxhash.xxh3_128() if digest is None else digest

    def most() -> int:
        return frame_bytes if isinstance(frame_bytes, int) else frame_bytes()

    view, start = view_of(payload), 0
    if view.nbytes > min(most(), SINGLE_BYTES_MAX):
        yield header, 0
        header = b""
    while start < view.nbytes:
        chunk = view[start : start + most()]
        start += chunk.nbytes
        digest.update(chunk)
        end = end_frame(digest.digest()) if start == view.nbytes else b""
        yield chunk_frame(chunk, end, header), chunk.nbytes
        header = b""


class ChunkWriter:
    """Write the chunks of one model into its buffer, and check each of them.

    Args:
        buffer: uint8 [size_bytes], contiguous and 4-byte aligned; mutated.
        frame_bytes_max: the largest payload of a chunk.
        float32: whether the payload is float32, whose norm and finiteness are computed chunk by chunk.

    Attributes:
        norm_squared: sum of squares of the chunks written so far; None unless ``float32``.
    """

    def __init__(self, buffer: NDArray[np.uint8], *, frame_bytes_max: int, float32: bool) -> None:
        self.norm_squared: float | None = 0.0 if float32 else None
        self._buffer = buffer
        self._frame_bytes_max = frame_bytes_max
        self._position = 0
        self._digest = xxhash.xxh3_128()

    def write(self, frame: Frame) -> bool:
        """Write a frame's chunk into the buffer; return whether the model is complete and its digest correct.

        Raises:
            RemoteProtocolError: MALFORMED for a header or a misaligned chunk, TOO_LARGE for a chunk over the limit,
                WRONG_SIZE for more or fewer bytes than the buffer has, NON_FINITE (float32), DIGEST_MISMATCH.
        """
        if frame.header is not None:
            raise RemoteProtocolError(RefusalCode.MALFORMED, "a second header in a model stream")
        if frame.chunk is not None:
            self._write_chunk(frame.chunk)
        if frame.end is None:
            return False
        self._check_end(frame.end.digest)
        return True

    def _write_chunk(self, chunk: memoryview) -> None:
        start, size = self._position, chunk.nbytes
        end = start + size
        if size > self._frame_bytes_max:
            sentence = f"chunk: expected at most {self._frame_bytes_max} bytes, got {size}"
            raise RemoteProtocolError(RefusalCode.TOO_LARGE, sentence)
        if end > self._buffer.nbytes:
            sentence = f"chunks: expected {self._buffer.nbytes} bytes, as the header says, got {end}"
            raise RemoteProtocolError(RefusalCode.WRONG_SIZE, sentence)
        if size == 0 or (size % ALIGNMENT_BYTES and end != self._buffer.nbytes):
            allowed = "a multiple of 4 bytes above 0, or the rest of the model"
            sentence = f"chunk at byte {start}: expected {allowed}, got {size} bytes"
            raise RemoteProtocolError(RefusalCode.MALFORMED, sentence)
        target = self._buffer[start:end]
        target[:] = np.frombuffer(chunk, np.uint8)
        self._digest.update(target.data)
        if self.norm_squared is not None:
            self.norm_squared += checked_norm_squared(target.view("<f4"))
        self._position = end

    def _check_end(self, digest: bytes) -> None:
        if self._position != self._buffer.nbytes:
            found = f"chunks: expected {self._buffer.nbytes} bytes, as the header says, got {self._position}"
            raise RemoteProtocolError(RefusalCode.WRONG_SIZE, found)
        if digest != self._digest.digest():
            problem = f"digest: expected {self._digest.hexdigest()!r}, that of the bytes, got {digest.hex()[:32]!r}"
            raise RemoteProtocolError(RefusalCode.DIGEST_MISMATCH, problem)
