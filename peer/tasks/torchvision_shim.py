"""Import torchvision with a CPU build of torch.

The wheels of torchvision expect a CUDA build of torch. With a CPU build, ``import torchvision`` fails because two operators
are not registered. Data sets, transforms and classification models do not use them, so their schemas are declared here,
only after the plain import has failed. `import_for_user_code` does the same for ``import torchvision`` in a user's file.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from typing_extensions import override

from coordinator_free_bootstrap.errors import PeerError, TaskError
from coordinator_free_bootstrap.extras import require
from coordinator_free_bootstrap.ordinary_file import unreadable

MISSING_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # schemas are removed with this object


@functools.cache
def import_torchvision() -> ModuleType:
    """Return torchvision.

    Raises:
        UsageError: torchvision is not installed.
        TaskError: its import fails for another reason.
    """
    require(("torchvision",), "task or model")
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        fix = "Install the release for your torch."
        raise TaskError(unreadable("torchvision", error, fix, "a package that can be imported")) from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            fix = f"Install the release for torch {torch.__version__}."
            raise TaskError(unreadable("torchvision", error, fix, "a package that can be imported")) from error
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # modules of the failed import
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in MISSING_OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")


def import_for_user_code() -> None:
    """Let the first ``import torchvision`` in this process, wherever it stands, be that of `import_torchvision`."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds only torchvision, once; its loader returns the module that `import_torchvision` has imported."""

    @override
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        try:
            self._module = import_torchvision()
        except PeerError:  # not installed, or another fault: Python's own import says which
            return None
        self._spec = self._module.__spec__
        found = copy.copy(self._spec)
        if found is not None:
            found.loader = self
        return found

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    @override
    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
