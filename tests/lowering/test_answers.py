"""A server's answer is asked for, and an increment made, as soon as backward has read the weights that change."""

from __future__ import annotations

import pytest

from partita.lowering.lower import lower
from partita.lowering.readers import reads_of
from partita.program.instruction import Compute, Instruction, Receive, Snapshot, Update
from partita.program.program import Role
from partita.program.space import Space
from partita.recipes.catalogue import call
from tests.small import cluster_of, layers

PLANS = (
    "ps_sync(own=false,bucket_bytes=1)",
    "ps_sync(own=false,servers=2,bucket_bytes=1,microbatches=2)",
    "ps_async(bucket_bytes=1)",
    "ps_async(own=false,servers=0,bucket_bytes=1)",
    "downpour(push=2,fetch=2)",
    "ssp(bucket_bytes=1)",
    "ssp(own=false,servers=0,bucket_bytes=1)",
)


@pytest.mark.parametrize("text", PLANS)
def test_weights_change_after_their_last_reader_and_not_after_all(text: str) -> None:
    graph = layers(6)
    (stretch,) = lower(graph, call(text, graph, cluster_of(4)), cluster_of(4))
    program = stretch.program
    for role in program.roles:
        computed = [i.name for i in role.instructions if isinstance(i.act, Compute)]
        if not computed:
            continue
        readers, waits = reads_of(program, graph, role, program.trained), dict[str, int]()
        for i in role.instructions:
            if bucket := changes(role, i):
                waits[bucket] = min(waits.get(bucket, len(computed)), computed.index(before(role, i)))
        assert waits
        for bucket, at in waits.items():
            assert all(computed.index(name) <= at for name in readers[bucket])
        if text.startswith("downpour"):
            continue  # one bucket
        assert min(waits.values()) < len(computed) - 1


def changes(role: Role, i: Instruction) -> str:
    """The bucket whose weights it writes, if the rank's own forward and backward read them."""
    act = i.act
    if isinstance(act, Snapshot):
        return act.bucket if act.to in role.ranks and act.into is Space.PARAMETER else ""
    if isinstance(act, Receive):
        return act.bucket if act.space is Space.PARAMETER else ""
    return act.bucket if isinstance(act, Update) else ""


def before(role: Role, i: Instruction) -> str:
    """The last Compute that is done by then, through what it waits for and the order of its lane."""
    order = [one.name for one in role.on("compute")]
    ahead = [order[: order.index(i.name)][-1]] if i.lane == "compute" else []
    found, places = [*ahead, *(a.name for a in i.after if not a.rounds)], list[int]()
    for name in found:
        one = role.on_name[name]
        if one.lane == "compute":
            done = [n for n in order[: order.index(name) + 1] if isinstance(role.on_name[n].act, Compute)]
            places.append(order.index(done[-1]))
    return order[max(places)]
