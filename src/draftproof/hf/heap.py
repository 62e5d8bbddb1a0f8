"""The C library's own store of freed memory."""

from __future__ import annotations

import contextlib
import ctypes


def give_back_freed_memory() -> None:
    """Have the C library return what was freed: glibc keeps blocks of up to 32 MiB for itself.

    Worth calling where much was freed for good: weights that were packed, inputs of probes.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
