"""Malloc thresholds that keep the memory of freed frames in the process.

gRPC allocates and frees a few buffers of a frame's size for every frame. By default glibc returns such memory to the kernel
at once and faults it in again, zeroed, for the next frame. Measured on loopback, this costs 130 to 180 page faults per MB
received and about 40 % of the receiver's processor time; a sender builds its frames at a fifth of the speed. Models are
larger than the threshold and are still returned.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
MMAP_BYTES = 4 << 20  # gRPC's largest message: allocations below it come from the heap
TRIM_BYTES = 16 << 20  # freed memory kept at the heap's end; a few frames in each of gRPC's allocations


@cache
def keep_frame_memory() -> bool:
    """Raise malloc's thresholds above a frame's size for this process; return False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))
