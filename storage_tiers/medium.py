"""What an error of the operating system means for a tier: one table from errno to the tier's own errors."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Mapping

from storage_tiers.tier import TierError, TierFull, TierReadOnly, TierUnavailable

# Full: nothing more can be written until somebody makes room. Unavailable: a mount is away or read-only, or this
# process has run out of descriptors; the same call may succeed later. Everything else (EIO first) is the medium's.
ERRNO: Mapping[int, type[TierError]] = {
    errno.ENOSPC: TierFull,  # bytes or inodes
    errno.EDQUOT: TierFull,
    errno.EROFS: TierReadOnly,
    errno.EACCES: TierUnavailable,
    errno.EPERM: TierUnavailable,
    errno.ENOENT: TierUnavailable,  # the folder, not the blob: see FileTier
    errno.ENOTDIR: TierUnavailable,
    errno.ENODEV: TierUnavailable,
    errno.ENXIO: TierUnavailable,
    errno.ESTALE: TierUnavailable,
    errno.ENOTCONN: TierUnavailable,
    errno.EHOSTDOWN: TierUnavailable,
    errno.EHOSTUNREACH: TierUnavailable,
    errno.ENETUNREACH: TierUnavailable,
    errno.ETIMEDOUT: TierUnavailable,
    errno.EAGAIN: TierUnavailable,
    errno.EMFILE: TierUnavailable,
    errno.ENFILE: TierUnavailable,
    errno.ENOMEM: TierUnavailable,
}

SYNC_FILE_RANGE_WRITE = 2  # <fcntl.h>: start writing dirty pages, wait for none


def translate(error: OSError, tier: str, doing: str) -> TierError:
    """The tier's error for an OSError, naming the tier and the errno, never a path."""
    kind = ERRNO.get(error.errno or 0, TierError)
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    return kind(f"tier {tier}: {doing}: {name}")


def _find_sync_file_range() -> ctypes._NamedFuncPointer | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int
    return call


_sync_file_range = _find_sync_file_range()


def start_writeback(fd: int, offset: int, length: int) -> None:
    """Ask the kernel to begin writing these bytes of a file, so that the fsync at its end finds little to do.

    A hint: errors are ignored, for it is fsync that reports them. Does nothing where the call does not exist.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, offset, length, SYNC_FILE_RANGE_WRITE)
