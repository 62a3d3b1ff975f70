"""The control socket of a testbed: a Unix socket in its directory; a request and its answer are one JSON line each."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator_free_bootstrap.errors import NeighborUnavailable, PeerError, UsageError
from coordinator_free_bootstrap.strict_json import loads, printable, shown
from peer.store.files import storage_errors
from peer.store.scratch import ScratchFolder

NAME = "control.sock"
REQUEST_BYTES_MAX = 1 << 16
CALLER_S = 5.0  # after which a connection without a request is closed
ERROR_CHARACTERS_MAX = 1000  # of a sentence from the testbed
ANSWER_S = 60.0  # a restart waits for the end of the old process

Answer = Callable[[dict[str, object]], object]


class ControlServer:
    """The testbed's end, for the user who started it only (mode 0600). It has no thread: call `serve` when readable."""

    def __init__(self, directory: Path) -> None:
        self._path = Path(directory) / NAME
        self.socket = socket.socket(socket.AF_UNIX)
        with storage_errors("open", self._path), _short(directory, f".{NAME}") as short:
            Path(short).unlink(missing_ok=True)
            self.socket.bind(short)
            os.chmod(short, 0o600)
            self.socket.listen(8)
            os.rename(short, self._path)  # the name appears only when the socket listens
        self.socket.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self.socket.fileno()

    def serve(self, answer: Answer) -> None:
        """Answer all pending requests."""
        while True:
            try:
                caller, _ = self.socket.accept()
            except BlockingIOError:
                return
            with caller, contextlib.suppress(OSError):
                caller.settimeout(CALLER_S)
                caller.sendall(json.dumps(_answer(answer, caller)).encode() + b"\n")

    def close(self) -> None:
        """Stop serving and remove the socket."""
        self.socket.close()
        self._path.unlink(missing_ok=True)


def _answer(answer: Answer, caller: socket.socket) -> dict[str, object]:
    try:
        line = caller.makefile("rb").readline(REQUEST_BYTES_MAX)
        request = json.loads(line)
    except ValueError:
        return {"error": "the request is not a JSON line"}
    try:
        return {"answer": answer(request)}
    except PeerError as error:
        return {"error": str(error)}


def ask(directory: Path, request: dict[str, object]) -> object:
    """Send a request to a running testbed and return its answer.

    Raises:
        NeighborUnavailable: no testbed runs in the directory, or it does not answer.
        UsageError: the testbed refuses the request.
    """
    with socket.socket(socket.AF_UNIX) as sock, _short(directory) as short:
        sock.settimeout(ANSWER_S)
        try:
            sock.connect(short)
            sock.sendall(json.dumps(request).encode() + b"\n")
            line = sock.makefile("rb").readline()
        except OSError as error:
            sentence = f"{directory}: no testbed runs there ({error}). Start one with peer testbed --out {directory}"
            raise NeighborUnavailable(sentence) from error
    if not line:
        raise NeighborUnavailable(f"{directory}: the testbed has ended")
    try:
        reply = loads(line.decode())
    except ValueError as error:
        raise NeighborUnavailable(f"{directory}: the testbed's answer is not valid: {printable(str(error))}") from error
    if not isinstance(reply, dict) or not ("answer" in reply or isinstance(reply.get("error"), str)):
        raise NeighborUnavailable(
            f"{directory}: the testbed's answer is not valid: expected an answer, got {shown(reply)}"
        )
    if "answer" not in reply:
        raise UsageError(printable(reply["error"], ERROR_CHARACTERS_MAX))
    return reply["answer"]


@contextmanager
def _short(directory: Path, name: str = NAME) -> Iterator[str]:
    """Yield a short path of the socket: the kernel allows 107 bytes, and paths may be longer."""
    folder = ScratchFolder("bed")
    try:
        with storage_errors("open", Path(directory)):
            link = folder.path / "d"
            link.symlink_to(Path(directory).resolve(strict=True))
            yield str(link / name)
    finally:
        folder.remove()
