"""Checkpoints are complete or refused, the last two are kept, and operating-system errors become sentences."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.store.checkpoint import FORMAT_VERSION, CheckpointStore
from peer.store.files import seal, storage_error, unseal

DIGESTS = {"manifest_digest": "m" * 64, "graph_digest": "g" * 64, "schema_digest": "s" * 64, "frozen_digest": "f" * 32}
OWNER = {"peer_id": 3, **DIGESTS}


def store_at(directory: Path, **changes) -> CheckpointStore:
    return CheckpointStore(directory, **{**OWNER, **changes})


def arrays_of(round_index: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(round_index)
    return {
        "slot-0": generator.standard_normal(50).astype(np.float32),
        "sizes": np.arange(6, dtype=np.int64).reshape(2, 3),
    }


def state_of(round_index: int) -> dict:
    return {"round": round_index, "seen": [[1, 7, round_index, 0, 1]], "random": 2**70 + round_index, "loss": 0.1}


def filled(directory: Path, rounds=(4, 5)) -> CheckpointStore:
    store = store_at(directory)
    for round_index in rounds:
        store.save(round_index, arrays_of(round_index), state_of(round_index))
    return store


def reseal(path: Path, **changes) -> None:
    manifest = path / "manifest.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), **changes}))


def only_reason(store: CheckpointStore) -> str:
    assert len(store.rejected) == 1
    return store.rejected[0][1]


def test_round_trip_is_exact_and_writable(tmp_path):
    filled(tmp_path / "c")
    loaded = store_at(tmp_path / "c").load_latest()
    assert loaded is not None and loaded.round_index == 5 and loaded.state == state_of(5)
    for name, array in arrays_of(5).items():
        assert loaded.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded.arrays[name], array)
        loaded.arrays[name] += 1


def test_an_empty_store_has_no_checkpoint(tmp_path):
    store = store_at(tmp_path / "never-made")
    assert store.load_latest() is None and store.rejected == []


def test_the_last_two_are_kept(tmp_path):
    filled(tmp_path, rounds=range(5))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-0000000004", "checkpoint-0000000005"]


def test_a_transposed_view_is_saved_correctly(tmp_path):
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    store_at(tmp_path).save(1, {"a": transposed}, {})
    np.testing.assert_array_equal(store_at(tmp_path).load_latest().arrays["a"], transposed)


@pytest.mark.parametrize("key", OWNER)
def test_a_checkpoint_of_another_run_or_peer_is_refused_by_key(tmp_path, key):
    filled(tmp_path)
    other = store_at(tmp_path, **{key: 9 if key == "peer_id" else "x" * 64})
    assert other.load_latest() is None
    assert [reason.startswith(f"other peer or run: expected {key} ") for _, reason in other.rejected] == [True, True]


def test_another_format_version_is_refused(tmp_path):
    filled(tmp_path)
    reseal(tmp_path / "checkpoint-0000000002", version=FORMAT_VERSION + 1)
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    assert only_reason(store).startswith("another format: expected version 1, got 2")


def test_a_checkpoint_without_the_digest_of_the_frozen_weights_is_refused(tmp_path):
    filled(tmp_path)
    manifest = tmp_path / "checkpoint-0000000002" / "manifest.json"
    manifest.write_bytes(seal({k: v for k, v in unseal(manifest.read_bytes()).items() if k != "frozen_digest"}))
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    assert only_reason(store) == "misplaced: manifest.json lacks frozen_digest"


def test_a_checkpoint_under_another_number_is_refused(tmp_path):
    filled(tmp_path)
    shutil.copytree(tmp_path / "checkpoint-0000000001", tmp_path / "checkpoint-0000000007")
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 5
    assert only_reason(store) == "misplaced: expected checkpoint 7, got 1"


def test_a_manifest_with_another_payload_is_refused(tmp_path):
    filled(tmp_path)
    shutil.copy(tmp_path / "checkpoint-0000000001/arrays.safetensors", tmp_path / "checkpoint-0000000002")
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    assert only_reason(store).startswith("damaged: the SHA-256 digest of arrays.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b'{"body":1,"sha256":"2"}', seal([1]), seal({"incarnation": 5})]
)
def test_another_content_of_manifest_json_is_refused(tmp_path, content):
    filled(tmp_path)
    (tmp_path / "checkpoint-0000000002/manifest.json").write_bytes(content)
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4 and len(store.rejected) == 1


@pytest.mark.parametrize("name", ["manifest.json", "arrays.safetensors"])
def test_a_missing_file_makes_a_checkpoint_incomplete(tmp_path, name):
    filled(tmp_path)
    (tmp_path / "checkpoint-0000000002" / name).unlink()
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    assert only_reason(store) == f"incomplete: {name} is missing"


def test_a_file_in_place_of_a_checkpoint_is_unreadable(tmp_path):
    filled(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint-0000000002")
    (tmp_path / "checkpoint-0000000002").write_text("a file")
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    assert only_reason(store).startswith("unreadable:")


def test_a_rejected_checkpoint_does_not_count_as_kept(tmp_path):
    """Goal: if the newest one is damaged, the older good one is kept until two new ones are saved."""
    filled(tmp_path)
    (tmp_path / "checkpoint-0000000002/manifest.json").write_bytes(b"damaged")
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 4
    third = store.save(5, arrays_of(5), state_of(5))
    (third / "manifest.json").write_bytes(b"damaged")
    assert store_at(tmp_path).load_latest().round_index == 4
    store.save(6, arrays_of(6), state_of(6))
    assert sorted(p.name[-1] for p in tmp_path.iterdir()) == ["3", "4"]


def test_a_partial_checkpoint_of_a_killed_process_is_removed(tmp_path):
    filled(tmp_path)
    leftover = tmp_path / ".checkpoint-0000000003"
    leftover.mkdir()
    (leftover / "arrays.safetensors").write_bytes(b"half")
    store = store_at(tmp_path)
    assert store.load_latest().round_index == 5 and store.rejected == []
    store.save(6, arrays_of(6), state_of(6))
    assert not leftover.exists()


def test_a_file_in_place_of_the_directory_is_a_storage_error(tmp_path):
    (tmp_path / "c").write_text("in the way")
    for act in (lambda s: s.save(0, {}, {}), lambda s: s.load_latest()):
        with pytest.raises(StorageError, match=r"cannot (write|read) .*Expected a folder, got a file. Remove it"):
            act(store_at(tmp_path / "c"))


LIMITED = """
import resource, sys
import numpy as np
from pathlib import Path
from coordinator_free_bootstrap.errors import StorageError
from peer.store.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), peer_id=3, manifest_digest="m" * 64, graph_digest="g" * 64,
                        schema_digest="s" * 64)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(6, {"slot-0": np.ones(100_000, np.float32)}, {})
except StorageError as error:
    print(error)
"""


def test_a_failed_write_keeps_the_earlier_checkpoints(tmp_path):
    """Method: a kernel limit (RLIMIT_FSIZE) fails the write of the payload, as a full disk does."""
    filled(tmp_path)
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, check=True)
    assert "arrays.safetensors: File too large. The file is larger than the file size limit" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-0000000001", "checkpoint-0000000002"]
    assert store_at(tmp_path).load_latest().round_index == 5


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full"),
        (errno.EACCES, "This user has no permission"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "input/output error"),
        (errno.EBADF, "Check that the path exists"),
    ],
)
def test_each_error_number_has_a_sentence(number, words):
    error = storage_error("write", Path("/state/x"), OSError(number, os.strerror(number)))
    assert error.exit_code == 30 and words in str(error) and "/state/x" in str(error)


def test_seal_is_json():
    assert json.loads(seal({"a": 1}))["body"] == {"a": 1}
