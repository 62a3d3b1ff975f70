"""A user's file, and what it imports from its folder, is executed from bytes that were approved, or not at all.

Method: an approval by SHA-256, as a policy gives it; each file leaves a trace when it is executed.
"""

from __future__ import annotations

import hashlib
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator_free_bootstrap import user_file
from coordinator_free_bootstrap.errors import PolicyError, TaskError
from coordinator_free_bootstrap.user_file import Named, load_object

NAMED = Named("task", "object", "task", TaskError)
TRACE = "import builtins; builtins.traces.append({!r})\n"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    import builtins

    found: list[str] = []
    monkeypatch.setattr(builtins, "traces", found, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "path_hooks", [*sys.path_hooks])
    before = {*sys.modules}
    yield found
    for name in {*sys.modules} - before:
        del sys.modules[name]
    sys.path_importer_cache.clear()


def approve(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    """Let only the present content of these files be executed."""
    allowed = {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def check(path: Path, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() not in allowed:
            raise PolicyError(f"{path.name} is not approved")

    monkeypatch.setattr(user_file, "approvals", [check])


def written(path: Path, body: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(TRACE.format(path.name) + body + "task = 1\n")
    return path


def load(path: Path) -> object:
    return load_object(f"{path}:task", NAMED)


def test_an_unapproved_file_is_refused_before_its_first_line(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "own_a.py")
    approve(monkeypatch, file)
    assert load(file) == 1 and traces == ["own_a.py"]
    other = written(tmp_path / "own_b.py")
    for _ in range(2):  # the second call does not find a half-loaded module
        with pytest.raises(PolicyError, match=r"own_b\.py is not approved"):
            load(other)
    assert traces == ["own_a.py"]


def test_a_compiled_copy_of_other_code_is_not_executed(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes __pycache__ where time and size are those of the file; only the file is approved."""
    file = written(tmp_path / "own_c.py")
    honest = file.read_bytes()
    file.write_bytes(honest.replace(b"own_c", b"evil!"))
    compiled = py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert compiled is not None
    file.write_bytes(honest)
    approve(monkeypatch, file)
    load(file)
    assert traces == ["own_c.py"]


@pytest.mark.parametrize("helper", ["helper_d.py", "package_d/__init__.py"])
def test_what_it_imports_from_its_folder_must_be_approved_too(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch, helper: str
) -> None:
    module = Path(helper).parts[0].removesuffix(".py")
    beside = written(tmp_path / helper)
    file = written(tmp_path / "own_d.py", f"import {module}\n")
    approve(monkeypatch, file)
    with pytest.raises(PolicyError, match="is not approved"):
        load(file)
    assert traces == ["own_d.py"]
    approve(monkeypatch, file, beside)
    load(file)
    assert traces == ["own_d.py", "own_d.py", beside.name]


def test_a_module_in_a_package_beside_it_must_be_approved_too(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, inner = written(tmp_path / "package_e/__init__.py"), written(tmp_path / "package_e/inner.py")
    file = written(tmp_path / "own_e.py", "import package_e.inner\n")
    approve(monkeypatch, file, package)
    with pytest.raises(PolicyError, match=r"inner\.py is not approved"):
        load(file)
    assert inner.name not in traces


def test_a_folder_that_python_knows_already_is_looked_up_anew(
    tmp_path: Path, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "helper_f.py")
    sys.path.append(str(tmp_path))
    with pytest.raises(ImportError):
        import no_such_module_f  # type: ignore[import-not-found]  # noqa: F401 -- fills sys.path_importer_cache
    file = written(tmp_path / "own_f.py", "import helper_f\n")
    approve(monkeypatch, file)
    with pytest.raises(PolicyError, match=r"helper_f\.py is not approved"):
        load(file)
    assert traces == ["own_f.py"]


def test_without_approvals_a_file_imports_its_helpers_as_ever(tmp_path: Path, traces: list[str]) -> None:
    written(tmp_path / "helper_g.py")
    load(written(tmp_path / "own_g.py", "import helper_g\n"))
    assert traces == ["own_g.py", "helper_g.py"]
    with pytest.raises(TaskError, match=r"expected a Python file, whose name ends in \.py"):
        load(written(tmp_path / "own_g.txt"))
