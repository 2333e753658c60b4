"""One rank of a running Program: its state and its progress. Mutable, private to one run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.program.instruction import After
from partita.program.program import Program, Role
from partita.program.timeline import Span
from partita.runtime.brake import Brake
from partita.runtime.device import CPU, Clock
from partita.runtime.feed import Feed
from partita.runtime.forms import Form
from partita.runtime.pace import Pace
from partita.runtime.segment import Environment, Leaves
from partita.runtime.state import State
from partita.runtime.whole import Whole
from partita.transport.notifier import Notifier
from partita.transport.streams import KeptMaps
from partita.transport.transport import Transport
from partita.units import Seconds

Code = Callable[[Environment, Leaves], None]
REMEMBERED: Final = 64


@dataclass
class Board:
    """Which instances of a rank's instructions are done: name -> rounds finished. Lanes wait on it.

    `moment` numbers events; `when` has the moments of each instruction's last REMEMBERED instances, so that lanes that
    choose can take the oldest. `void`: instructions that are left out while some peers are away; `missing`: the rounds
    that instructions missed which are back by now (runtime/membership.py). `passed`: instances let through a gate;
    `ages`: how often in a row each member of a gate was left out. `stop`: all rounds before this one are run.
    `watchers`: for each name, the instructions that may be able to start when it changes, as (a lane's notes,
    instruction); under "" those that any change may concern.
    """

    done: dict[str, int] = field(default_factory=dict)
    changed: Notifier = field(default_factory=Notifier)
    failure: BaseException | None = None
    moment: int = 0
    void: frozenset[str] = frozenset()
    missing: dict[str, tuple[int, int]] = field(default_factory=dict)
    when: dict[str, deque[int]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    stop: int = 2**62
    watchers: dict[str, list[tuple[dict[str, None], str]]] = field(default_factory=dict)

    def finish(self, name: str, round: int) -> None:
        """The instance of an instruction in a round is done; lanes are told. Not where a peer that is back has moved
        the instruction on meanwhile: it would be a later instance that counts as done."""
        with self.changed.lock:
            if self.done.get(name, 0) > round:
                return
            self.done[name] = self.done.get(name, 0) + 1
            if name not in self.when:
                self.when[name] = deque(maxlen=REMEMBERED)
            self.moment += 1
            self.when[name].append(self.moment)
            self.tell(name)

    def happens(self, name: str = "") -> int:
        """Number the event that happens now to `name`, and tell the lanes."""
        with self.changed:
            self.moment += 1
            self.tell(name)
            return self.moment

    def tell(self, name: str = "") -> None:
        """Lanes that wait for `name` test their condition again ("": all lanes)."""
        with self.changed.lock:
            for notes, waits in self.watchers.get(name, ()):
                notes[waits] = None
            self.changed.notify_all(name)

    def since(self, after: After, round: int) -> int:
        """The moment at which the instance that `after` means for `round` was done; 0 if long ago."""
        back, moments = self.done.get(after.name, 0) - (round - after.rounds), self.when.get(after.name, ())
        return moments[-back] if round >= after.rounds and 0 < back <= len(moments) else 0

    def fail(self, error: BaseException) -> None:
        """The rank has failed; all lanes stop."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def has(self, after: After, round: int) -> bool:
        """Whether the instance that `after` means for `round` is done (those before the first round are)."""
        return round < after.rounds or self.done.get(after.name, 0) > round - after.rounds

    def lacks(self, after: After, round: int) -> bool:
        """Whether that instance is left out, since it involves a rank that is, or was, away."""
        first, stop = self.missing.get(after.name, (0, 0))
        return first <= round - after.rounds < stop or (after.name in self.void and not self.has(after, round))


