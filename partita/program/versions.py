"""The versions of a server's buckets while it runs or is simulated, and the merges that make them.

contribution        drop         a sum of `need`         delta
makes a version     never        the last of the sum     always
"""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.program.instruction import Apply
from partita.program.ledger import LOST, Merge
from partita.program.program import Program, Role


def makes_version(program: Program, role: Role, bucket: str) -> bool:
    """Whether an Update of a bucket makes a version of it for others to read."""
    return role.keeps == "server" or (program.drops and bucket in role.serves)


@dataclass
class Ledger:
    """Mutable, private to one rank of one run or to one simulation: the `version` of each bucket, the version that
    each peer has `read`, the `turns` of each peer, how many contributions have `merged` into each bucket, how many
    `minibatches` they are parts of and how many of these were when its optimizer last `stepped`, and all `merges`, on
    rank `at`. Versions and turns are counted from the beginning of the run, also by a run that goes on from a
    checkpoint; `begun` has the turns of a bucket before round 0 of the Program. It records no merges if it is
    `blind`: other processes then change the same weights without telling."""

    at: int = -1
    version: dict[str, int] = field(default_factory=dict)
    read: dict[tuple[str, int], int] = field(default_factory=dict)
    turns: dict[tuple[str, int], int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)
    minibatches: dict[str, int] = field(default_factory=dict)
    stepped: dict[str, int] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    blind: bool = False

    def begin(self) -> None:
        """A Program begins: its rounds follow the turns of whoever has had most of them."""
        for (bucket, _), turn in self.turns.items():
            self.begun[bucket] = max(self.begun.get(bucket, 0), turn)

    def merge(self, act: Apply, round: int) -> bool:
        """Record a contribution; whether it completes a version. If late ones are dropped, its turn is the round."""
        bucket, worker = act.bucket, act.source
        turn = self.begun.get(bucket, 0) + round if act.drop else self.turns.get((bucket, worker), 0)
        self.turns[bucket, worker] = turn + 1
        read = self.read.get((bucket, worker), 0)
        if not self.blind:
            self.merges.append(Merge(bucket, worker, turn, read, self.version.get(bucket, 0), self.at))
        self.merged[bucket] = self.merged.get(bucket, 0) + 1
        self.minibatches[bucket] = self.minibatches.get(bucket, 0) + act.steps
        if act.drop or (not act.delta and self.merged[bucket] % act.need):
            return False
        self.step(bucket)
        return True

    def lose(self, bucket: str, worker: int) -> None:
        """Record the next contribution of a worker that died, as lost."""
        turn, read = self.turns.get((bucket, worker), 0), self.read.get((bucket, worker), 0)
        self.merges.append(Merge(bucket, worker, turn, read, LOST, self.at))

    def step(self, bucket: str) -> None:
        """Count a new version of a bucket."""
        self.version[bucket] = self.version.get(bucket, 0) + 1

    def give(self, bucket: str, worker: int) -> None:
        """Note that a worker has read the current version."""
        self.read[bucket, worker] = self.version.get(bucket, 0)
