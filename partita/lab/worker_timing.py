"""What the worker itself takes of a core: a tiny Program, whose computing is known, is driven as any other.

Around an act the worker asks the board, looks what its other lanes wait for, notes the span and tells those that wait;
how long that takes depends on the lanes that there are, and on what the caches still have of it. So it is not timed in
a loop, but in the rounds of a little pipeline in which each rank is a stage, and of one that has a single stage.

rank 0   F F F F . . . . . . . . B B B B      F, B: the same piece of computing
rank 1   . F F F F . . . . . . B B B B .      a message each way for each microbatch between neighbours
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.tensor import Tensor
from partita.lab.extra_lane import PATIENCE
from partita.lab.timing import computed
from partita.program.instruction import After, Compute, Instruction, Load, Receive, Send, Space
from partita.program.program import Lane, Parcel, Program, Role, Segment
from partita.runtime.assembly import make_rank
from partita.runtime.ledger import Ledger
from partita.runtime.leg import Interval
from partita.runtime.processes import Processes
from partita.runtime.rank import Rank
from partita.runtime.segment import Environment, Leaves
from partita.runtime.state import State
from partita.runtime.worker import drive
from partita.task import Task
from partita.units import Seconds

MICROBATCHES: Final = 4
PIECE: Final[Seconds] = 4e-4  # of computing
ROUNDS: Final = 8
TURNS: Final = 5
NUMBER: Final = "number"


def instruction_seconds() -> Seconds:
    """Core-seconds of the worker around an act that moves nothing, a median; a rank needs no other."""
    alone = pipeline(1)
    return max(_overhead(alone, 0) / len(alone.roles[0].instructions), 1e-6)


def value_seconds(rank: int, world: int) -> Seconds:
    """Core-seconds of a message of one number from stage to stage, and of the worker around it, at either end: a
    median. Each rank of the world is a stage."""
    own, whole = instruction_seconds(), pipeline(world)
    computing = whole.role_of[rank].computing
    messages = len(computing) - sum(computing)
    return max((_overhead(whole, rank) - sum(computing) * own) / messages, 1e-6)


def pipeline(world: int) -> Program:
    """A Program of so many stages, one on each rank, whose only segment is a piece of computing."""
    roles = [_stage(place, world) for place in range(world)]
    parcel = Parcel(NUMBER, ((NUMBER, Tensor((1,), "float32")),), 1)
    return Program("worker", tuple(roles), (Segment("piece", 0, 0, 1, 1.0),), (), 1, parcels=(parcel,))


def _stage(place: int, world: int) -> Role:
    """Forward waits for the stage before it, backward for the one behind it."""
    found = list[Instruction]()
    for step, source, target in (("F", place - 1, place + 1), ("B", place + 1, place - 1)):
        for k in map(str, range(MICROBATCHES)):
            before = list[After]()
            if step == "F":
                found.append(Instruction(f"L{k}", Load((0,), 0, k, 1.0, fetch=False), "data"))
                before.append(After(f"L{k}"))
            if 0 <= source < world:
                taken = Receive(NUMBER, (source,), f"{step}{k}>{place}", Space.VALUE, k)
                found.append(Instruction(f"R{step}{k}", taken, f"from {source}"))
                before.append(After(f"R{step}{k}"))
            found.append(Instruction(f"{step}{k}", Compute("piece", k), "compute", tuple(before)))
            if 0 <= target < world:
                given = Send(NUMBER, (target,), f"{step}{k}>{target}", Space.VALUE, k)
                found.append(Instruction(f"S{step}{k}", given, f"to {target}", (After(f"{step}{k}"),)))
    lanes = map(Lane, dict.fromkeys(i.lane for i in found))
    return Role(f"stage {place}", (place,), tuple(found), tuple(lanes))


def _overhead(program: Program, rank: int) -> Seconds:
    """Core-seconds of this process in a round, beyond those of computing: a median. The ranks of the program begin each
    turn together."""
    pieces, found = list[Seconds](), list[Seconds]()
    driven = _rank(program, rank, pieces)
    for turn in range(TURNS + 1):
        if program.size > 1:
            dist.barrier()
        pieces.clear()
        begun = time.process_time()
        drive(driven, Interval((turn + 1) * ROUNDS, turn * ROUNDS, drain=False), lambda round: False, PATIENCE)
        found.append((time.process_time() - begun - sum(pieces)) / ROUNDS)
    return median(found[1:])


def _rank(program: Program, rank: int, pieces: list[Seconds]) -> Rank:
    """A rank that has one number and no graph; its segment notes how long it has computed."""
    number = torch.zeros(1)

    def piece(environment: Environment, leaves: Leaves) -> None:
        environment[NUMBER] = number
        pieces.append(computed(PIECE))

    graph = Graph("worker", 1, (), (), (), (), (), Ref("none"), None, ())
    state = State({}, {}, {}, {}, {}, {}, {}, Ledger(), {}, {}, {})
    task = Task("worker", torch.nn.Identity, lambda model, batch: batch, Nothing(), torch.optim.SGD, 1)
    return make_rank(task, graph, program, rank, state, Processes(rank), seed=0, code=({"piece": piece}, set()))


class Nothing:
    """A data set whose samples are in memory, as nobody asks for them."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        return torch.zeros(1)

    def collated(self, positions: Sequence[int]) -> torch.Tensor:
        """A batch of so many samples."""
        return torch.zeros(len(positions))
