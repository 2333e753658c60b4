"""The bandwidth up to which a codec saves time is where a step takes as long with it as without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from partita.cost.costs import Costs
from partita.cost.touch import Touch
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.program.instruction import Encode
from partita.program.program import Program
from partita.recipes.catalogue import call
from partita.searches import break_even
from partita.searches.break_even import (
    BreakEven,
    all_break_evens,
    break_even_of,
    codec_baseline,
    in_lines,
    without_codecs,
)
from partita.searches.explaining import widened
from partita.simulator.simulate import simulate
from partita.wire.codec import SPECS
from tests.captures import capture
from tests.priced import priced, whole_cores
from tests.small import cluster_of, perceptron, two_layers

BANDWIDTH = 1e5


def costs_of(codec: str, number: float, bandwidth: float = BANDWIDTH) -> Costs:
    """Encoding and decoding at so many seconds a number."""
    costs = priced(two_layers(), whole_cores(4, bandwidth), (1, 2, 3, 4))
    return replace(costs, codecs={codec: (Touch(0.0, number), Touch(0.0, number))})


def seconds(plan: Plan, costs: Costs, bandwidth: float) -> float:
    there = replace(costs, cluster=widened(costs.cluster, bandwidth / BANDWIDTH))
    return simulate(last_program(costs.graph, plan, costs.cluster), there).step_seconds


@pytest.mark.parametrize("codec", ["fp16", "onebit", "q8", "powersgd(rank=1)"])
@pytest.mark.parametrize("number", [3e-6, 1e-5, 3e-5])
def test_at_the_break_even_both_take_as_long(codec: str, number: float) -> None:
    costs = costs_of(codec.split("(")[0], number)
    plan = call(f"ddp(codec={codec})", costs.graph, costs.cluster)
    found = break_even_of(plan, costs)
    assert found is not None
    assert found.even > 0
    coded, plain = (seconds(each, costs, found.even) for each in (plan, without_codecs(plan)))
    assert coded == pytest.approx(plain, rel=0.02)
    assert seconds(plan, costs, found.even / 3) < seconds(without_codecs(plan), costs, found.even / 3)
    assert seconds(plan, costs, found.even * 3) > seconds(without_codecs(plan), costs, found.even * 3)
    assert "pays below" in str(found)
    assert found.gain == pytest.approx(
        seconds(without_codecs(plan), costs, BANDWIDTH) / seconds(plan, costs, BANDWIDTH)
    )


def test_codecs_that_a_task_cannot_have_are_left_out() -> None:
    """dgc sends momentum, which is refused where the groups of an optimizer have several kinds of it."""

    def several(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [p], "momentum": 0.9 * (p.dim() > 1)} for p in parameters], lr=0.1)

    graph, machines = capture(replace(perceptron(), name="several", optimizer=several)), cluster_of(2)
    some = Touch(1e-6, 1e-8)
    costs = priced(graph, machines, range(1, graph.minibatch + 1))
    found = all_break_evens(replace(costs, codecs=dict.fromkeys(SPECS, (some, some))))
    assert {one.plan for one in found} == {f"ddp(codec={name})" for name in SPECS.keys() - {"dgc"}}


def test_a_model_of_one_batch_size_has_no_baseline() -> None:
    graph = replace(two_layers(), global_batch=2)
    assert codec_baseline(graph, cluster_of(2))
    assert not codec_baseline(graph, cluster_of(4))


def test_a_dearer_codec_pays_up_to_less() -> None:
    evens = []
    for number in (3e-6, 1e-5, 3e-5):
        costs = costs_of("onebit", number)
        found = break_even_of(call("ddp(codec=onebit)", costs.graph, costs.cluster), costs)
        assert found is not None
        evens.append(found.even)
    assert evens[0] > evens[1] > evens[2] > 0


def test_what_never_pays_and_what_always_does() -> None:
    for number, words in ((1.0, "never pays from"), (0.0, "pays from")):
        costs = costs_of("fp16", number)
        found = break_even_of(call("ddp(codec=fp16)", costs.graph, costs.cluster), costs)
        assert found is not None
        assert found.even == 0
        assert words in str(found)
    assert break_even_of(call("ddp", costs.graph, costs.cluster), costs) is None


def test_codecs_whose_answer_is_the_same_share_a_line() -> None:
    """There are 17: where links are quick none pays, which is one thing to read, not 17."""
    some = BreakEven("ddp(codec=q8)", 1.5, 4e7, 1e8)
    never = [BreakEven(f"ddp(codec={name})", 0.9, 0.0, 1e8) for name in ("fp16", "topk")]
    always = [BreakEven("ddp(codec=bf16)", 1.2, 0.0, 1e8)]
    told = in_lines([never[0], some, *always, never[1]])
    assert told == (
        str(some), str(always[0]),
        "ddp(codec=fp16), ddp(codec=topk): none of their codecs pays from 50 Mbit/s to 12.8 Gbit/s",
    )  # fmt: skip
    assert str(always[0]) == "ddp(codec=bf16): its codec pays from 50 Mbit/s to 12.8 Gbit/s"
    assert str(never[0]) == "ddp(codec=fp16): its codec never pays from 50 Mbit/s to 12.8 Gbit/s"
    assert in_lines(()) == ()


def test_what_all_codecs_are_held_against_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, run, told = costs_of("fp16", 1e-5), break_even.step_seconds, list[str]()
    seen = Counter[tuple[bool, float]]()

    def counted(program: Program, costs: Costs) -> float:
        coded = any(isinstance(i.act, Encode) or getattr(i.act, "codec", None) for _, i in program.instructions())
        seen[coded, costs.cluster.narrowest] += 1
        return run(program, costs)

    monkeypatch.setattr(break_even, "step_seconds", counted)
    assert len(all_break_evens(costs, told.append)) == len(told) == len(SPECS)
    assert {many for (coded, _), many in seen.items() if not coded} == {1}
    assert max(many for (coded, _), many in seen.items() if coded) == len(SPECS)


def test_codecs_of_a_large_model_are_looked_at_on_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2.5 billion parameters in buckets of 25 MiB there are hundreds: a dozen simulations of each codec took
    minutes."""
    graph = replace(two_layers(), global_batch=4)
    assert [plan.name for plan in codec_baseline(graph, cluster_of(2))] == ["ddp"]
    monkeypatch.setattr(Graph, "trained_bytes", 10**10)
    assert [plan.name for plan in codec_baseline(graph, cluster_of(2))] == [f"ddp(bucket_bytes={10**10 // 64})"]


def test_every_codec_is_judged() -> None:
    costs = costs_of("fp16", 1e-5)
    assert [one.plan for one in all_break_evens(costs)] == [f"ddp(codec={name})" for name in SPECS]
    assert all_break_evens(replace(costs, cluster=cluster_of(1))) == ()
