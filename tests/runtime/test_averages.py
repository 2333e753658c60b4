"""What the catalogue says of methods that average weights now and then."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.holding import copies_of
from partita.checkpoints.restore import open_checkpoint
from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.averages import fragments_of
from partita.lowering.lower import lower
from partita.program.instruction import Collective, Mix, Update
from partita.program.layout import Bucket
from partita.program.program import Program
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.captures import capture
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import Line, Numbers, cluster_of, perceptron

Weights = dict[str, torch.Tensor]


def program_of(graph: Graph, text: str, size: int = 3) -> Program:
    machines = cluster_of(size)
    return program_by(text, graph, machines)


def ended(task: Task, graph: Graph, text: str, size: int = 3, steps: int = 6, **more: Any) -> dict[str, torch.Tensor]:
    machines = cluster_of(size)
    plan = call(text, graph, machines)
    states, _ = train_in_process(Workload(task, graph, precision="fp64", keyed=True), plan, machines, steps, **more)
    return {parameter.name: states[0].leaves[parameter.name] for parameter in graph.parameters}


def gap(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def sent(graph: Graph, text: str, size: int = 4) -> tuple[int, ...]:
    machines = whole_cores(size, 1e9)
    program = program_by(text, graph, machines)
    costs = priced(graph, machines, sorted({segment.batch for segment in program.segments}))
    return simulate(program, costs).wire_sent


def test_an_outer_step_of_one_each_step_is_synchronous_sgd(graph: Graph) -> None:
    """EX-01: H = 1, outer SGD of rate 1, inner SGD; and with an outer momentum it is not."""
    task = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    plain = capture(task, precision="fp64")
    together = ended(task, plain, "ddp")
    assert gap(together, ended(task, plain, "diloco(period=1,rate=1,momentum=0)")) <= 1e-12
    assert gap(together, ended(task, plain, "diloco(period=1,rate=1,momentum=0.5)")) > 1e-3


def test_the_outer_step_is_that_of_torchs_sgd() -> None:
    """EX-01: with H = 1 the mean change is that of the inner SGD, so that rates multiply."""
    inner = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    outer = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.07, momentum=0.9, nesterov=True))
    plain, whole = (capture(task, precision="fp64") for task in (inner, outer))
    assert gap(ended(outer, whole, "ddp"), ended(inner, plain, "diloco(period=1)")) <= 1e-12
    assert gap(ended(outer, whole, "ddp"), ended(inner, plain, "diloco(period=1,rate=0.8)")) > 1e-3


def test_momentum_kept_by_each_worker_is_that_of_synchronous_sgd(task: Task, graph: Graph) -> None:
    """DP-26: tau = 1 with local momentum whose buffers are kept; not for Adam, nor for tau = 2."""
    together = ended(task, graph, "ddp")
    assert gap(together, ended(task, graph, "local_sgd(period=1)")) <= 1e-12
    assert gap(together, ended(task, graph, "local_sgd(period=2)")) > 1e-4
    adam = replace(task, optimizer=lambda p: torch.optim.Adam(p, lr=0.01))
    other = capture(adam, precision="fp64")
    assert gap(ended(adam, other, "ddp"), ended(adam, other, "local_sgd(period=1)")) > 1e-4


@pytest.mark.parametrize("name", ["local_sgd", "diloco"])
def test_bytes_fall_with_the_period(graph: Graph, name: str) -> None:
    """DP-26, EX-01: bytes a step are those of synchronous SGD over H, exactly."""
    once = sent(graph, "ddp")
    for period in (1, 2, 5):
        assert sent(graph, f"{name}(period={period})") == tuple(size // period for size in once)


@pytest.mark.parametrize(("period", "fragments", "lag"), [(4, 2, 0), (6, 3, 1), (8, 4, 2)])
def test_a_window_never_carries_more_than_a_fragment_and_its_share(
    graph: Graph, period: int, fragments: int, lag: int
) -> None:
    """EX-01: F fragments, in any window of H / F steps at most 1 / F of all bytes and one fragment."""
    program = program_of(graph, f"diloco(period={period},fragments={fragments},lag={lag})")
    at, sizes = -1, [0] * period
    for i in program.roles[0].instructions:
        if isinstance(i.act, Update):
            at = int(i.name.split(".")[1])
        if isinstance(i.act, Collective):
            sizes[at] += program.bucket[i.act.bucket].size
    whole, window = sum(sizes), period // fragments
    groups = fragments_of(program.trained, fragments)
    largest = max(sum(program.trained[i].size for i in group) for group in groups)
    assert whole == sum(bucket.size for bucket in program.trained)
    assert sum(map(bool, sizes)) == fragments
    twice = sizes * 2
    assert max(sum(twice[i : i + window]) for i in range(period)) <= whole / fragments + largest
    assert max(sizes) < whole


def test_the_inner_optimizer_is_never_sent(graph: Graph) -> None:
    """EX-01: what travels are changes of weights, and each byte of them once a period."""
    program = program_of(graph, "diloco(period=4)")
    acts = [i.act for i in program.roles[0].instructions]
    assert {act.space for act in acts if isinstance(act, Collective)} == {Space.DELTA}
    assert sum(isinstance(act, Mix) and act.into is Space.ANCHOR for act in acts) == len(program.trained)


def test_changes_may_be_encoded(graph: Graph) -> None:
    """EX-01: quantised, fp64 takes a quarter of the bytes in fp16; a codec that bounds gradients finds none."""
    whole, halves = (sent(graph, f"diloco(period=4,codec={codec})") for codec in ("none", "fp16"))
    assert halves == tuple(size // 4 for size in whole)
    with pytest.raises(LoweringError, match="a bound on each worker's own gradient ahead of a codec of changes"):
        program_of(graph, "diloco(period=4,codec=dgc(clip=1))")


@pytest.mark.parametrize("codec", ["q8", "onebit", "fp16"])
def test_weights_agree_at_the_end_of_a_round_however_changes_travel(graph: Graph, codec: str) -> None:
    """So a checkpoint has them once."""
    plain, coded = (copies_of(program_of(graph, f"diloco(period=4,codec={name})")) for name in ("none", codec))
    assert coded == plain
    assert all(one.weights for one in coded.values())


def test_what_a_codec_holds_back_comes_later(task: Task, graph: Graph) -> None:
    """EX-01 with the largest tenth of the changes: with error feedback weights end closer to those of the whole."""
    whole = ended(task, graph, "diloco(period=2,momentum=0)", steps=40)
    texts = (f"diloco(period=2,momentum=0,codec=topk(ratio=0.1,feedback={back}))" for back in ("true", "false"))
    kept, lost = (ended(task, graph, text, steps=40) for text in texts)
    assert gap(kept, whole) < 0.7 * gap(lost, whole)


def test_fragments_hold_every_bucket_once() -> None:
    buckets = tuple(Bucket(f"b{i}", "float32", size, ()) for i, size in enumerate((5, 1, 1, 9, 4, 4, 2)))
    for count in range(1, 9):
        groups = fragments_of(buckets, count)
        assert [i for group in groups for i in group] == list(range(len(buckets)))
        assert len(groups) == count
    assert [sum(buckets[i].elements for i in group) for group in fragments_of(buckets, 2)] == [16, 10]


def test_messages_of_a_late_fragment_hide_behind_computing(graph: Graph) -> None:
    """EX-01: streaming with a lag of a step takes less than without; both less than all at once each step."""
    machines = whole_cores(4, 2e4)
    seconds = []
    for text in ("diloco(period=2,fragments=2,lag=1)", "diloco(period=2,fragments=2)", "diloco(period=1)"):
        program = program_by(text, graph, machines)
        costs = priced(graph, machines, batches_of(program), operator=1e-3)
        seconds.append(simulate(program, costs).step_seconds)
    assert all(one < 0.9 * other for one, other in pairwise(seconds)), seconds


def test_one_worker_averages_nothing(task: Task, graph: Graph) -> None:
    """DP-24: k = 1 is SGD."""
    assert gap(ended(task, graph, "single", 1), ended(task, graph, "parallel_sgd", 1)) == 0.0


def test_weights_travel_once_in_a_run(graph: Graph) -> None:
    """DP-24 by all-reduce: nothing while it trains, 2 (k - 1) n in all at the end."""
    machines = whole_cores(4, 1e9)
    stretch = lower(graph, call("parallel_sgd", graph, machines), machines)[-1]
    assert sent(graph, "parallel_sgd") == (0, 0, 0, 0)
    assert stretch.end is not None
    costs = priced(graph, machines, [3])
    size = graph.trained_bytes
    assert sum(simulate(stretch.end, costs).wire_sent) == 2 * 3 * size


def test_the_mean_varies_less_than_a_worker() -> None:
    """DP-24: over seeds, with fresh samples each, the sum of coordinates' variances of the mean of k = 4 workers is a
    quarter of one worker's, within 30 %."""
    task = Task(
        name="line", model=Line, data=Numbers(), batch_size=8,
        loss=lambda model, batch: ((model(batch[0]) - batch[0].sum(1) - batch[1]) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )  # fmt: skip
    captured, alone, mean = capture(task, precision="fp64"), [], []
    machines = cluster_of(4)
    for seed in range(50):
        fresh = Numbers(8 * 6)
        draw = torch.Generator().manual_seed(seed)
        fresh.x = torch.randn(len(fresh), 6, generator=draw)
        fresh.y = torch.randint(0, 3, (len(fresh),), generator=draw)
        here = replace(task, data=fresh)
        plan = call("parallel_sgd", captured, machines)
        states, _ = train_in_process(Workload(here, captured, precision="fp64"), plan, machines, 6, settle=False)
        alone.append(states[seed % 4].leaves["row"])
        mean.append(torch.stack([state.leaves["row"] for state in states.values()]).mean(0))
    ratio = float(torch.stack(mean).var(0).sum() / torch.stack(alone).var(0).sum())
    assert ratio == pytest.approx(1 / 4, rel=0.3)


def test_the_outer_momentum_is_kept(task: Task, graph: Graph, tmp_path: Path) -> None:
    """EX-01: a run that goes on without its anchor and outer momentum ends elsewhere."""
    text = "diloco(period=2)"
    unbroken = ended(task, graph, text, keep=SavePolicy(str(tmp_path), 2, 9))

    def again(without: Space) -> float:
        saved = open_checkpoint(tmp_path / "checkpoints/step-4")
        read = saved.contents.tensor
        lost = lambda e: read(e) * 0.0 if e.kind == "kept" and e.detail == without else read(e)  # noqa: E731
        saved.contents.tensor = lost  # type: ignore[method-assign]
        return gap(unbroken, ended(task, graph, text, saved=saved))

    assert again(Space.DUAL) == 0.0
    assert min(again(Space.VELOCITY), again(Space.ANCHOR)) > 1e-4
