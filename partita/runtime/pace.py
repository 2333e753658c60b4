"""How fast a rank does its own work: of each kind, what its instructions took in the round in which they took least.

seconds of F, B1, B0     round 7   2  1  1     round 8   1  1  4     round 9   1  9  1     7: four seconds in all,
                                                                                           and not 1, 1, 1

The least, so that noise does not count; of whole rounds, since under a quota of its processor some instances of a short
instruction are over before the quota is used up, where all of a round's are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.units import Seconds


@dataclass
class Pace:
    """Of one rank; mutable. By kind of work: the round that goes on, the `best` one since somebody asked last, and of
    how many instructions a round has had the `most`; one with fewer does not count."""

    current: dict[str, tuple[int, dict[str, Seconds]]] = field(default_factory=dict)
    best: dict[str, dict[str, Seconds]] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, round: int, name: str, seconds: Seconds) -> None:
        """An instruction of this kind has taken so long. Rounds of a kind come one after the other."""
        if kind not in self.current or self.current[kind][0] != round:
            self._close(kind)
            self.current[kind] = round, {}
        self.current[kind][1][name] = seconds

    def taken(self) -> dict[str, Seconds]:
        """Seconds of each instruction in the best round of its kind that is over; what follows is looked at anew."""
        best, self.best = self.best, {}
        return {name: seconds for took in best.values() for name, seconds in took.items()}

    def last_taken(self) -> dict[str, Seconds]:
        """The same, once no more rounds come."""
        for kind in self.current:
            self._close(kind)
        self.current = {}
        return self.taken()

    def _close(self, kind: str) -> None:
        _, took = self.current.get(kind, (0, {}))
        if not took or len(took) < self.most.get(kind, 0):
            return
        best = self.best.get(kind) if len(took) == self.most.get(kind) else None
        self.most[kind] = len(took)
        self.best[kind] = took if best is None or sum(took.values()) < sum(best.values()) else best
