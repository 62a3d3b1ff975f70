"""Every kind of file that a peer reads, with every kind of damage: a value or one sentence; no hang, no memory, no bug.

Method: a table of readers, and a table of damages, each with each. An alarm ends a reader that waits, and a limit of address
space one that reads without end. Before, a pipe was waited for without end, ``/dev/zero`` took gigabytes, and JSON of another
type was a bug of this program, exit code 70.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from tools.experiments import file_named
from tools.permissions import bound_by_permissions

from coordinator_free_bootstrap import load_graph, make_graph, parse_manifest, save_graph
from coordinator_free_bootstrap.errors import LocalProtocolError, PeerError
from peer.bed.chaos.script import load_script
from peer.bed.testbed.directory import check_same_run, earlier_graph
from peer.bed.testbed.testbed import Supervisor
from peer.identity.files import KeyFiles, keygen, load_key_pair
from peer.lab.jobs import read_result
from peer.lab.spec import load_experiment
from peer.lab.table_files import read_tables
from peer.observe.logs import last_error
from peer.ops.deploy.task_file import user_files
from peer.runtime.assembly import LocalSettings, assemble
from peer.runtime.ending import is_completed
from peer.store.history import HistoryWriter, read_history
from peer.store.identity_files import IncarnationFile, StateLock, held_by
from peer.store.model_file import load_model
from peer.tasks.loading import load_task
from peer.tasks.preprocessing import Preprocessing
from peer.tasks.shard import Shard
from peer.tasks.shard_file import load_shard_file, save_shard
from peer.view.models.inputs import read_inputs
from peer.view.models.saved import SavedModel
from peer.view.page.access import kept_key
from peer.view.report.report import build_report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/zero and limits of memory as on Linux")

EXPERIMENT = file_named("all-algorithms")
PATIENCE_S = 60  # only a hang reaches it
MEMORY_BYTES = 2 << 30  # address space that a reader may take beside what is there
HUGE_BYTES = 1 << 40  # of a file without content: the file system stores nothing
RUN = {
    "task": "linear",
    "task_options": {"features": 3, "samples_per_cluster": 20, "test_per_cluster": 8},
    "split": "iid",
    "rounds": 2,
}
GRAPH = make_graph("line", 2, manifest=parse_manifest(RUN, "test"))


# ---- the run whose files are damaged --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one whole file of each kind."""
    place = tmp_path_factory.mktemp("whole")
    save_graph(GRAPH, place / "graph.json")
    (place / "chaos.jsonl").write_text('{"kind":"fault","t":1.0,"time":"2026-01-01T00:00:00+00:00","text":"heal"}\n')
    (place / "exits.jsonl").write_text('{"kind":"exit","time":"2026-01-01T00:00:00+00:00","peer_id":0,"exit_code":0}\n')
    (place / "watch.jsonl").write_text('{"kind":"watch"}\n')
    state = place / "peer-0"
    parts = assemble(0, GRAPH, LocalSettings.at(state))
    parts.origin.write()
    from peer.core.effects import WriteCheckpoint
    from peer.runtime.results import write_results

    engine_state = parts.host.state.checkpoint()
    saved = parts.host.checkpoint(WriteCheckpoint(1, engine_state))
    parts.checkpoints.save(1, saved.arrays, saved.state)
    with HistoryWriter(parts.state_dir.history) as history:
        history.write("start", peer_id=0, resumed_from=None)
        history.write("end", rounds_completed=1)
    write_results(parts.host, parts.state_dir, "completed", 1.0)
    (state / "peer.log").write_text("12:00:00.000 peer 0 ERROR   broken\n")
    parts.lock.release()
    keygen(place / "keys", "federation", 0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2
    save_shard(place / "shard.safetensors", Shard(train_x=x, train_y=y, test_x=x, test_y=y))
    (place / "own_task.py").write_text("task = 1\n")
    with (place / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "label"], *([i, 2 * i, "ab"[i % 2]] for i in range(20))])
    pandas = pytest.importorskip("pandas")
    pandas.read_csv(place / "table.csv").to_parquet(place / "table.parquet")
    np.save(place / "x.npy", x)
    np.savez(place / "x.npz", x=x)
    save_file({"x": x}, place / "x.safetensors")
    (place / "rows.csv").write_text("1,2,3\n4,5,6\n")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(place / "picture.png")
    (place / "leaf.json").write_text(json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [1]}}}))
    shutil.copy(EXPERIMENT, place / "experiment.toml")
    (place / "script.toml").write_text("[[event]]\nat_s = 1\ndo = 'kill'\npeers = [1]\n")
    (place / "result.json").write_text('{"digest": "d"}')
    shutil.copy(next(EXPERIMENT.parent.glob("results/*.json")), place / "tables.json")
    return place


