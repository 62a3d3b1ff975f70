"""The idx format of MNIST's files: four bytes that name the type and the number of dimensions, the sizes, the values.

Read here because importing torchvision costs a process 2 to 3 s and 84 MB. Source: http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTE = 8  # the third byte of a file of bytes; the first two are zero, the fourth is the number of dimensions


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the bytes of a file as an array of that many dimensions, uint8.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not of this format, or cut.
    """
    data = path.read_bytes()
    head = 4 + 4 * dimensions
    expected = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if data[:4] != expected:
        raise ValueError(f"{path}: expected the first bytes {expected.hex(' ')}, got {data[:4].hex(' ') or 'nothing'}")
    if len(data) < head:
        raise ValueError(f"{path}: expected {head} bytes before the values, got {len(data)}")
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    if len(data) - head != math.prod(shape):
        raise ValueError(f"{path}: expected {math.prod(shape)} values, got {len(data) - head}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
