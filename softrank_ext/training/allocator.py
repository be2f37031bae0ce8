"""The C library's memory allocator, told to keep what training frees."""

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_PAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next allocations instead of returning it to the system.

    By default, glibc returns large tensors to the system as soon as they are freed, and the next update has to wait
    for fresh pages of zeros: on CPUs that can cost a large share of training. This changes the whole process, for as
    long as it lives: its memory stays at its peak. Numbers do not change. Returns whether it could be done: with
    glibc (most Linux systems) it can, elsewhere nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # Not M_MMAP_THRESHOLD: glibc takes at most 32 MiB for it, and activations are larger.
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _PAD))
    taken = [mallopt(option, value) == 1 for option, value in settings]
    return all(taken)
