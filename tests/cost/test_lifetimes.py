"""What a pipeline's rank keeps, against the counts of its schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cost.lifetimes import lifetimes_of
from partita.cost.memory import peak_memory
from partita.lowering.lower import lower
from partita.program.program import Program
from partita.recipes.catalogue import call
from tests.priced import whole_cores
from tests.small import layers


def program(text: str, p: int, m: int) -> Program:
    graph, machines = replace(layers(2 * p - 2), global_batch=8 * m), whole_cores(p, 1e15)
    return lower(graph, call(f"{text}(microbatches={m})", graph, machines), machines)[-1].program


def test_each_value_lives_from_its_maker_to_its_last_reader() -> None:
    """Inputs 8 x 2 floats, then 8 x 3, 8 x 4, 8 x 4; transposes share memory; gradients stay."""
    graph = layers(1)
    lifetimes = lifetimes_of(graph, 8)
    during, across = lifetimes.live_bytes
    assert during[graph.index["f0"]].tolist() == [96 + 128 + 128, 0]
    assert across[graph.forward_length].tolist() == [96 + 128, 0]
    assert across[-1].tolist() == [0, 4 * (2 * 3 + 3 * 4 + 4 * 4)]
    assert during[graph.index["loss"]].tolist() == [96 + 128 + 128 + 4, 0]
    read = lifetimes.input_bytes(["input.0"])
    assert read[: graph.index["wa"] + 1].tolist() == [64] * (graph.index["wa"] + 1)
    assert read[graph.index["wa"] + 1 :].tolist() == [0] * (len(read) - graph.index["wa"] - 1)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8)])
def test_one_f_one_b_keeps_as_many_microbatches_as_stages_follow(p: int, m: int) -> None:
    """Each microbatch in flight keeps the same; GPipe keeps all of them."""
    alternating, filling = program("one_f_one_b", p, m), program("gpipe", p, m)
    for rank in range(p - 1):
        kept = [peak_memory(one, layers(2 * p - 2), rank) for one in (alternating, filling)]
        stage = alternating.stages[rank]
        lifetimes, inputs = lifetimes_of(stage, 8), [name for name, _ in stage.inputs if name.endswith(f">{rank}")]
        forward = [name for name in inputs if lifetimes.reads[name] < stage.forward_length or not name.startswith("x")]
        held = (
            lifetimes.live_bytes[1][stage.forward_length].sum() + lifetimes.input_bytes(forward)[stage.forward_length]
        )
        assert kept[1] - kept[0] == (m - min(p - rank, m)) * held


def test_a_rank_holds_its_stage_only() -> None:
    found = program("one_f_one_b", 2, 2)
    graph = layers(2)
    whole = lower(graph, call("single", graph, whole_cores(1, 1e15)), whole_cores(1, 1e15))[-1].program
    state = [sum(p.tensor.size() for p in stage.parameters) for stage in found.stages]
    assert sum(state) == sum(p.tensor.size() for p in graph.parameters)
    assert all(peak_memory(found, graph, rank) >= 2 * state[rank] for rank in (0, 1))
    assert peak_memory(whole, graph, 0) >= sum(state)
