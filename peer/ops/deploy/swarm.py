"""`peer deploy swarm`: a stack for `docker stack deploy`, one service per peer of a graph file."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator_free_bootstrap import Graph, dump_graph
from coordinator_free_bootstrap.errors import UsageError
from coordinator_free_bootstrap.identity import Subject
from peer.identity.files import read_file
from peer.ops.deploy.given_data import GivenData
from peer.ops.deploy.keys import at_addresses, create_and_list_keys, create_observer_key, key_files
from peer.ops.deploy.run_options import RunOptions
from peer.ops.deploy.task_file import WORKDIR, UserFile, user_files
from peer.ops.deploy.text import check_image, fill, mount, write

ADDRESS = "peer-{id}:7400"
CONFIG_BYTES_MAX = 1000 * 1024 - 1  # of a config or secret, in Docker 20.10 and later
OBSERVER = "page"  # the page's name as an observer
USER = "10001"  # of the image
_HOST_NAME = r"[A-Za-z0-9_.-]+"
_CONSTRAINT = r"[A-Za-z0-9_.-]+ ?(==|!=) ?[A-Za-z0-9_. /:-]+"


@dataclass(frozen=True)
class Stack:
    """What the nodes of the swarm offer.

    Args:
        image: default of the variable PEER_IMAGE.
        constraints: where peers may run, such as ``node.labels.site==a``; a node must fulfill all.
        nodes: host names of nodes, to which the peers are dealt in turn; a peer runs only on its node. Empty: Docker chooses.
        state: folder with ``peer-<id>`` that all nodes share; None: volumes, which do not follow a peer to another node.
        shards: folder on every node with ``peer-<id>.safetensors``; each peer can read its own.
        data: that the task reads, on every node.
        options: further ones of `peer run`, for all peers.

    Raises:
        UsageError: Docker would refuse a value.
    """

    image: str = "coordinator-free"
    constraints: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    state: str | None = None
    shards: str | None = None
    data: GivenData | None = None
    options: RunOptions | None = None

    def __post_init__(self) -> None:
        check_image(self.image)
        for constraint in self.constraints:
            if not re.fullmatch(_CONSTRAINT, constraint):
                raise UsageError(
                    "--node: expected a host name, KEY==VALUE or KEY!=VALUE, such as node.role==worker or "
                    f"node.labels.site==a, got {constraint!r}"
                )
        for node in self.nodes:
            if not re.fullmatch(_HOST_NAME, node):
                raise UsageError(f"--node: expected a host name as docker node ls shows it, got {node!r}")
        for option, folder in (("--state", self.state), ("--shards", self.shards)):
            if folder is not None and not (folder.startswith("/") and ".." not in PurePosixPath(folder).parts):
                raise UsageError(f"{option}: expected an absolute path that is valid on every node, got {folder}")


def write_swarm(graph: Graph, out: Path, stack: Stack) -> list[Path]:
    """Write the stack, the graph file with the services' addresses, and missing keys under ``out/keys``; return the paths.

    The configs and secrets in the stack have names with a digest of their content, because Docker does not change them: a
    changed one is a new one, and `docker stack deploy` restarts the services that use it.

    Raises:
        UsageError: the graph or the task file is too large for a config, the peers have no data, or a file cannot be written.
        IdentityError: a key cannot be used.
    """
    if graph.manifest.split == "shard" and ":" not in graph.manifest.task and stack.shards is None:
        raise UsageError(
            "--shards: expected FOLDER, a folder on every node with peer-0.safetensors, peer-1.safetensors, ... of peer data "
            "split, because run.split is 'shard', got none"
        )
    own = (*user_files(graph), *([stack.options] if stack.options else []))
    for file in own:
        file.limited(CONFIG_BYTES_MAX, "a config of Docker")
    pinned, keys = create_and_list_keys(at_addresses(graph, ADDRESS), out / "keys")
    pinned, observer_keys = create_observer_key(pinned, out / "keys", OBSERVER)
    keys += observer_keys
    text = dump_graph(pinned)
    if len(text.encode()) > CONFIG_BYTES_MAX:
        raise UsageError(
            f"graph: expected at most {CONFIG_BYTES_MAX} bytes, the size of a config of Docker, got {len(text.encode())}. "
            "Split the federation."
        )
    return [
        write(out / "stack.yml", _Writer(pinned, text, out / "keys", stack, own).text()),
        write(out / "graph.json", text),
        *(write(out / "task" / file.path, file.content) for file in own),
        *keys,
    ]


class _Writer:
    """The text of the stack file; collects the configs and secrets that the services name."""

    def __init__(self, graph: Graph, graph_text: str, keys: Path, stack: Stack, own: tuple[UserFile, ...]) -> None:
        self.graph, self.keys, self.stack, self.own = graph, keys, stack, own
        self.graph_name = f"graph-{_digest(graph_text.encode())}"
        self.configs: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        self.configs |= {self._file_name(file): f"./task/{file.path}" for file in own}

    def text(self) -> str:
        """Return the stack file."""
        stack = self.stack
        services = "\n".join(map(self._peer, self.graph.ids))
        page = self._page()
        volumes = [f"peer-{i}-state" for i in self.graph.ids] if stack.state is None else []
        lines = [f"  {name}: {{}}" for name in (*volumes, "page")]
        if stack.data and stack.data.volume:
            lines += [
                f"  {name}: {{external: true}}" for name in dict.fromkeys(map(stack.data.for_peer, self.graph.ids))
            ]
        return fill(
            "stack.yml",
            peers=len(self.graph.nodes),
            image=stack.image,
            services=services,
            page=page,
            graph=self.graph_name,
            configs=_files(self.configs),
            secrets=_files(self.secrets),
            volumes="\n".join(lines),
        )

    def _peer(self, peer_id: int) -> str:
        stack = self.stack
        state = f"type: bind, source: {json.dumps(f'{stack.state}/peer-{peer_id}')}" if stack.state else None
        volumes = [f"{{{state or f'type: volume, source: peer-{peer_id}-state'}, target: /state}}"]
        volumes.append("{type: tmpfs, target: /tmp}")
        if stack.shards:
            volumes.append(mount("bind", f"{stack.shards}/peer-{peer_id}.safetensors", "/shard.safetensors"))
        if stack.data:
            volumes.append(stack.data.mount(peer_id))
        configs = [f"{{source: {self.graph_name}, target: /graph/graph.json}}"]
        configs += [
            f"{{source: {self._file_name(file)}, target: {json.dumps(f'{WORKDIR}/{file.path}')}}}" for file in self.own
        ]
        secret, certificate = self._key(peer_id)
        return fill(
            "stack-peer.yml",
            id=peer_id,
            shard=", --shard, /shard.safetensors" if stack.shards else "",
            options="".join(f", {json.dumps(word)}" for word in self._options),
            folder=f"    working_dir: {WORKDIR} # where the paths of task file and data are valid\n"
            if self.own or stack.data
            else "",
            constraints=json.dumps([*stack.constraints, *self._node(peer_id)]),
            volumes=", ".join(volumes),
            configs=", ".join([*configs, certificate]),
            secret=secret,
        )

    @property
    def _options(self) -> list[str]:
        data, options = self.stack.data, self.stack.options
        return [*(data.options if data else ()), *(options.words if options else ())]

    def _node(self, peer_id: int) -> list[str]:
        nodes = self.stack.nodes
        return [f"node.hostname=={nodes[self.graph.ids.index(peer_id) % len(nodes)]}"] if nodes else []

    def _page(self) -> str:
        secret, certificate = self._key(OBSERVER)
        configs = f"{{source: {self.graph_name}, target: /graph/graph.json}}, {certificate}"
        return fill("stack-page.yml", image=self.stack.image, configs=configs, secret=secret)

    def _key(self, subject: Subject) -> tuple[str, str]:
        """Note a key as a secret and its certificate as a config; return the entries of the service that gets them."""
        files = key_files(self.keys, subject)
        name = f"{files.key.stem}-{_digest(read_file(files.certificate, 'certificate'))}"
        where = f"./keys/{files.key.parent.name}"
        self.secrets[name], self.configs[name] = f"{where}/{files.key.name}", f"{where}/{files.certificate.name}"
        owner = f'uid: "{USER}", gid: "{USER}", mode: 0400'
        return (
            f"{{source: {name}, target: /keys/{files.key.name}, {owner}}}",
            f"{{source: {name}, target: /keys/{files.certificate.name}}}",
        )

    @staticmethod
    def _file_name(file: UserFile) -> str:
        return f"{file.what}-{_digest(file.content)}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _files(named: dict[str, str]) -> str:
    return "\n".join(f"  {name}: {{file: {json.dumps(path)}}}" for name, path in named.items()) + "\n"
