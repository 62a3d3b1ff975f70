"""A port in use names the process that listens on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from peer.wire import ports

LISTEN = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"


def test_a_port_in_use_names_the_process_and_its_command():
    """Before, the message was gRPC's: "Failed to bind ...; set GRPC_VERBOSITY=debug"."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        port = int(other.stdout.readline())
        why = ports.why_not_bound("127.0.0.1", port)
        other.stdin.close()
    command = f"{sys.executable} -c import socket"[:60]  # a long command is cut
    assert why.startswith(f"is in use by process {other.pid} ({command}")
    assert len(why) < 160


def test_a_port_of_this_process_and_a_free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.why_not_bound("127.0.0.1", port) == f"is in use by this process ({os.getpid()})"
    assert ports.why_not_bound("127.0.0.1", port) == ""


def test_an_unknown_process_is_another_process(tmp_path, monkeypatch):
    """Linux shows the open files of a process only to its user and to root."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ports, "PROC", tmp_path)
        port = server.getsockname()[1]
        assert ports.why_not_bound("127.0.0.1", port) == "is in use by another process"


def test_an_address_of_another_machine_is_said_to_be_one():
    assert ports.why_not_bound("192.0.2.1", 7400) == "(Cannot assign requested address)"