@dataclass
class Rank:
    """What one rank needs to carry out its role.

    What it computes: `code` holds the compiled segments, `reads` the values that any of them takes, `environments` the
    values of each minibatch and microbatch in flight; an environment is dropped after as many instructions as `uses`
    says. `first_step` is the step of round 0. `draws` is the seed of keyed random numbers (None: torch's own). `whole`
    is the module of a model that is one operator. `gathered`: batch statistics that wait for the rest of their
    minibatch, each (samples, new value of the buffer).

    What it has done: `ends` has wall clock and core-seconds of the process at each round's end; `at` the instructions
    that lanes are in, each with its lane, round, since when, and whether it waits for other ranks; `then` what the
    thread that has carried out an instruction starts at once for another lane, and `early` when (runtime/ahead.py);
    `collectives_begun` how many rounds of each collective were begun; `pace` what computing and loading have taken
    lately; `maps` the positions that both ends of a sparse hop know; `forms` how the values of
    each parcel lie in memory. `round_ends` is called when the leading lane has ended a round.

    Who is away: the run can go on without the ranks in `spare`. Those in `away` are not there now; each has left `gone`
    times, and takes part again `since` a round. `going`: lanes that have not ended; `parked`: those of them that wait
    for a rank that is away; `parted`: groups that have lost a member.
    """

    graph: Graph
    program: Program
    role: Role
    rank: int
    state: State
    transport: Transport
    feed: Feed
    code: dict[str, Code]
    reads: set[Ref]
    uses: dict[str, int]
    device: str = CPU
    floating: torch.dtype | None = None
    first_step: int = 0
    draws: int | None = None
    whole: Whole | None = None
    clock: Clock = field(default_factory=Clock)
    board: Board = field(default_factory=Board)
    brake: Brake = field(default_factory=Brake)
    environments: dict[tuple[int, str], Environment] = field(default_factory=dict)
    used: dict[tuple[int, str], int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    ends: list[tuple[Seconds, Seconds]] = field(default_factory=list)
    at: dict[str, tuple[str, int, Seconds, bool]] = field(default_factory=dict)
    then: dict[str, list[Callable[[Rank, int], None]]] = field(default_factory=dict)
    early: dict[tuple[str, int], Seconds] = field(default_factory=dict)
    gathered: dict[str, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)
    losses: dict[int, torch.Tensor | float] = field(default_factory=dict)
    spare: frozenset[int] = frozenset()
    away: set[int] = field(default_factory=set)
    gone: dict[int, int] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    parked: set[str] = field(default_factory=set)
    since: dict[int, int] = field(default_factory=dict)
    parted: set[tuple[int, ...]] = field(default_factory=set)
    weights: dict[int, torch.Tensor | float] = field(default_factory=dict)
    collectives_begun: dict[str, int] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    maps: KeptMaps = field(default_factory=dict)
    forms: dict[str, tuple[tuple[str, Form], ...]] = field(default_factory=dict)
    round_ends: Callable[[int], None] = lambda round: None

    def there(self, peer: int, round: int) -> bool:
        """Whether a rank takes part in a round: it is not away, nor came back after it."""
        return peer not in self.away and round >= self.since.get(peer, 0)

    def graph_of(self, stage: int) -> Graph:
        """The graph of a stage, or the captured one."""
        return self.program.graph_of(stage, self.graph)

    def environment(self, round: int, part: str) -> Environment:
        """The values of a minibatch or microbatch of a round; made when it is first asked for."""
        with self.board.changed.lock:
            return self.environments.setdefault((round, part), {})

    def leave(self, round: int, part: str) -> None:
        """An instruction has finished with an environment; after the last one it is dropped."""
        with self.board.changed.lock:
            used = self.used.get((round, part), 0) + 1
            if used < self.uses[part]:
                self.used[round, part] = used
            else:
                self.used.pop((round, part), None)
                self.environments.pop((round, part), None)

    def slot(self, round: int) -> int:
        """The slot of gradients that a round writes."""
        return round % self.program.slots

    def step(self, round: int, step: int) -> int:
        """The global step, from 0, of minibatch `step` of round `round`."""
        return self.first_step + round * self.program.steps + step
