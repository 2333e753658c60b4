"""The network interfaces of this machine."""

from __future__ import annotations

import socket

from partita.errors import InputError


def check_interface(name: str, who: str, kind: type[InputError]) -> None:
    """Raises `kind` where `who` names an interface that this machine lacks."""
    known = [each for _, each in socket.if_nameindex()]
    if name not in known:
        raise kind(f"{who} names interface {name!r}; this machine has {', '.join(known)}")
