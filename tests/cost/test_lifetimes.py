"""What a pipeline's rank keeps, against the counts of its schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from partita.cost.lifetimes import lifetimes_of
from partita.cost.memory import peak_memory
from partita.graph.stages import divide
from partita.program.program import Program
from tests.captures import capture
from tests.priced import whole_cores
from tests.programs import program_by
from tests.small import layers, perceptron


def program(text: str, p: int, m: int) -> Program:
    graph, machines = replace(layers(2 * p - 2), global_batch=8 * m), whole_cores(p, 1e15)
    return program_by(f"{text}(microbatches={m})", graph, machines)


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
    whole = program_by("single", graph, whole_cores(1, 1e15))
    state = [sum(p.tensor.size() for p in stage.parameters) for stage in found.stages]
    assert sum(state) == sum(p.tensor.size() for p in graph.parameters)
    assert all(peak_memory(found, graph, rank) >= 2 * state[rank] for rank in (0, 1))
    assert peak_memory(whole, graph, 0) >= sum(state)


class Sum(nn.Module):
    """Two weights that get one and the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(6, 3)), nn.Parameter(torch.ones(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.a + self.b)


def test_a_gradient_of_two_weights_is_not_given_back_for_one_of_them() -> None:
    """That of a weight alone is, once it is in its bucket: 4 bytes a number."""
    shared = lifetimes_of(capture(replace(perceptron(), name="sum", model=Sum)), 12)
    assert [shared.released(name) for name in "ab"] == [0, 0]
    alone = lifetimes_of(capture(perceptron()), 12)
    assert (alone.released("0.weight"), alone.released("4.bias")) == (4 * 16 * 6, 4 * 3)


@pytest.mark.parametrize(("behind", "counted"), [(1, 4 * 12 * 16), (2, 0)])
def test_what_a_stage_sends_is_counted_once(behind: int, counted: int) -> None:
    """Sixteen numbers of each of twelve samples: the first stage has no use for its product, where the next one begins
    with the ReLU, and keeps what its own ReLU makes, which backward looks at."""
    graph = capture(perceptron())
    products = [i for i, o in enumerate(graph.operators[: graph.forward_length]) if "addmm" in o.target]
    stage = divide(graph, [0, products[0] + behind]).stages[0]
    (sent,) = lifetimes_of(stage, 12).sent(0, stage.forward_length)
    assert sent[1] == counted


def test_a_gradient_that_nobody_asked_for_is_nowhere() -> None:
    """A batch norm of the samples themselves gives gradients of its weights only, though a traced one gives all."""
    task = replace(perceptron(), name="norm-first", model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    graph = capture(task)
    (place,) = [i for i, o in enumerate(graph.operators) if o.target == "aten.native_batch_norm_backward.default"]
    assert [out is None for out in graph.operators[place].outputs] == [True, False, False]
    during, at = lifetimes_of(graph, 12).live_bytes
    assert during[place].sum() - at[place].sum() == 2 * 6 * 4
