"""`peer deploy systemd`: one archive per device with the unit, settings, graph file and that peer's key."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from coordinator_free_bootstrap import Graph, dump_graph
from peer.deploy.keys import create_keys, key_files
from peer.deploy.text import fill, write

HOME = "etc/coordinator-free"


def write_systemd(
    graph: Graph, out: Path, *, program: str = "/opt/peer/bin/peer", memory: str = "90%", options: str = ""
) -> list[Path]:
    """Write the unit and ``peer-<id>.tar.gz`` for each peer; missing keys are generated under ``out/keys``.

    Args:
        graph: with the addresses of the devices.
        out: folder for the files.
        program: path of the command `peer` on the devices.
        memory: MemoryMax of the unit; beyond it the kernel kills the peer.
        options: further options of `peer run` on all devices.

    Raises:
        UsageError: a file cannot be written.
        IdentityError: a key cannot be used.
    """
    graph = create_keys(graph, out / "keys")
    unit = fill("peer.service", program=program, memory=memory)
    text = dump_graph(graph)
    paths = [write(out / "coordinator-free.service", unit)]
    for peer_id in graph.ids:
        files = key_files(out / "keys", peer_id)
        content = {
            "etc/systemd/system/coordinator-free.service": (unit.encode(), 0o644),
            f"{HOME}/peer.env": (fill("peer.env", peer_id=peer_id, options=options).encode(), 0o644),
            f"{HOME}/graph.json": (text.encode(), 0o644),
            f"{HOME}/peer.pem": (files.certificate.read_bytes(), 0o644),
            f"{HOME}/peer.key": (files.key.read_bytes(), 0o600),
            f"{HOME}/INSTALL.txt": (
                fill("INSTALL.txt", peer_id=peer_id, federation=graph.manifest.federation).encode(),
                0o644,
            ),
        }
        paths.append(write(out / f"peer-{peer_id}.tar.gz", _archive(content), 0o600))
    return paths


def _archive(content: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, (data, mode) in content.items():
            entry = tarfile.TarInfo(name)  # owner root, time 0
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
