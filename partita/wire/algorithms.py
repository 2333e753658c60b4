"""The schedules of collectives by name, as `Wire.collective` and `Collective.algorithm` give them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, Final

from partita.errors import OptionError, PlanError, ProgramError, users_code
from partita.plan.wire import Wire
from partita.program.instruction import Collective
from partita.program.layout import widest
from partita.program.program import Program
from partita.program.space import Kind, Space
from partita.units import Bytes
from partita.wire.codec import coded_size
from partita.wire.doubling import binary_blocks, halving_doubling, recursive_doubling
from partita.wire.interpreter import carried_out
from partita.wire.layers import butterfly, hierarchical
from partita.wire.plugins import Registry, others, shown
from partita.wire.rings import pairwise, pairwise_scatter, ring, ring_all_gather, ring_reduce_scatter
from partita.wire.schedule import Schedule, Sparse, even_edges, in_halves, schedule
from partita.wire.trees import tree, tree_broadcast

BACKEND: Final = "backend"
AUTO: Final = "auto"
PAIRWISE: Final = "pairwise"
OURS: Final[dict[str, Callable[..., Schedule]]] = {
    "ring": ring, "tree": tree, "doubling": recursive_doubling, "halving": halving_doubling, "blocks": binary_blocks,
    "pairwise": pairwise, "hierarchical": hierarchical, "butterfly": butterfly,
}  # fmt: skip
STREAMS: Final[dict[str, tuple[str, Sparse]]] = {
    "sparse_doubling": ("doubling", Sparse()),
    "sparse_split": ("pairwise", Sparse()),
    "sparse_split_dense": ("pairwise", Sparse(whole=True)),
    "kylix": ("butterfly", Sparse(maps=True)),
}  # sums of chosen entries: the schedule that each goes by, and how (SparCML's SSAR and DSAR, CO-09; Kylix, CO-08)
MOST_ADDED_UP: Final = 64  # ranks among which a plugin's schedule is carried out on numbers before it is used


def offered(name: str, make: Any) -> Callable[[int], Schedule]:
    """A plugin's schedule by the number of ranks, which raises PlanError where it fails or is no all-reduce. Raises
    OptionError for what is no function, and for a name that is taken."""
    if name in (BACKEND, AUTO, *STREAMS):
        raise OptionError("there is one of that name already; rename it")
    if not callable(make):
        raise OptionError("give a function of the number of ranks that returns a Schedule")

    def made(ranks: int) -> Schedule:
        what, mend = f"the collective {name} of a plugin", "it takes the number of ranks and returns a Schedule of them"
        try:
            with users_code(what, mend, PlanError):
                found = make(ranks)
            if not isinstance(found, Schedule) or found.ranks != ranks or found.parts < 1:
                raise PlanError(f"{what} returned {shown(found)} for {ranks} ranks; {mend}")
            schedule(name, ranks, found.parts, [list(step) for step in found.steps])
        except ProgramError as error:
            raise PlanError(f"{what} is impossible for {ranks} ranks: {error}; {mend}") from error
        if ranks <= MOST_ADDED_UP and (short := _short(found)) >= 0:
            raise PlanError(
                f"{what} leaves rank {short} of {ranks} without the sum of all; give hops after which each rank has "
                "each part of every rank added up once"
            )
        return found

    return made


def _short(found: Schedule) -> int:
    """The first rank that a schedule leaves without the sum of all; -1 if there is none."""
    own = [1 << (8 * rank) for rank in range(found.ranks)]  # so that sums say how often each rank is in them
    ends = carried_out(found, [[value] * found.parts for value in own])
    return next((rank for rank, parts in enumerate(ends) if any(part != sum(own) for part in parts)), -1)


ALGORITHMS: Final[Registry[Callable[..., Schedule]]] = Registry("COLLECTIVES", OURS, offered)


@lru_cache(256)
def all_reduce(algorithm: str, ranks: int) -> Schedule:
    """The schedule of an all-reduce: `ring`, `hierarchical(4)` (nodes of 4), `butterfly(2,3)` (its degrees),
    `kylix(2,3)` (the same for sparse streams), ...

    Raises PlanError for a name that is none, or that does not go with `ranks`.
    """
    found = re.fullmatch(r"(\w+)(?:\(([\d,]+)\))?", algorithm)
    if found is not None and found[1] in STREAMS:
        dense, sparse = STREAMS[found[1]]
        return replace(all_reduce(algorithm.replace(found[1], dense), ranks), name=algorithm, sparse=sparse)
    if found is None or found[1] not in ALGORITHMS:
        open_ = " until a recipe settles it" if algorithm == AUTO else ""
        known = ", ".join((BACKEND, AUTO, *ALGORITHMS, *STREAMS))
        raise PlanError(f"there is no collective {algorithm!r}{open_}; there are {known}{others()}")
    name, numbers = found[1], tuple(int(n) for n in (found[2] or "").split(",") if n)
    if name == "butterfly":
        degrees = numbers or factors(ranks)
        if prod(degrees) != ranks:
            raise PlanError(
                f"a butterfly of degrees {degrees} has {prod(degrees)} ranks, not {ranks}; give degrees whose product "
                f"is {ranks}"
            )
        return butterfly(*degrees)
    if name == "hierarchical":
        if len(numbers) != 1 or not numbers[0] or ranks % numbers[0]:
            raise PlanError(f"{algorithm} among {ranks} ranks; give the ranks of a node, such as hierarchical(2)")
        return hierarchical(ranks, numbers[0])
    if numbers:
        raise PlanError(f"the collective {name} takes no number, and {algorithm} gives one; write {name}")
    return ALGORITHMS[name](ranks)


@lru_cache(256)
def schedule_of(kind: Kind, algorithm: str, ranks: int) -> Schedule:
    """The schedule of a collective that the transport does not carry out itself. Kinds other than all-reduce have
    one each: rings, in which rank i owns part i, and a tree from rank 0 for a broadcast; a reduce-scatter may also
    be `pairwise`, which does not add up."""
    if kind is Kind.ALL_REDUCE:
        return all_reduce("ring" if algorithm == BACKEND else algorithm, ranks)
    if kind is Kind.BROADCAST:
        return tree_broadcast(ranks)
    if kind is Kind.REDUCE_SCATTER:
        return (pairwise_scatter if algorithm == PAIRWISE else ring_reduce_scatter)(ranks)
    return ring_all_gather(ranks)


def course(program: Program, act: Collective, ranks: int) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule by which a collective that goes by messages goes, and the edges between the parts of its vector.

    A ring of long messages goes in halves: one is on its way while the other is encoded, decoded or added.
    """
    whole, (elements, item) = schedule_of(act.kind, act.algorithm, ranks), program.extent(act, ranks)
    edges = program.edges(act) or even_edges(elements, whole.parts)
    if act.algorithm not in (BACKEND, "ring"):
        return whole, edges
    most = widest(edges)
    return in_halves(whole, edges, coded_size(act.codec, most, item) if act.codec else most * item)


