"""A network of this process's own, in which TFF's worker can listen without being reached from anywhere else.

TFF's worker binds `[::]:PORT`, on all interfaces; it has no flag for anything narrower. In a network name space of its
own "all interfaces" is one loopback. A socket stays in the name space in which it was made: what this process has
bound before goes on listening outside.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pathlib
import socket
import struct
import sys

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def enter_private_network() -> None:
    """Takes the calling thread, and all that it starts from now on, into a new network with nothing but a loopback.

    Call it before any other thread exists. Root may do it; others where the kernel gives users name spaces.

    Raises:
      OSError: It is not allowed here, or this is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux has network name spaces")
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _enter_user_name_space()
    _raise_loopback()


def _enter_user_name_space() -> None:
    """As the same user, who may make a network there."""
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    own = pathlib.Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{user} {user} 1")
    (own / "gid_map").write_text(f"{group} {group} 1")


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", answer, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
