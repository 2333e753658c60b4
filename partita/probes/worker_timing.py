"""What the worker itself takes of a core: a tiny Program, whose computing is known, is driven as any other.

Around an act the worker asks the board, looks what its other lanes wait for, notes the span and tells those that wait;
how long that takes depends on the lanes that there are, and on what the caches still have of it: one instance of a lone
lane took 0.08 ms of a core, and 0.17 in a step. So it is not timed in a loop, but in the rounds of a little pipeline in
which each rank is a stage, and of one that has a single stage.

rank 0   F F F F . . . . . . . . B B B B      F, B: the same piece of computing
rank 1   . F F F F . . . . . . B B B B .      a message each way for each microbatch between neighbours

The same pieces with an act behind each in a lane of its own, whose thread wakes up for it, say what that takes more.

compute  F F F F F F F F                      another thread wakes up for each N, which does nothing
serve     N N N N N N N N                     as the text has it, or the lane chooses

And messages to a rank that waits for none of them before a round's end, one behind each piece, or several at once.

rank 0   F F F F F F F F                      a message of each piece, or several
rank 1   F F F F F F F F F                    the last one behind all messages
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.tensor import Tensor
from partita.probes.extra_lane import MESSAGE_TIMEOUT
from partita.probes.timing import computed
from partita.program.instruction import After, Compute, Instruction, Load, Receive, Send
from partita.program.layout import Parcel
from partita.program.program import Lane, Policy, Program, Role, Segment
from partita.program.space import Space
from partita.program.versions import Ledger
from partita.runs.assembly import make_rank
from partita.runtime.leg import Interval
from partita.runtime.rank import Code, Rank
from partita.runtime.segment import Environment, Leaves
from partita.runtime.state import State
from partita.runtime.worker import drive
from partita.runtime.workload import Workload
from partita.task import Task
from partita.transport.processes import Processes
from partita.units import Bytes, Seconds

MICROBATCHES: Final = 4
PIECE: Final[Seconds] = 4e-4  # of computing
ROUNDS: Final = 8
FEW: Final = 3  # rounds of many pieces, and turns
ROW: Final = 8
PIECES: Final = 8  # of a round with many messages
TOGETHER: Final = 3  # messages that are posted at once, in a lane each
LONG: Final[Bytes] = 2**18  # of a message that wakes threads as often as longer ones do
TURNS: Final = 5
NUMBERS: Final = tuple(f"number {n}" for n in range(TOGETHER))  # that a piece leaves
NUMBER: Final = NUMBERS[0]


def instruction_seconds() -> Seconds:
    """Core-seconds of the worker around an act that moves nothing, a median; a rank needs no other."""
    alone = pipeline(1)
    return max(_overhead(alone, 0) / len(alone.roles[0].instructions), 1e-6)


def following_seconds() -> Seconds:
    """Core-seconds of the worker around an act right behind one that took little, in its lane."""
    one, many = (_overhead(pipeline(1, row), 0) for row in (1, ROW))
    return max((many - one) / (2 * MICROBATCHES * (ROW - 1)), 1e-6)


def waking_seconds() -> dict[str, Seconds]:
    """Core-seconds that an act takes more for which the thread of its lane wakes up ("waking"), and in a lane that
    chooses ("choosing"), medians."""
    own, none = instruction_seconds(), _overhead(handing(Policy.ORDER, wakes=False), 0)
    woken = {"waking": handing(Policy.ORDER), "choosing": handing(Policy.PRIORITY)}
    return {name: max((_overhead(whole, 0) - none) / PIECES - own, 1e-6) for name, whole in woken.items()}


def value_seconds(rank: int, world: int) -> Seconds:
    """Core-seconds of a message of one number from stage to stage, and of the worker around it, at either end: a
    median. Each rank of the world is a stage."""
    own, whole = instruction_seconds(), pipeline(world)
    computing = whole.role_of[rank].computing
    messages = len(computing) - sum(computing)
    return max((_overhead(whole, rank) - sum(computing) * own) / messages, 1e-6)


def posted_seconds(rank: int, world: int, largest: Bytes) -> dict[str, list[tuple[float, Bytes, Seconds]]]:
    """(messages that a rank has in a round, bytes of each, core-seconds of each and of the worker around it), medians,
    of messages to or from a rank that computes meanwhile ("busy"; none on a rank without a partner); and of those to a
    server, instead of how many they are, core-seconds that others compute for each ("serving"). Where there are many,
    who is to wake up often is awake; one of many bytes wakes threads more than once."""
    found: dict[str, list[tuple[float, Bytes, Seconds]]] = {"busy": [], "serving": []}
    none = {pieces: _briefly(couples(world, pieces, 0, 4), rank, pieces) for pieces in (1, PIECES)}
    for pieces, each, size in ((1, 1, 4), (PIECES, 1, 4), (PIECES, TOGETHER, 4), (1, 1, min(LONG, largest))):
        whole = _briefly(couples(world, pieces, each, size), rank, pieces)
        if rank ^ 1 < world:
            found["busy"].append((pieces * each, size, max((whole - none[pieces]) / (pieces * each), 1e-6)))
    idle, whole = (_briefly(star(world, PIECES, each), rank, PIECES) for each in (0, TOGETHER))
    piece = median(computed(PIECE) for _ in range(PIECES))
    if rank == world - 1:
        many = PIECES * TOGETHER * (world - 1)
        found["serving"].append(((PIECES + 1) * piece / many, 4, max((whole - idle) / many, 1e-6)))
    return found


def _briefly(program: Program, rank: int, pieces: int) -> Seconds:
    """`_overhead` in a few rounds: whoever asks asks more than once."""
    return _overhead(program, rank, ROUNDS if pieces == 1 else FEW, FEW)


def couples(world: int, pieces: int, each: int, size: Bytes) -> Program:
    """A Program in which every even rank sends so many messages of `size` bytes behind `each` of the pieces of
    computing to the next rank, which computes as many."""
    talkers = [_talker(rank, (rank ^ 1,), rank % 2 == 0, pieces, each) for rank in range(world // 2 * 2)]
    return _program(talkers, size // 4)


def star(world: int, pieces: int, each: int) -> Program:
    """A Program in which all ranks send so many numbers behind `each` of the pieces of computing to the last one, which
    computes nothing else."""
    server = world - 1
    workers = [_talker(rank, (server,), True, pieces, each) for rank in range(server)]
    return _program([*workers, _talker(server, tuple(range(server)), False, pieces, each, idle=True)], 1)


def _talker(rank: int, mates: tuple[int, ...], sends: bool, pieces: int, each: int, *, idle: bool = False) -> Role:
    """All compute one piece more than has messages, a receiver behind them; an `idle` one that alone."""
    found, end = list[Instruction](), str(pieces)
    for k in map(str, range(pieces + 1)):
        found.append(Instruction(f"L{k}", Load((0,), 0, k, 1.0, fetch=False), "data"))
        taken = tuple(After(i.name) for i in found if isinstance(i.act, Receive)) if k == end else ()
        if k == end or not idle:
            found.append(Instruction(f"F{k}", Compute("piece", k), "compute", (After(f"L{k}"), *taken)))
        for mate, name in product(mates, NUMBERS[:each] if k != end else ()):
            key, way = f"{rank if sends else mate}.{k}.{name}", f"{mate} {name}"
            act = (Send if sends else Receive)(name, (mate,), key, Space.VALUE, k if sends else f"{k} {mate}")
            after = After(f"F{k}" if sends else f"L{k}")
            found.append(Instruction(f"M{k}.{way}", act, f"{'to' if sends else 'from'} {way}", (after,)))
    return Role(f"talker {rank}", (rank,), tuple(found), tuple(map(Lane, dict.fromkeys(i.lane for i in found))))


def handing(policy: Policy, *, wakes: bool = True) -> Program:
    """A Program of one rank that computes some pieces; where it `wakes` another lane, of this policy, that one has an
    act behind each, which does nothing."""
    found = list[Instruction]()
    for k in map(str, range(PIECES)):
        found.append(Instruction(f"L{k}", Load((0,), 0, k, 1.0, fetch=False), "data"))
        found.append(Instruction(f"F{k}", Compute("piece", k), "compute", (After(f"L{k}"),)))
        if wakes:
            found.append(Instruction(f"N{k}", Compute("nothing", k), "serve", (After(f"F{k}"),)))
    policies = {i.lane: policy if i.lane == "serve" else Policy.ORDER for i in found}
    role = Role("handing", (0,), tuple(found), tuple(Lane(*pair) for pair in policies.items()))
    return _program([role], 1)


def _program(roles: list[Role], numbers: int) -> Program:
    """A Program of pieces of computing, and of nothing, whose parcel has so many numbers."""
    parcels = tuple(Parcel(name, ((name, Tensor((numbers,), "float32")),), 1) for name in NUMBERS)
    segments = tuple(Segment(name, 0, 0, 1, 1.0) for name in ("piece", "nothing"))
    return Program("worker", tuple(roles), segments, (), 1, parcels=parcels)


def pipeline(world: int, row: int = 0) -> Program:
    """A Program of so many stages, one on each rank, whose only segment is a piece of computing; a `row` of acts that
    do nothing follows each."""
    return _program([_stage(place, world, row) for place in range(world)], 1)


def _stage(place: int, world: int, row: int) -> Role:
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
            for part in (f"{k}.{n}" for n in range(row)):
                found.append(Instruction(f"{step}{part}", Load((0,), 0, part, 1.0, fetch=False), "compute"))
            if 0 <= target < world:
                given = Send(NUMBER, (target,), f"{step}{k}>{target}", Space.VALUE, k)
                found.append(Instruction(f"S{step}{k}", given, f"to {target}", (After(f"{step}{k}"),)))
    lanes = map(Lane, dict.fromkeys(i.lane for i in found))
    return Role(f"stage {place}", (place,), tuple(found), tuple(lanes))


def _overhead(program: Program, rank: int, rounds: int = ROUNDS, turns: int = TURNS) -> Seconds:
    """Core-seconds of this process in a round, beyond those of computing: a median. All ranks begin each turn together;
    one that the program has no role for has none."""
    pieces, found = list[Seconds](), list[Seconds]()
    if rank >= program.size:
        for _ in range(turns + 1):
            dist.barrier()
        return 0.0
    driven = _rank(program, rank, pieces)
    for turn in range(turns + 1):
        if program.size > 1:
            dist.barrier()
        pieces.clear()
        begun = time.process_time()
        drive(driven, Interval((turn + 1) * rounds, turn * rounds, drain=False), lambda round: False, MESSAGE_TIMEOUT)
        found.append((time.process_time() - begun - sum(pieces)) / rounds)
    return median(found[1:])


def _rank(program: Program, rank: int, pieces: list[Seconds]) -> Rank:
    """A rank that has a few numbers and no graph; its segment notes how long it has computed."""
    number = torch.zeros(program.parcels[0].size // 4)

    def piece(environment: Environment, leaves: Leaves) -> None:
        environment.update(dict.fromkeys(NUMBERS, number))
        pieces.append(computed(PIECE))

    def nothing(environment: Environment, leaves: Leaves) -> None:
        """An act of another lane."""

    graph = Graph("worker", 1, (), (), (), (), (), Ref("none"), None, ())
    state = State({}, {}, {}, {}, {}, {}, {}, Ledger(), {}, {}, {})
    task = Task("worker", torch.nn.Identity, lambda model, batch: batch, Nothing(), torch.optim.SGD, 1)
    code: dict[str, Code] = {"piece": piece, "nothing": nothing}
    return make_rank(Workload(task, graph), program, rank, state, Processes(rank), code=(code, set()))


class Nothing:
    """A data set whose samples are in memory, as nobody asks for them."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        return torch.zeros(1)

    def collated(self, positions: Sequence[int]) -> torch.Tensor:
        """A batch of so many samples."""
        return torch.zeros(len(positions))
