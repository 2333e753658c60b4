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
from typing import Any, Final

ESTABLISHED: Final = 1
# Of struct tcp_info (linux/tcp.h): segments sent and not confirmed; bytes confirmed and received; bytes not sent yet.
UNACKED, ACKED, UNSENT = 24, 120, 144

Flows = dict[str, tuple[int, int, int]]


def flows_of(others: int) -> Flows:
    """Address of a peer -> (bytes that it confirmed or sent, segments that it has not confirmed, bytes not sent yet),
    over all connections with it but those that end at port `others`."""
    found: Flows = {}
    if sys.platform != "linux":
        return found
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    _add(found, one, others)
    return found


def _add(found: Flows, one: socket.socket, others: int) -> None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return
    info: bytes = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    here: Any = one.getsockname()
    there: Any = one.getpeername()
    if info[0] != ESTABLISHED or len(info) < UNSENT + 4 or others in (here[1], there[1]):
        return
    (unacked,), (unsent,) = struct.unpack_from("I", info, UNACKED), struct.unpack_from("I", info, UNSENT)
    acked, received = struct.unpack_from("QQ", info, ACKED)
    before = found.get(there[0], (0, 0, 0))
    found[there[0]] = before[0] + acked + received, before[1] + unacked, before[2] + unsent
