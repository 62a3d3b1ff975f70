"""Settings of malloc: freed memory of the size of a frame or a layer stays in the process, and all threads allocate in one place.

gRPC allocates and frees a few buffers of a frame's size for every frame, and a training step one gradient for every layer. By
default glibc returns such memory to the kernel at once and faults it in again, zeroed, for the next one, until it has learned
the sizes; it learns no more once a threshold is set. Measured on loopback, frames that are returned cost 130 to 180 page faults
per MB received and about 40 % of the receiver's processor time. Gradients of 6.4 MB that are returned cost 30 % of a training
step. Models above the threshold are still returned.

An arena for each thread, as by default, holds free memory that only this thread takes: 2 of the 24 MB of a peer in a testbed.
With one arena the transport is as fast.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
MMAP_BYTES = 32 << 20  # the most that glibc takes: allocations below it come from the heap
TRIM_BYTES = 2 * MMAP_BYTES  # freed memory kept at the heap's end, the ratio that glibc itself uses


@cache
def keep_frame_memory() -> bool:
    """Raise malloc's thresholds above a frame's size, and use one arena; return False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_M_MMAP_THRESHOLD, MMAP_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES), (_M_ARENA_MAX, 1))
    return all([bool(mallopt(name, value)) for name, value in settings])
