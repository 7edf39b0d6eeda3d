"""Memory that PyTorch frees and takes again a thousand times a second stays with the process."""

from __future__ import annotations

import ctypes
import os
import sys

# mallopt's names in malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
HEAP = 64 << 20  # bytes of what a thread's arena is made of


def keep_freed_memory() -> None:
    """Asks the C library to keep what is freed. By default it hands every large array back to the system, which clears it page by
    page when the next one is asked for: a third of the time in which a trunk reads an image (docs/performance.md).

    Only GNU's C library is asked, and not where the user has said something about it.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if not sys.platform.startswith("linux") or said:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    # older versions take no more than 32 MB; were it refused, the next line alone would make things worse
    if not mallopt(M_MMAP_THRESHOLD, 1 << 30) and not mallopt(M_MMAP_THRESHOLD, 32 << 20):
        return
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    # Threads with an arena each do not wait for one another (`benchmarks/bench_memory.py`).
    # An arena gives whole heaps back unless it wants as much to spare.
    mallopt(M_TOP_PAD, HEAP)
    mallopt(M_ARENA_MAX, (os.cpu_count() or 1) + 2)
