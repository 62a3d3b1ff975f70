"""What ``--device`` and ``--amp`` mean on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from coordinator_free_bootstrap.errors import ConfigError, ConfigProblem, Option


def device_form(text: str) -> str:
    """Return the name of a device.

    Raises:
        ValueError: another form; the text says what is allowed.
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", text):
        raise ValueError("auto, cpu, cuda, cuda:N or mps")
    return text


def device_named(name: str) -> str:
    """Return the device that ``--device`` means on this machine: cpu, cuda, cuda:N or mps.

    "auto" is the first CUDA device, else the CPU; "mps", the GPU of an Apple machine, is used only where it is named.

    Raises:
        ConfigError: there is no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device_form(name)
    except ValueError as error:
        raise ConfigError(ConfigProblem(Option("device"), str(error), repr(name))) from None
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            ConfigProblem(Option("device"), "cpu or auto, as this machine's torch sees no Apple GPU", repr(name))
        )
    if name in {"cpu", "mps"}:
        return name
    if not torch.cuda.is_available():
        raise ConfigError(
            ConfigProblem(Option("device"), "cpu or auto, as this machine's torch sees no CUDA device", repr(name))
        )
    if (count := torch.cuda.device_count()) <= int(name.partition(":")[2] or 0):
        raise ConfigError(
            ConfigProblem(
                Option("device"), f"one of the {count} CUDA devices that torch sees, counted from 0", repr(name)
            )
        )
    return name


def check_amp(amp: Literal["bf16"] | None, device: str) -> None:
    """Check that a device can compute in the mixed precision of ``--amp``; None: it computes in float32 only.

    Raises:
        ConfigError: the device lacks it.
    """
    import torch

    if amp is None:
        return
    kind = device.partition(":")[0]
    has: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": lambda: torch.cuda.is_bf16_supported(including_emulation=False),
        "mps": lambda: torch.backends.mps.is_macos_or_newer(14, 0),
    }
    if not has[kind]():
        raise ConfigError(
            ConfigProblem(
                Option("amp"), f"nothing, as the device {device} has no bfloat16 arithmetic", repr(amp), "Leave it out."
            )
        )
