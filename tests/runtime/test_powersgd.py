"""PowerSGD: two rounds of sums for each bucket (EX-02)."""

from __future__ import annotations

import pytest
import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.plain_lowrank import low_rank
from partita.kernels.site import Site
from partita.oracles.check import TOLERANCE, checked
from partita.plan.wire import Codec
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.wire.codec import settings_of
from partita.wire.lowrank import factor_counts
from tests.captures import capture
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron, two_layers

SHAPES = ((12, 9), (12,), (), (8, 3, 2, 2), (1, 5), (0, 4))
COUNT = sum(torch.Size(shape).numel() for shape in SHAPES)
WORKERS = 3


def codec_of(rank: int) -> Codec:
    return Codec("powersgd", error_feedback=True, settings=(("rank", float(rank)),))


def exchanged(values: list[torch.Tensor], codec: Codec, bases: list[torch.Tensor], seed: int = 5) -> list[torch.Tensor]:
    """What each worker decodes; `values` keep what was not said."""
    kernel, counts = kernel_of(codec), factor_counts(SHAPES, settings_of(codec))
    sums = [torch.zeros(n, dtype=torch.float64) for n in counts]
    summed: list[torch.Tensor] = []
    for total in sums:
        for v, basis in zip(values, bases, strict=True):
            message = torch.zeros_like(total)
            kernel.encode(v, message, 0, True, Site(SHAPES, tuple(s.clone() for s in summed), basis, seed))
            total += message
        summed.append(total)
    kernel.encode(values[0].clone(), torch.zeros_like(sums[1]), 0, False, Site(SHAPES, (sums[0],), bases[0], seed))
    found = []
    for basis in bases:
        said = torch.full((COUNT,), float("nan"), dtype=torch.float64)
        kernel.decode(sums[1], said, site=Site(SHAPES, (sums[0],), basis, seed))
        found.append(said)
    return found


def drawn(step: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return [torch.randn(COUNT, dtype=torch.float64, generator=draw) for _ in range(WORKERS)]


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_kernels_equal_their_plain_twin(rank: int) -> None:
    """EX-02: factors, their sums, what is held back and where the next step begins, over several steps."""
    codec = codec_of(rank)
    bases = [torch.zeros(COUNT, dtype=torch.float64) for _ in range(WORKERS)]
    held, twin, basis = [torch.zeros_like(b) for b in bases], [torch.zeros_like(b) for b in bases], bases[0].clone()
    for step in range(6):
        values = [h + g for h, g in zip(held, drawn(step), strict=True)]
        twins = [h + g for h, g in zip(twin, drawn(step), strict=True)]
        said = exchanged(values, codec, bases, step)
        meant, basis = low_rank(twins, SHAPES, settings_of(codec), basis, step)
        held, twin = values, [v - m for v, m in zip(twins, meant, strict=True)]
        assert torch.allclose(said[0], torch.stack(meant).sum(0), rtol=0, atol=1e-12)
        assert all(torch.equal(one, said[0]) for one in said)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(held, twin, strict=True))


def test_a_sum_of_low_rank_is_exact_at_once() -> None:
    """EX-02: rank(mean M) <= r, orthonormalised: exact in the first pass, whatever the workers' own ranks; one rank
    less is not."""
    first, draw = drawn(0), torch.Generator().manual_seed(9)
    whole = torch.zeros(COUNT, dtype=torch.float64)
    whole[:108] = (torch.randn(12, 2, dtype=torch.float64, generator=draw) @ torch.randn(
        2, 9, dtype=torch.float64, generator=draw)).view(-1)  # fmt: skip
    values = [first[0], first[1], whole - first[0] - first[1]]
    for v in values:
        v[120:216] = 0
    for rank, exact in ((2, True), (4, True), (1, False)):
        bases = [torch.zeros(COUNT, dtype=torch.float64) for _ in range(WORKERS)]
        said = exchanged([v.clone() for v in values], codec_of(rank), bases)[0]
        assert torch.allclose(said[:108], whole[:108], rtol=0, atol=1e-9) is exact


