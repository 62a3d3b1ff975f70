"""`peer deploy systemd`: one archive per device with the unit, settings, graph file and that peer's key."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.graph import split_address
from peer.identity.files import read_file
from peer.ops.deploy.given_data import GivenData
from peer.ops.deploy.keys import create_and_list_keys, key_files
from peer.ops.deploy.run_options import RunOptions
from peer.ops.deploy.task_file import user_files
from peer.ops.deploy.text import fill, write
from peer.wire.security import is_loopback

HOME = "etc/coordinator-free"
TASK = f"{HOME}/task"  # folder of the task file
_PLAIN = r"/[A-Za-z0-9._/@+-]*"


def write_systemd(
    graph: Graph,
    out: Path,
    *,
    options: RunOptions | None = None,
    data: GivenData | None = None,
) -> list[Path]:
    """Write the unit and ``peer-<id>.tar.gz`` for each peer; missing keys are generated under ``out/keys``.

    The archives hold the task file too. The path of a task file is relative to ``/etc/coordinator-free/task``, where the unit
    then starts the peer.

    Args:
        graph: with the addresses of the devices.
        out: folder for the files.
        options: further ones of `peer run`, on all devices.
        data: folder or file of every device, which the unit mounts below the folder where it starts the peer.

    Returns:
        The written paths, the unit first; graph.json has the pins, for `peer status` and `peer watch` on this machine.

    Raises:
        UsageError: an address is loopback, the task file cannot be deployed, or a file cannot be written.
        IdentityError: a key cannot be used.
    """
    _refuse_loopback(graph)
    own = user_files(graph)
    graph, keys = create_and_list_keys(graph, out / "keys")
    folder = f"/{TASK}" if own or data else "%S/coordinator-free"
    mounted = _mounted(data, graph) if data else ""
    unit = fill("peer.service", folder=folder, data=mounted)
    words = [f"--options /{HOME}/{options.path}"] if options else []
    words += [f"--data-root {_place(data)}"] if data and data.builtin else []
    text = dump_graph(graph)
    paths = [write(out / "coordinator-free.service", unit)]
    for peer_id in graph.ids:
        files = key_files(out / "keys", peer_id)
        content = {
            "etc/systemd/system/coordinator-free.service": (unit.encode(), 0o644),
            f"{HOME}/peer.env": (fill("peer.env", peer_id=peer_id, options=" ".join(words)).encode(), 0o644),
            f"{HOME}/graph.json": (text.encode(), 0o644),
            f"{HOME}/peer.pem": (read_file(files.certificate, "certificate"), 0o644),
            f"{HOME}/peer.key": (read_file(files.key, "private key"), 0o600),
            f"{HOME}/INSTALL.txt": (
                fill("INSTALL.txt", peer_id=peer_id, federation=graph.manifest.federation).encode(),
                0o644,
            ),
        }
        if options:
            content[f"{HOME}/{options.path}"] = options.content, 0o644
        content |= {f"{TASK}/{file.path}": (file.content, 0o644) for file in own}
        folders = [TASK] if data else []
        paths.append(write(out / f"peer-{peer_id}.tar.gz", _archive(content, folders), 0o600))
    return [*paths, write(out / "graph.json", text), *keys]


def _mounted(data: GivenData, graph: Graph) -> str:
    """Return the line of the unit that mounts a device's data, read-only.

    Raises:
        UsageError: a volume, a path of one peer only, or characters that systemd reads in its own way.
    """
    place = _place(data)
    if data.volume or not re.fullmatch(_PLAIN, data.source) or not re.fullmatch(_PLAIN, place):
        raise UsageError(
            "--data: expected one absolute path for all devices, of letters, digits and . _ - / @ +, got "
            f"{data.source} for {place}"
        )
    return f"BindReadOnlyPaths={data.source}:{place}\n"


def _place(data: GivenData) -> str:
    return str(PurePosixPath("/", TASK, data.path))


def _refuse_loopback(graph: Graph) -> None:
    """Refuse addresses that other devices cannot reach; a graph of one peer needs none."""
    for node in graph.nodes if len(graph.nodes) > 1 else ():
        if is_loopback(node.address):
            port = split_address(node.address)[1]
            raise UsageError(
                f"graph: peer {node.id}: expected the name or IP address of its device, got {node.address}, which other "
                f"devices cannot reach. Use peer graph make --address-template 'device-{{id}}.example:{port}', or edit the "
                "addresses in the graph file; for one machine use peer testbed."
            )


def _archive(content: dict[str, tuple[bytes, int]], folders: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, (data, mode) in content.items():
            entry = tarfile.TarInfo(name)  # owner root, time 0
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