def resumed(path: Path) -> object:
    """Start a peer in the state directory that the damaged file is in."""
    root = next(folder for folder in path.parents if folder.name == "peer-0")
    parts = assemble(0, GRAPH, LocalSettings.at(root))
    parts.origin.write()
    parts.lock.release()
    return parts


def reported(path: Path) -> object:
    """Report the run that the damaged file is in."""
    return build_report(next(folder for folder in path.parents if (folder / "keys").exists()))


def locked(path: Path) -> object:
    """Look at the lock, and take it."""
    held_by(path.parent)
    with StateLock(path.parent):
        return None


def written_to(path: Path) -> object:
    """Append to a history."""
    with HistoryWriter(path) as history:
        history.write("round", round_index=1)
    return None


def key_pair(path: Path) -> object:
    return load_key_pair(KeyFiles.of(path.parent, 0))


def page_key(path: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(path.parents[1]))
        return kept_key(path.parent)


def table(path: Path) -> object:
    return load_task(parse_manifest({"task": "tabular", "split": "iid"}, "test"), 2, data_root=path)


def leaf(path: Path) -> object:
    from peer.zoo.tasks.leaf import _read

    folder = path.parent / "leaf"
    folder.mkdir(exist_ok=True)
    if os.path.lexists(path):
        shutil.move(path, folder / path.name)
    return _read(folder)


def own_task(path: Path) -> object:
    return load_task(parse_manifest({"task": f"{path}:task"}, "test"), 2)


def deployed(path: Path) -> object:
    manifest = parse_manifest({"task": f"{path.name}:task"}, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        return user_files(make_graph("line", 2, manifest=manifest))


def samples(path: Path) -> object:
    if path.suffix == ".png":
        return read_inputs(path, (1, 8, 8), "float32", Preprocessing())
    return read_inputs(path, (3,), "float32", None)


def predicted(path: Path) -> object:
    saved = SavedModel.read(path)
    return saved.predictions(saved.known_manifest(), np.zeros((2, 3), np.float32))


CHECKPOINT = "peer-0/checkpoints/checkpoint-0000000001"
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "graph": ("graph.json", load_graph),
    "graph of a testbed": ("graph.json", lambda path: earlier_graph(path.parent)),
    "histories of a testbed": ("peer-0/history.jsonl", lambda path: check_same_run(GRAPH, path.parents[1])),
    "graph of a new testbed": ("graph.json", lambda path: Supervisor(GRAPH, path.parent, insecure=True)),
    "ends of a testbed": ("exits.jsonl", lambda path: Supervisor(GRAPH, path.parent, insecure=True)._record({0: 1})),
    "graph of a report": ("graph.json", reported),
    "key": ("keys/peer-0.key", key_pair),
    "certificate": ("keys/peer-0.pem", key_pair),
    "incarnation": ("peer-0/incarnation.json", lambda path: IncarnationFile(path.parent).claim()),
    "incarnation of a start": ("peer-0/incarnation.json", resumed),
    "lock": ("peer-0/lock", locked),
    "run": ("peer-0/origin.json", resumed),
    "manifest of a checkpoint": (f"{CHECKPOINT}/manifest.json", resumed),
    "arrays of a checkpoint": (f"{CHECKPOINT}/arrays.safetensors", resumed),
    "history": ("peer-0/history.jsonl", read_history),
    "history of a report": ("peer-0/history.jsonl", reported),
    "history of a writer": ("peer-0/history.jsonl", written_to),
    "summary of a report": ("peer-0/summary.json", reported),
    "summary of a supervisor": ("peer-0/summary.json", lambda path: is_completed(_state(path))),
    "log": ("peer-0/peer.log", last_error),
    "faults": ("chaos.jsonl", reported),
    "exits": ("exits.jsonl", reported),
    "observed": ("watch.jsonl", reported),
    "cluster model of a report": ("peer-0/models/cluster-0.safetensors", reported),
    "model": ("peer-0/models/cluster-0.safetensors", load_model),
    "model of a prediction": ("peer-0/models/cluster-0.safetensors", predicted),
    "shard": ("shard.safetensors", load_shard_file),
    "task file": ("own_task.py", own_task),
    "task file of a deployment": ("own_task.py", deployed),
    "table": ("table.csv", table),
    "parquet": ("table.parquet", table),
    "leaf": ("leaf.json", leaf),
    "array": ("x.npy", samples),
    "arrays": ("x.npz", samples),
    "tensors": ("x.safetensors", samples),
    "rows": ("rows.csv", samples),
    "picture": ("picture.png", samples),
    "experiment": ("experiment.toml", load_experiment),
    "result": ("result.json", read_result),
    "tables": ("tables.json", read_tables),
    "script of faults": ("script.toml", load_script),
    "key of a page": ("coordinator-free/page.key", page_key),
}


