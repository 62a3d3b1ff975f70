"""Load the object that a manifest names in a user's Python file, ``path/to/file.py:object``: a task or an algorithm.

The relative path is part of the manifest, which neighbors compare; `digest_of_code` shows whether the files are equal too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

from typing_extensions import override

from coordinator_free_bootstrap.errors import ConfigError, PolicyError
from coordinator_free_bootstrap.extras import missing_package

FILE_BYTES_MAX = 16 << 20
LENGTH_MAX = 300  # characters of an exception's text in a sentence
USER_ERRORS = (Exception, SystemExit)  # that code of a user may raise; Ctrl-C is not its own
_PACKAGES = {"site-packages", "dist-packages"}  # also those of another environment, as in PYTHONPATH
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent.with_name("peer")),
    str(Path(__file__).parent),
    "<",  # frozen modules and generated code
)


@dataclass(frozen=True)
class Named:
    """A key of the manifest whose value may name an object in a file.

    Attributes:
        key: as messages name it.
        form: of what follows the colon: ``object`` or ``Class``.
        example: such a name.
        error: class of the errors.
    """

    key: str
    form: str
    example: str
    error: type[ConfigError]


# Entered while a user's file is executed; `peer.tasks` keeps the settings of the process here.
surroundings: list[Callable[[Named], AbstractContextManager[None]]] = []
# Each is called with path and content of a user's file before it is executed; `peer.runtime.policy` keeps the owner's here.
approvals: list[Callable[[Path, bytes], None]] = []
_executing = threading.RLock()  # peers of one program load on threads: none may see a file that another one executes


def names_file(value: str) -> bool:
    """Return whether a value of the manifest has the form ``path/to/file.py:object``."""
    return ":" in value


def file_of(value: str) -> str:
    """Return the path in ``path/to/file.py:object``; "" for another value."""
    return value.rpartition(":")[0]


def load_object(value: str, named: Named) -> object:
    """Return the object that ``path/to/file.py:object`` names; a process executes each file once.

    Raises:
        ConfigError: of class ``named.error``: there is no such file or object, it is too large, or it cannot be imported.
    """
    path_text, _, name = value.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise named.error(f"{named.key}: expected path/to/file.py:{named.form}, got no file {path_text!r}")
    module_name = f"coordinator_free_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    with _executing:
        if module_name not in sys.modules:
            _execute(path, module_name, named)
        module = sys.modules[module_name]
    if not hasattr(module, name):
        article = "an" if named.form[0] in "aeiou" else "a"
        raise named.error(
            f"{named.key}: expected the name of {article} {named.form.lower()} in {path}, such as "
            f"{path_text}:{named.example}, got {name!r}"
        )
    member: object = getattr(module, name)
    return member


def _execute(path: Path, module_name: str, named: Named) -> None:
    if (size := path.stat().st_size) > FILE_BYTES_MAX:  # no Python code: Python reads it whole
        raise named.error(
            f"{named.key}: {path}: expected at most {FILE_BYTES_MAX} bytes of Python code, got {size}. Put data into "
            "files of their own."
        )
    loader = _ApprovedFile(module_name, str(path))
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader) if path.suffix == ".py" else None
    if spec is None:
        raise named.error(f"{named.key}: expected a Python file, whose name ends in .py, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and typing look up the module while it is executed
    if (beside := str(path.resolve().parent)) not in sys.path:
        sys.path.append(beside)  # last, so that a user's file does not hide an installed module
    _approve_beside(beside)
    try:
        with ExitStack() as stack:
            for surrounding in surroundings:
                stack.enter_context(surrounding(named))
            loader.exec_module(module)
    except PolicyError:
        del sys.modules[module_name]
        raise
    except USER_ERRORS as error:
        del sys.modules[module_name]
        raise named.error(f"{named.key}: {path} cannot be imported: {described(error)}. Correct the file.") from error


class _ApprovedFile(SourceFileLoader):
    """Execute the very bytes that were approved; a compiled copy in ``__pycache__`` may be of another file."""

    @override
    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        for approve in approvals:
            approve(Path(self.path), content)
        return self.source_to_code(content, self.path)


def _approve_beside(folder: str) -> None:
    """Let what a user's file imports from its folder be approved too, from now on; nothing to do where nothing is asked."""
    if not approvals:
        return

    def finder(path: str) -> FileFinder:
        if not _is_beside(path):
            raise ImportError
        return FileFinder(path, (_ApprovedFile, [".py"]))

    def _is_beside(path: str) -> bool:
        return Path(path).resolve().is_relative_to(folder) and is_users(path)

    sys.path_hooks.insert(0, finder)
    for path in [path for path in sys.path_importer_cache if _is_beside(path)]:
        del sys.path_importer_cache[path]


def described(error: BaseException) -> str:
    """Return ``KeyError: 'x' (my_task.py, line 12)``: the innermost line outside of Python, its packages and this project.

    The text is one line of at most `LENGTH_MAX` characters. A SyntaxError names its own line.
    """
    text = " ".join(str(error).split())
    if len(text) > LENGTH_MAX:
        text = f"{text[:LENGTH_MAX]}... ({len(text)} characters)"
    sentence = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    if frames and not isinstance(error, SyntaxError):
        sentence = f"{sentence} ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{sentence}; {missing}" if (missing := missing_package(error)) else sentence


def is_users(filename: str) -> bool:
    """Return whether a file is outside of Python, its packages and this project."""
    return not filename.startswith(_LIBRARIES) and not _PACKAGES.intersection(Path(filename).parts)


def digest_of_code(kind: type) -> str | None:
    """Return the digest of the file that defines a class; None for classes of this project and interactive code."""
    module = sys.modules.get(kind.__module__)
    path = getattr(module, "__file__", None)
    if path is None or kind.__module__ == "__main__" or kind.__module__.partition(".")[0] == "peer":
        return None
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:16]
