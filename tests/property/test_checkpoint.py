"""A peer never resumes from a damaged checkpoint (invariant I7).

Method: two good checkpoints of rounds 4 and 5 are made once; each example damages files, then loads. The answer
must be an undamaged checkpoint, exactly, or None; no example may raise anything.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.store.checkpoint import CheckpointStore
from peer.store.files import seal, unseal
from peer.store.identity_files import IncarnationFile

NAMES = ("checkpoint-0000000001", "checkpoint-0000000002")
FILES = ("manifest.json", "arrays.safetensors")
ROUNDS = (4, 5)


def open_store(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory, peer_id=0, manifest_digest="m", graph_digest="g", schema_digest="s")


def arrays_of(round_index: int) -> dict[str, np.ndarray]:
    return {"slot-0": np.full(7, round_index, np.float32), "slot-1": np.arange(5, dtype=np.float32) * round_index}


@pytest.fixture(scope="module")
def good():
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(Path(directory))
        for round_index in ROUNDS:
            store.save(round_index, arrays_of(round_index), {"round": round_index, "text": "é\n"})
        yield Path(directory)


def flip(data: bytes, place: int, mask: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


DAMAGES = st.one_of(
    st.builds(lambda place, mask: lambda data: flip(data, place, mask), st.integers(0, 1 << 16), st.integers(1, 255)),
    st.builds(lambda place: lambda data: data[: place % len(data)], st.integers(0, 1 << 16)),
    st.builds(lambda tail: lambda data: data + tail, st.binary(min_size=1, max_size=64)),
    st.builds(lambda size: lambda data: bytes(size % len(data) + 1) + data[size % len(data) + 1 :], st.integers(0, 99)),
    st.builds(lambda new: lambda data: new, st.binary(max_size=64)),
)


def check(directory: Path, damaged: set[str]) -> None:
    store = open_store(directory)
    loaded = store.load_latest()
    expected = [r for r, name in zip(ROUNDS, NAMES, strict=True) if name not in damaged]
    if not expected:
        assert loaded is None
    else:
        assert loaded is not None and loaded.round_index == max(expected)
        assert loaded.state == {"round": loaded.round_index, "text": "é\n"}
        wanted = arrays_of(loaded.round_index)
        assert loaded.arrays.keys() == wanted.keys()
        for name, array in wanted.items():
            assert loaded.arrays[name].tobytes() == array.tobytes()
    passed_over = {name for name in damaged if not expected or name > NAMES[ROUNDS.index(max(expected))]}
    assert {path.name for path, _ in store.rejected} == passed_over
    assert all(reason for _, reason in store.rejected)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(FILES), DAMAGES), min_size=1, max_size=3))
@settings(max_examples=300)
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_is_used(good, damages):
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "c"
        shutil.copytree(good, directory)
        for name, file, damage in damages:
            path = directory / name / file
            before = path.read_bytes()
            path.write_bytes(damage(before) if before else b"x")
        changed = {
            name for name in NAMES for file in FILES
            if (directory / name / file).read_bytes() != (good / name / file).read_bytes()
        }  # fmt: skip
        check(directory, changed)


@pytest.mark.parametrize("file", FILES)
def test_every_flipped_byte_and_every_shorter_length_is_refused(good, tmp_path, file):
    """Exhaustive, not sampled: each byte of the newest checkpoint flipped once, and each shorter length."""
    directory = tmp_path / "c"
    shutil.copytree(good, directory)
    path = directory / NAMES[1] / file
    whole = path.read_bytes()
    for place in range(len(whole)):
        for damaged in (flip(whole, place, 1 << place % 8), whole[:place]):
            path.write_bytes(damaged)
            loaded = open_store(directory).load_latest()
            assert loaded is not None and loaded.round_index == 4
    path.write_bytes(whole)
    check(directory, set())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_seal_round_trips(value):
    assert unseal(seal(value)) == value


@given(st.lists(st.tuples(st.integers(), st.integers(0, 1 << 50)), min_size=1, max_size=8))
def test_incarnations_only_grow(claims):
    with tempfile.TemporaryDirectory() as scratch:
        last = 0
        for entropy, above in claims:
            claimed = IncarnationFile(Path(scratch)).claim(entropy, above=above)
            assert max(last, above) < claimed < 1 << 63
            last = claimed
