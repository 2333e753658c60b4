"""What of a plan's codecs no pass brings about yet: pairs of whether the plan asks for it, and what, in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.lowering.coding import codec_at, sender
from partita.plan.memory import Shard
from partita.plan.plan import Plan, alone, replicas_of
from partita.plan.rule import momentum_ahead
from partita.plan.sync import Payload
from partita.plan.wire import Wire
from partita.wire.algorithms import BACKEND, STREAMS, all_reduce, hands_whole, of_streams
from partita.wire.codec import SPECS, bound_of, spec_of
from partita.wire.schedule import summed_once


def check_streams(plan: Plan) -> None:
    """Raises PlanError where chosen entries are to be summed, and no codec at the end chooses any; and where an
    algorithm of sums is given for messages that are gathered, since they cannot be added up."""
    for wire in (sync.wire for sync in plan.sync):
        ways = [one for one in (wire.collective, *(one for _, one in wire.by_size)) if one != BACKEND]
        algorithm = next(filter(of_streams, ways), "")
        codec = codec_at(wire, "end")
        if ways and not algorithm and codec and codec.name in SPECS and not spec_of(codec).sums:
            sparse = f" or one of sparse streams, {', '.join(STREAMS)}" if spec_of(codec).sparse else ""
            raise PlanError(
                f"{plan.name}: {ways[0]} sums, and messages of {codec.name} cannot be added up, so they are gathered; "
                f"use collective=backend{sparse}"
            )
        if algorithm and not (codec and spec_of(codec).sparse):
            why = f"{codec.name} speaks of all numbers" if codec else "no codec chooses any at the end"
            found = ", ".join(name for name, spec in SPECS.items() if spec.sparse)
            raise PlanError(f"{plan.name}: {algorithm} sums chosen entries, and {why}; use one of the codecs {found}")


def check_sums(plan: Plan) -> None:
    """Raises PlanError for an algorithm that is none or does not go with the number of replicas, and where messages are
    encoded by whose hops several ranks add up the same."""
    for wire, replicas in product((sync.wire for sync in plan.sync), replicas_of(plan)):
        coded = codec_at(wire, "hop")
        for algorithm in sorted({wire.collective, *(one for _, one in wire.by_size)} - {BACKEND}):
            whole = all_reduce(algorithm, replicas)
            if coded and replicas > 1 and not (whole.sparse or summed_once(whole)):
                raise PlanError(
                    f"{plan.name}: {algorithm} adds up on several ranks, which would have unlike sums, as {coded.name} "
                    "encodes what they send; use ring, tree or halving"
                )


def coded_twice(wire: Wire) -> bool:
    """Whether one codec chooses entries and another encodes the results of their sum, which travel whole (DSAR)."""
    places = [codec.where for codec in wire.codecs]
    return sorted(places) == ["end", "hop"] and not wire.by_size and hands_whole(wire.collective)


def ahead_gap(plan: Plan) -> tuple[bool, str]:
    """(whether a plan that sums gradients asks for it, what) of momentum that goes ahead of no codec."""
    ahead = momentum_ahead(plan.update)[0] > 0
    coded = bool(plan.sync) and not alone(plan) and sender(plan.sync[0].wire) is not None
    return ahead and not coded, "momentum ahead of a codec where there is none"


def weight_gap(graph: Graph, plan: Plan) -> tuple[bool, str]:
    """(whether the plan asks for it, what) of sums with a weight that are encoded before their weight is known: nothing
    that a codec holds back of one minibatch is worth as much in the next, nor is a number of its own."""
    codecs = plan.sync[0].wire.codecs if plan.sync and plan.memory.shard is not Shard.NONE else ()
    kept = any(codec.error_feedback or (codec.name in SPECS and spec_of(codec).absolute) for codec in codecs)
    return kept and graph.weight is not None, (
        "a codec with a memory or numbers of its own, where the loss is a sum with a weight, with sharded state"
    )


def own_gradient_gaps(plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether a plan asks for it, what) of codecs that look at all of a worker's gradient, where stages or owners have
    parts of it, or changes of weights are encoded."""
    changes = bool(plan.sync) and plan.sync[0].payload is Payload.DELTA
    where = "between stages" if plan.stages else "of changes" if changes else "with sharded state"
    codec = sender(plan.sync[0].wire) if plan.sync else None
    yield momentum_ahead(plan.update)[0] > 0, f"momentum ahead of a codec {where}"
    bounded = codec is not None and codec.name in SPECS and bound_of(codec, 1) > 0
    yield bounded, f"a bound on each worker's own gradient ahead of a codec {where}"
    in_rounds = codec is not None and codec.name in SPECS and spec_of(codec).counts is not None
    yield in_rounds and plan.memory.shard is not Shard.NONE, "codecs in rounds with sharded state"
    differs = codec is not None and codec.difference > 0
    yield differs and plan.memory.shard is not Shard.NONE, "a codec of differences with sharded state"


def coded_gaps(plan: Plan, dropped: bool) -> Iterator[tuple[bool, str]]:
    """(whether a plan whose servers go ahead asks for it, what) of codecs; of a gradient that is left out nobody keeps
    what its codec held back of others."""
    sync = plan.sync[0]
    codec = sender(sync.wire)
    known = codec is not None and codec.name in SPECS
    yield codec is not None and dropped, "codecs where late gradients are dropped"
    yield codec_at(sync.wire, "server") is not None, "coded answers of servers that go ahead"
    yield codec is not None and codec.difference > 0, "a codec of differences at servers that go ahead"
    other = sync.payload not in (Payload.GRADIENT, Payload.DELTA)
    yield codec is not None and other, f"codecs of {sync.payload} at servers"
    bounded = codec is not None and known and bound_of(codec, 1) > 0
    yield bounded, "a bound on each worker's own gradient ahead of a codec at servers that go ahead"


def server_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether a plan that agrees through servers in lockstep asks for it, what) of codecs that these cannot use."""
    wires = plan.sync[0].wire.codecs
    counted = any(codec.name in SPECS and spec_of(codec).counts for codec in wires)
    yield counted, "codecs in rounds through servers"
    yield any(codec.where == "hop" for codec in wires), "a codec of every hop through servers; use where=end"
    yield len({codec.where for codec in wires}) < len(wires), "several codecs, one after the other"
    yield bool(graph.clip_norm) and codec_at(plan.sync[0].wire, "server") is not None, "coded answers of a bounded norm"
