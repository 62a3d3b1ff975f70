"""Settings of malloc: the memory of freed frames stays in the process, and all threads allocate in one place.

gRPC allocates and frees a few buffers of a frame's size for every frame. By default glibc returns such memory to the kernel
at once and faults it in again, zeroed, for the next frame. Measured on loopback, this costs 130 to 180 page faults per MB
received and about 40 % of the receiver's processor time; a sender builds its frames at a fifth of the speed. Models are
larger than the threshold and are still returned.

An arena for each thread, as by default, holds free memory that only this thread takes: 2 of the 24 MB of a peer in a testbed.
With one arena the transport is as fast.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
MMAP_BYTES = 4 << 20  # gRPC's largest message: allocations below it come from the heap
TRIM_BYTES = 16 << 20  # freed memory kept at the heap's end; a few frames in each of gRPC's allocations


@cache
def keep_frame_memory() -> bool:
    """Raise malloc's thresholds above a frame's size, and use one arena; return False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_M_MMAP_THRESHOLD, MMAP_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES), (_M_ARENA_MAX, 1))
    return all([bool(mallopt(name, value)) for name, value in settings])