def test_nothing_is_lost() -> None:
    """EX-02: all that was decoded and what the workers hold back is all that they had."""
    codec, bases = codec_of(2), [torch.zeros(COUNT, dtype=torch.float64) for _ in range(WORKERS)]
    held, decoded, given = (
        [torch.zeros_like(b) for b in bases],
        torch.zeros(COUNT).double(),
        torch.zeros(COUNT).double(),
    )
    for step in range(20):
        fresh = drawn(step)
        values = [h + g for h, g in zip(held, fresh, strict=True)]
        decoded += exchanged(values, codec, bases, step)[0]
        given += torch.stack(fresh).sum(0)
        held = values
    assert torch.allclose(decoded + torch.stack(held).sum(0), given, rtol=0, atol=1e-9)


def test_it_begins_where_it_ended() -> None:
    """EX-02: of the same matrix again and again the best approximation of its rank is reached, since each step begins
    with the last Q."""
    bases, values = [torch.zeros(COUNT, dtype=torch.float64) for _ in range(WORKERS)], drawn(0)
    left, sizes, right = torch.linalg.svd(torch.stack(values).sum(0)[:108].view(12, 9), full_matrices=False)
    best = (left[:, :3] * sizes[:3] @ right[:3]).view(-1)
    said = [exchanged([v.clone() for v in values], codec_of(3), bases, seed)[0][:108] for seed in range(60)]
    assert float((said[0] - best).norm()) > 0.1
    assert float((said[-1] - best).norm()) <= 1e-9


@pytest.mark.parametrize(
    "plan",
    [
        "ddp(codec=powersgd(rank=1),bucket_bytes=300,collective=doubling)",
        pytest.param("ddp(codec=powersgd(rank=2))", marks=pytest.mark.slow),
        pytest.param("pipe_sgd(codec=powersgd(rank=2,feedback=false))", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_plan_equals_its_replay(plan: str) -> None:
    """EX-02: weights of the serial recurrence on what all workers understand together."""
    machines = cluster_of(WORKERS)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=6)
    assert found["semantics"] == "lossy"
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.slow
def test_a_weighted_loss_equals_its_replay() -> None:
    machines = cluster_of(WORKERS)
    found = checked(padded(), lambda graph: call("ddp(codec=powersgd(rank=2))", graph, machines), machines, steps=4)
    assert found["max_difference"] <= TOLERANCE


def test_replicas_are_bit_identical() -> None:
    """EX-02: in weights and in what they go on from, and not in what they hold back."""
    task, machines = perceptron(), cluster_of(WORKERS)
    graph = capture(task)
    states, _ = train_in_process(
        Workload(task, graph), call("ddp(codec=powersgd(rank=2))", graph, machines), machines, 5
    )
    assert all(torch.equal(states[r].leaves[name], leaf) for name, leaf in states[0].leaves.items() for r in (1, 2))
    basis = [states[r].kept[Space.BASIS, "b0"] for r in range(WORKERS)]
    assert basis[0].any()
    assert all(torch.equal(one, basis[0]) for one in basis)
    assert not torch.equal(states[0].kept[Space.RESIDUAL, "b0"], states[1].kept[Space.RESIDUAL, "b0"])


def test_bytes_on_the_wire() -> None:
    """EX-02: 4 r (n + m) bytes a matrix and step go twice round a ring: of 4 x 6 and 6 x 2 numbers, 10 and 8."""
    graph, machines = two_layers(), whole_cores(2, 1e6)
    program = program_by("ddp(codec=powersgd(rank=1))", graph, machines)
    assert [coding.size for coding in program.codings] == [4 * (4 + 6), 4 * (6 + 2)]
    batches = sorted({segment.batch for segment in program.segments})
    assert simulate(program, priced(graph, machines, batches)).wire_sent == (4 * (10 + 8),) * 2


def test_matrices_that_factors_would_not_make_smaller_go_as_they_are() -> None:
    assert factor_counts(((3, 3), (7,), (40, 30)), {"rank": 2.0}) == (9 + 7 + 80, 60)
    assert factor_counts(((3, 3), (7,)), {"rank": 2.0}) == (16,)