def by_messages(act: Collective) -> bool:
    """Whether a collective is carried out message by message, by a schedule of the wire room, and not by the
    backend."""
    apart = act.space is Space.CODED and act.kind is not Kind.ALL_REDUCE
    return act.algorithm != BACKEND or act.codec is not None or apart


def by_hops(act: Collective) -> bool:
    """Whether that schedule is another one than a plain ring, whose cost has a formula."""
    return act.codec is not None or act.algorithm not in (BACKEND, "ring")


def algorithm_for(wire: Wire, size: Bytes) -> str:
    """The algorithm with which a plan sums a vector of `size` bytes."""
    return next((algorithm for most, algorithm in wire.by_size if size <= most), wire.collective)


def of_streams(algorithm: str) -> bool:
    """Whether an algorithm sums sparse streams."""
    return algorithm.partition("(")[0] in STREAMS


def hands_whole(algorithm: str) -> bool:
    """Whether an algorithm sums sparse streams and distributes dense results, which may then be encoded."""
    return algorithm in STREAMS and STREAMS[algorithm][1].whole


def all_numbers(wire: Wire) -> Wire:
    """The wire with the backend's algorithm in place of one for sparse streams."""
    by_size = tuple((most, BACKEND if of_streams(one) else one) for most, one in wire.by_size)
    return replace(wire, collective=BACKEND if of_streams(wire.collective) else wire.collective, by_size=by_size)


def factors(ranks: int) -> tuple[int, ...]:
    """The prime factors of a number, largest first: the degrees of the deepest butterfly."""
    found, rest, prime = [], ranks, 2
    while rest > 1:
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
        prime += 1
    return tuple(reversed(found))
