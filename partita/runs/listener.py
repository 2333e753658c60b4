"""The socket at which rank 0 listens for the others: handed down by who launched it, or its own."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Final

from partita.errors import OptionError
from partita.telling import Tell

LISTENER: Final = "PARTITA_LISTEN_FD"  # the environment variable that has the number of a socket handed down


def listening(place: tuple[str, int], note: Tell) -> dict[str, Any]:
    """A socket that listens at that address only, as an argument of TCPStore; empty if it is no address of this
    machine (behind a NAT gateway)."""
    if given := os.environ.get(LISTENER, ""):
        return {"master_listen_fd": int(given)}
    try:
        kind, _, _, _, address = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=kind, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"port {place[1]} of {place[0]} is taken, perhaps by another run; give another MASTER_PORT"
            ) from None
        if error.errno != errno.EADDRNOTAVAIL:
            raise OptionError(
                f"rank 0 cannot listen at port {place[1]} of {place[0]} ({error.strerror}); give a MASTER_ADDR and "
                "MASTER_PORT at which it may"
            ) from None
        note(f"MASTER_ADDR {place[0]} is no address of this machine; rank 0 listens at port {place[1]} of all that are")
        return {}
    return {"master_listen_fd": listener.detach()}
