"""Find the state directories of peers in a folder, and read their summaries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from coordinator_free_bootstrap.errors import StorageError
from coordinator_free_bootstrap.ordinary_file import content_of, opened
from coordinator_free_bootstrap.strict_json import printable
from peer.store.files import storage_error, storage_errors
from peer.store.history import parse_lines
from peer.store.lines import parts_of
from peer.store.records import Summary
from peer.store.state_dir import StateDir
from peer.view.state.records import problem_of, problem_of_line

PLACES = "the folder of a testbed, the state directory of a peer, or a folder with state directories"
START_BYTES_MAX = 1 << 20  # of a history file, in which its start line is
_NAME = re.compile(r"peer-(\d{1,10})\Z")


def state_directories(directory: Path, notes: list[str] | None = None) -> dict[int, StateDir]:
    """Return the state directories of peers in a directory, by peer id: the directory itself, its folders, or theirs.

    A state directory has a ``history.jsonl`` or a ``summary.json``. The id is in them, else in the name ``peer-<id>``.

    Args:
        directory: where to look.
        notes: gets a sentence for each state directory that is not used.
    """
    found: dict[int, StateDir] = {}
    for root in _state_roots(Path(directory)):
        state_dir = StateDir(root)
        peer_id = _peer_id(state_dir)
        if peer_id is None or peer_id in found:
            reason = "its peer id is not known" if peer_id is None else f"peer {peer_id} has {found[peer_id].root} too"
            if notes is not None:
                notes.append(f"{root}: not used: {reason}")
            continue
        found[peer_id] = state_dir
    return dict(sorted(found.items()))


def listed(ids: list[int]) -> str:
    """Return peer ids as text, at most ten of them."""
    return ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")


def _state_roots(directory: Path, depth: int = 2) -> Iterator[Path]:
    if not directory.is_dir():
        return
    if any((directory / name).is_file() for name in ("history.jsonl", "summary.json")):
        yield directory
    elif depth:
        with storage_errors("read", directory):
            folders = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
        for folder in sorted(folders, key=lambda path: _NAME.match(path.name) is None):  # peer-<id> first
            yield from _state_roots(folder, depth - 1)


def _peer_id(state_dir: StateDir) -> int | None:
    for part in parts_of(state_dir.history)[:1]:
        with storage_errors("read", part), opened(part) as file:
            data = file.read(START_BYTES_MAX)
        for line in parse_lines(data):
            if line["kind"] == "start" and line.get("peer_id") is not None and not problem_of_line(line):
                return int(line["peer_id"])
    said = read_summary(state_dir.summary, []).get("peer_id")
    named = _NAME.match(state_dir.root.resolve().name)
    return int(named[1]) if said is None and named else said


def read_summary(path: Path, problems: list[str]) -> Summary:
    """Return a valid summary, {} if there is none; `problems` gets a sentence on one that is not valid.

    Raises:
        StorageError: the file cannot be read, or is no JSON.
    """
    try:
        value: Summary = json.loads(content_of(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path}: expected valid JSON ({printable(str(error))}). It was changed after the run. Remove it."
        ) from error
    if problem := problem_of(value, Summary):
        problems.append(f"{path}: not used: {problem}")
        return {}
    return value
