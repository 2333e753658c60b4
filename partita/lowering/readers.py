"""Who reads which weights: operators that take a parameter or a view of it, and the instructions that run them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.patterns import shares_memory
from partita.program.instruction import Compute
from partita.program.layout import Bucket
from partita.program.program import Program, Role

Places = tuple[int, ...]


def parameter_readers(graph: Graph) -> dict[str, Places]:
    """Parameter -> the places in the graph's order at which it, or a view of its memory, is read; found once."""
    return graph.once("parameter readers", lambda: _parameter_readers(graph))


def _parameter_readers(graph: Graph) -> dict[str, Places]:
    found: dict[str, list[int]] = {parameter.name: [] for parameter in graph.parameters}
    viewed: dict[Ref, str] = {}
    for place, operator in enumerate(graph.operators):
        reads = [ref.name if ref.name in found else viewed.get(ref, "") for ref in operator.reads()]
        for name in dict.fromkeys(filter(None, reads)):
            found[name].append(place)
        if reads and reads[0] and shares_memory(operator, graph):
            viewed |= dict.fromkeys(operator.results(), reads[0])
    return {name: tuple(places) for name, places in found.items()}


def reads_of(program: Program, graph: Graph, role: Role, buckets: Sequence[Bucket]) -> dict[str, tuple[str, ...]]:
    """Bucket -> the Compute instructions of a role that read any of it, in the order of the lane."""
    readers = {stage: parameter_readers(program.graph_of(stage, graph)) for stage in program.stages_of(role)}
    found: dict[str, tuple[str, ...]] = {}
    work = [(one.name, one.act.segment) for one in role.instructions if isinstance(one.act, Compute)]
    for bucket in buckets:
        names = dict.fromkeys(piece.parameter for piece in bucket.pieces)
        places = {stage: sorted({p for name in names for p in known.get(name, ())}) for stage, known in readers.items()}
        reading = {segment for segment in {segment for _, segment in work} if _reads(program, segment, places)}
        found[bucket.name] = tuple(name for name, segment in work if segment in reading)
    return found


def _reads(program: Program, name: str, places: dict[int, list[int]]) -> bool:
    segment = program.segment[name]
    at = places[segment.stage]
    first = bisect_left(at, segment.start)
    return first < len(at) and at[first] < segment.stop
