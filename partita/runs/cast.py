"""Who plays which part of a run with replicated servers.

part                  0 1 2 3 4
played by process     0 1 2 3 4     each its own, at first
                      0 1 2 4 4     process 3 is dead, and process 4 is next in its chain
                      0 1 2 - -     process 4 is dead too: nobody is left who has what it had
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from partita.program.absence import met_by, successor_of
from partita.program.program import Program
from partita.transport.channel import Route

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Cast:
    """Of a Program whose `kept` ranks are servers of which others have copies, while processes in `dead` are gone."""

    program: Program
    kept: frozenset[int]
    dead: frozenset[int] = field(default=frozenset())

    def without(self, gone: Collection[int]) -> Cast:
        """The cast when these processes are dead, too."""
        return replace(self, dead=self.dead | frozenset(gone))

    @property
    def there(self) -> frozenset[int]:
        """The kept ones that are not dead."""
        return self.kept - self.dead

    def player(self, part: int) -> int:
        """The process that plays a part; NOBODY if none can."""
        return successor_of(self.program, self.there, part) if part in self.dead else part

    def route(self, mine: int, other: int) -> Route:
        """Who plays two parts, between which there is a channel."""
        return self.player(mine), self.player(other)

    def partners(self, part: int) -> list[int]:
        """The parts with which a part has messages that must survive a process."""
        return sorted(other for other in met_by(self.program, part) if part in self.kept or other in self.kept)
