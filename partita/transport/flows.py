"""The kernel's view of this process's connections: whether bytes still move on them, and how many are unconfirmed.

A link that is slow, cut for a while or gone for good looks the same from a collective, which waits. TCP can tell them
apart.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

ESTABLISHED: Final = 1
# Of struct tcp_info (linux/tcp.h): segments sent and not confirmed; bytes confirmed and received; bytes not sent yet.
UNACKED, ACKED, UNSENT = 24, 120, 144


class Flow(NamedTuple):
    """All connections with one peer: bytes that it confirmed or sent (`moved`), segments that it has not confirmed,
    and bytes that are not sent yet."""

    moved: int = 0
    unconfirmed: int = 0
    unsent: int = 0


Flows = dict[str, Flow]  # by the address of a peer


def flows_of(ignored_port: int) -> Flows:
    """Of each peer its Flow, but for connections that end at `ignored_port`, such as those with the store; empty where
    this is not Linux."""
    found: Flows = {}
    if sys.platform != "linux":
        return found
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    _add(found, one, ignored_port)
    return found


def _add(found: Flows, one: socket.socket, ignored_port: int) -> None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return
    info: bytes = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    here: Any = one.getsockname()
    there: Any = one.getpeername()
    if info[0] != ESTABLISHED or len(info) < UNSENT + 4 or ignored_port in (here[1], there[1]):
        return
    (unacked,), (unsent,) = struct.unpack_from("I", info, UNACKED), struct.unpack_from("I", info, UNSENT)
    acked, received = struct.unpack_from("QQ", info, ACKED)
    before = found.get(there[0], Flow())
    moved = before.moved + acked + received
    found[there[0]] = Flow(moved, before.unconfirmed + unacked, before.unsent + unsent)
