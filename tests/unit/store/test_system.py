"""What a peer needs of its machine."""

import tempfile

import pytest

from coordinator_free_bootstrap.errors import StorageError
from peer.store.system import require_temporary_folder


def test_a_container_without_a_temporary_folder_is_one_sentence(monkeypatch):
    """Before, a peer in a read-only container ended with a trace and exit code 70."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(StorageError, match=r"temporary files: .*/nowhere.*; mount a folder .* at /tmp, or set TMPDIR"):
        require_temporary_folder()
