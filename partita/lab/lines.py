"""Whole lines from pipes that must not block."""

from __future__ import annotations

import os


class Lines:
    """The lines that arrive at a file descriptor; `ended` once its writers are gone."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def take(self) -> list[bytes]:
        """The lines that are complete by now, without their ends; at the end also a last, unfinished one."""
        parts = [self._rest]
        while not self.ended:
            try:
                part = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not part
            parts.append(part)
        *whole, self._rest = b"".join(parts).split(b"\n")
        if self.ended and self._rest:
            whole.append(self._rest)
            self._rest = b""
        return whole
