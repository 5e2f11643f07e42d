"""Root without the capabilities by which it reads and writes every file."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522


@contextmanager
def unprivileged() -> Iterator[None]:
    """In this block files have the permissions that an owner who is not root meets: see capset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, before)
    _, permitted, inheritable, _, more_permitted, more_inheritable = before
    without = (ctypes.c_uint32 * 6)(0, permitted, inheritable, 0, more_permitted, more_inheritable)
    if libc.capset(header, without):
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")
    try:
        yield
    finally:
        libc.capset(header, before)
