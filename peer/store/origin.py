"""What a state directory was made for: ``origin.json`` keeps peer, manifest, edges, model and the meaning of its numbers.

Addresses, pins and observers are not kept: they may change while a run continues.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coordinator_free_bootstrap import Graph
from coordinator_free_bootstrap.errors import CheckpointCorrupt
from coordinator_free_bootstrap.manifest import chosen_keys
from coordinator_free_bootstrap.meaning import changes
from coordinator_free_bootstrap.ordinary_file import content_of
from coordinator_free_bootstrap.settings import diff
from coordinator_free_bootstrap.validation import counted
from peer.core.schema import Schema
from peer.store.files import seal, storage_error, unseal, write_atomic

FILE_BYTES_MAX = 64 << 20  # as a graph file
NAMED_MAX = 5  # differences in one message
_FORM: dict[str, type] = {
    "peer_id": int,
    "run": dict,
    "peers": list,
    "edges": list,
    "tensors": dict,
    "frozen": str,
    "meaning": dict,
}


class Origin:
    """The run that the state in a directory belongs to.

    Args:
        path: `StateDir.origin`.
        peer_id: of the peer.
        graph: edges and manifest.
        schema: of the model.
        frozen_digest: of the weights that are not trained; "" if there are none.
        meaning: of task and data, the text of `coordinator_free_bootstrap.meaning.Meaning`.

    Attributes:
        path: of the file.
        notes: set by `differences`: why the file is not usable, and what is otherwise in a way that may be meant.
    """

    def __init__(
        self, path: Path, peer_id: int, graph: Graph, schema: Schema, frozen_digest: str, meaning: str
    ) -> None:
        self.path = path
        self.notes: list[str] = []
        self._continues = frozenset(graph.continues)
        self._facts: dict[str, Any] = {
            "peer_id": peer_id,
            **_facts_of(graph),
            "digest": graph.run_digest,
            "tensors": {tensor.name: [tensor.role, *tensor.shape] for tensor in schema.tensors},
            "frozen": frozen_digest,
            "meaning": json.loads(meaning),
        }

    def write(self) -> None:
        """Write the present run, durably.

        Raises:
            StorageError: the file cannot be written.
        """
        write_atomic(self.path, seal(self._facts))

    def differences(self) -> list[str]:
        """Return what the run in the file has otherwise than the present one, as phrases; [] without a usable file.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        self.notes = []
        try:
            before = unseal(content_of(self.path, FILE_BYTES_MAX))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        except CheckpointCorrupt as error:
            self.notes = [f"{self.path}: damaged ({error}); it was written again"]
            return []
        if not isinstance(before, dict) or any(not isinstance(before.get(key), kind) for key, kind in _FORM.items()):
            self.notes = [f"{self.path}: no description of a run; it was written again"]
            return []
        self.notes = changes(before["meaning"], self._facts["meaning"])[1]
        if before.get("digest") in self._continues:
            changed = _graph_differences(before, self._facts)
            self.notes.append(f"continues the run of an earlier graph file: {listed(changed)}")
            return differences(before | _graph_facts(self._facts), self._facts)
        return differences(before, self._facts)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences of two runs as phrases such as ``run.rounds was 400, is now 800``."""
    differences = _graph_differences(before, now)
    if before["peer_id"] != now["peer_id"]:
        differences.insert(0, f"peer id was {before['peer_id']}, is now {now['peer_id']}")
    for name in [*now["tensors"], *(before["tensors"].keys() - now["tensors"].keys())]:
        was, is_now = before["tensors"].get(name), now["tensors"].get(name)
        if was != is_now:
            differences.append(f"model tensor {name} was {_tensor(was)}, is now {_tensor(is_now)}")
    if before["frozen"] != now["frozen"]:
        differences.append("frozen weights of the model differ now")
    return differences + changes(before["meaning"], now["meaning"])[0]


def differences_of_graphs(before: Graph, now: Graph) -> list[str]:
    """Return the differences of two runs as `differences` does, for runs whose models are not known."""
    return _graph_differences(_facts_of(before), _facts_of(now))


def _facts_of(graph: Graph) -> dict[str, object]:
    return {
        "run": json.loads(json.dumps(chosen_keys(graph.manifest))),
        "peers": list(graph.ids),
        "edges": [list(edge) for edge in graph.edges],
    }


def _graph_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("run", "peers", "edges")}


def _graph_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    differences = []
    keys = diff(json.dumps(now["run"]), json.dumps(before["run"]))
    differences += [f"{each.key} was {each.theirs}, is now {each.ours}" for each in keys]
    if before["peers"] != now["peers"]:
        differences.append(_changed("peer", [str(p) for p in before["peers"]], [str(p) for p in now["peers"]]))
    if before["edges"] != now["edges"]:
        differences.append(_changed("edge", [_edge(e) for e in before["edges"]], [_edge(e) for e in now["edges"]]))
    return differences


def listed(phrases: list[str]) -> str:
    """Return differences as one text, at most `NAMED_MAX` of them."""
    more = len(phrases) - NAMED_MAX
    return "; ".join(phrases[:NAMED_MAX]) + (f"; and {counted(more, 'more difference')}" if more > 0 else "")


def _changed(what: str, before: list[str], now: list[str]) -> str:
    was, is_now = set(before), set(now)
    gone = [each for each in before if each not in is_now]
    new = [each for each in now if each not in was]
    parts = [f"without {what} {', '.join(gone[:3])}{_more(gone)}"] if gone else []
    parts += [f"with the new {what} {', '.join(new[:3])}{_more(new)}"] if new else []
    return f"{what}s were {len(before)}, are now {len(now)} ({' and '.join(parts) or 'in another order'})"


def _more(names: list[str]) -> str:
    return f" and {len(names) - 3} more" if len(names) > 3 else ""


def _edge(edge: object) -> str:
    return "-".join(map(str, edge)) if isinstance(edge, list) else "?"


def _tensor(about: object) -> str:
    if not isinstance(about, list) or not about:
        return "absent"
    role, *shape = about
    return f"{shape}" if role == "parameter" else f"{role} {shape}"
