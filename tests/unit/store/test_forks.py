"""A forked child, such as a worker of a data loader, holds neither the lock of a peer nor its connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.store import forks
from peer.store.forks import close_connections_in_children
from peer.store.identity_files import StateLock


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    forks._ports.clear()


@contextmanager
def living_child() -> Iterator[int]:
    """Fork a child that lives until the block ends; it answers with the number of its open files when it is ready."""
    until_end, end = os.pipe()
    answer, answering = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.write(answering, len(os.listdir("/dev/fd")).to_bytes(4, "big"))
        os.read(until_end, 1)
        os._exit(0)
    try:
        yield int.from_bytes(os.read(answer, 4), "big")
    finally:
        for handle in (end, until_end, answer, answering):
            os.close(handle)
        assert os.waitpid(pid, 0)[1] == 0


def test_the_lock_of_a_killed_peer_is_free_while_its_children_live(tmp_path: Path) -> None:
    lock, next_life = StateLock(tmp_path), StateLock(tmp_path)
    lock.acquire()
    with living_child():
        with pytest.raises(StorageError):
            next_life.acquire()
        os.close(lock._handle or -1)  # as the kernel does when the peer is killed
        next_life.acquire()
    next_life.release()
    forks.keep_in_children(lock._handle or -1)


def test_the_port_and_the_connections_of_a_killed_peer_are_closed_while_its_children_live() -> None:
    listener, elsewhere = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    caller = socket.create_connection(("127.0.0.1", port))
    called, _ = listener.accept()
    close_connections_in_children([port, 0])
    with living_child():
        listener.close()
        called.close()
        caller.settimeout(60)
        assert caller.recv(1) == b"", "the other end sees the close"
        socket.create_server(("127.0.0.1", port)).close()
    caller.close()
    elsewhere.close()


def test_other_files_and_connections_stay_open_in_a_child(tmp_path: Path) -> None:
    own, of_others = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    pair = socket.socketpair()
    with (tmp_path / "file").open("wb"), StateLock(tmp_path):
        with living_child() as fewer_by_the_lock:
            pass
        close_connections_in_children([own.getsockname()[1]])
        with living_child() as fewer_by_both:
            pass
    assert fewer_by_both == fewer_by_the_lock - 1
    for each in (own, of_others, *pair):
        each.close()