def _state(path: Path) -> Any:
    from peer.store.state_dir import StateDir

    return StateDir(path.parent)


# ---- damages --------------------------------------------------------------------------------------------------------


def replaced(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    return damage


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def linked(target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target.format(name=path.name))

    return damage


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def locked_file(path: Path) -> None:
    path.touch()
    path.chmod(0)


def truncated(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    replaced(content[: len(content) // 2])(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE_BYTES)


def sealed(value: Any) -> Callable[[Path], None]:
    from peer.store.files import seal

    return replaced(seal(value))


DEEP = b"[" * 200_000
DAMAGES: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "device": linked("/dev/zero"),
    "no file": lambda path: path.unlink(missing_ok=True),
    "folder": folder,
    "locked": locked_file,
    "link to itself": linked("{name}"),
    "link to nothing": linked("nothing-of-this-name"),
    "huge": huge,
    "empty": replaced(b""),
    "truncated": truncated,
    "text": replaced(b'"text"\n'),
    "list": replaced(b"[1, 2]\n"),
    "number": replaced(b"7\n"),
    "null": replaced(b"null\n"),
    "object": replaced(b"{}\n"),
    "NaN": replaced(b'{"kind": "start", "peer_id": NaN, "digest": Infinity}\n'),
    "deep": replaced(DEEP + b"\n"),
    "deep object": replaced(b'{"a":' * 200_000 + b"\n"),
    "long number": replaced(b"9" * 10_000 + b"\n"),
    "other bytes": replaced(bytes(range(128, 256)) * 8 + b"\n"),
    "NUL": replaced(bytes(4096)),
    "sealed text": sealed("text"),
    "sealed list": sealed([1]),
    "sealed object": sealed({"incarnation": "1", "version": 1}),
    "sealed negative": sealed({"incarnation": -1, "version": None}),
    "long header": replaced(struct.pack("<Q", 1 << 62) + b"{}"),
    "deep header": replaced(struct.pack("<Q", 200_000) + DEEP),
}


@pytest.fixture
def bounded() -> Iterator[None]:
    """End what hangs and what takes memory without end, as an error that is no `PeerError`."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE_S)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", READERS)
def test_a_whole_file_is_read(whole: Path, tmp_path: Path, bounded: None, kind: str) -> None:
    """Else the table below would show nothing."""
    if kind in ("task file", "key of a page"):
        return
    name, read = READERS[kind]
    place = tmp_path / "run"
    shutil.copytree(whole, place)
    read(place / name)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_a_value_or_a_sentence(
    whole: Path, tmp_path: Path, bounded: None, kind: str, damage: str
) -> None:
    name, read = READERS[kind]
    place = tmp_path / "run"
    shutil.copytree(whole, place)
    path = place / name
    path.parent.mkdir(exist_ok=True)
    DAMAGES[damage](path)
    try:
        with bound_by_permissions():
            read(path)
    except PeerError as error:
        assert error.exit_code != LocalProtocolError.exit_code
        assert str(error).strip() and "[Errno 0]" not in str(error)
