"""Codecs of differences: EF21 and DIANA beside their papers' recurrences, what they keep, and what has none."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.restore import open_checkpoint
from partita.cost.memory import resident
from partita.errors import InputError
from partita.lowering.lower import lower
from partita.oracles.check import TOLERANCE, checked
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.alike import alike
from partita.runtime.feed import Feed
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.captures import capture
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import Line, Numbers, cluster_of, perceptron, two_layers

SIZE, RATE = 4, 0.05
PLANS = (
    "ef21(codec=topk(ratio=0.1),bucket_bytes=300)", "diana(codec=qsgd(group=50),microbatches=2)", "ef21(codec=fp16)",
    "ps_sync(own=false,servers=2,bucket_bytes=300,codec=topk(ratio=0.1,difference=0.4))",
    "ps_sync(codec=topk(ratio=0.2,difference=1)+q8(where=server))",
    "pipe_sgd(codec=threshold(threshold=0.001,difference=1),warmup=2)", "ef21(codec=topk(ratio=0.1),ramp=1)",
    "ddp(codec=topk(ratio=0.2,difference=0.5),collective=sparse_doubling)",
    "gpipe(stages=2,data=2,microbatches=2,codec=topk(ratio=0.1,difference=1))",
    "diloco(period=2,codec=topk(ratio=0.1,difference=1))",
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_equals_its_replay(plan: str) -> None:
    """EX-10, EX-11: all-reduced, gathered, as streams, at servers, late, between replicas of stages, of changes."""
    machines = cluster_of(SIZE)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=5)
    assert found["semantics"] in ("lossy", "consensus")
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("plan", ["ef21(codec=onebit)", "ps_sync(codec=topk(ratio=0.1,difference=0.5))"])
def test_a_weighted_loss_equals_its_replay(plan: str) -> None:
    machines = cluster_of(SIZE)
    task = padded(clip_norm=0.1) if plan.startswith("ef21") else padded()
    assert checked(task, lambda graph: call(plan, graph, machines), machines, steps=4)["max_difference"] <= TOLERANCE


# Least squares: worker w has ten samples of its own, and the optimum of all is that of nobody.


def line(momentum: float = 0.0) -> Task:
    return Task(
        name="line", model=Line, data=Numbers(40), batch_size=40,
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
        optimizer=partial(torch.optim.SGD, lr=RATE, momentum=momentum),
    )  # fmt: skip


@pytest.fixture
def own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "positions", lambda self, step, start, count: list(range(start, start + count)))


def ended(text: str, steps: int, momentum: float = 0.0) -> torch.Tensor:
    """The weights after so many steps."""
    task, machines = line(momentum), cluster_of(SIZE)
    if text.startswith("ps_sync"):
        machines = cluster_of(SIZE + 1)
    graph = capture(task, precision="fp64")
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(text, graph, machines), machines, steps)
    return states[0].leaves["row"].detach()


def slopes(x: torch.Tensor) -> torch.Tensor:
    """The gradient of each worker's own mean square at x, one row a worker."""
    data = Numbers(40)
    inputs, wanted = data.x.double().view(SIZE, 10, 6), data.y.double().view(SIZE, 10)
    return torch.einsum("wsi,ws->wi", inputs, inputs @ x - wanted) / 5


def largest(v: torch.Tensor, k: int) -> torch.Tensor:
    """C(v): the k largest numbers of each row."""
    at = v.abs().topk(k).indices
    return torch.zeros_like(v).scatter_(1, at, v.gather(1, at))


def serial(steps: int, k: int, alpha: float, eta: float = 1.0) -> torch.Tensor:
    """DIANA's algorithm 1, with alpha = 1 EF21's algorithm 2, with eta < 1 EF21-SGDM's algorithm 1 at a step of rate /
    eta: all as they are printed, with means over the workers."""
    x, (v, h) = torch.zeros(6, dtype=torch.float64), torch.zeros(2, SIZE, 6, dtype=torch.float64)
    for _ in range(steps):
        v = (1 - eta) * v + eta * slopes(x)
        said = largest(v - h, k)
        x = x - RATE / eta * (h.mean(0) + said.mean(0))
        h = h + alpha * said
    return x


@pytest.mark.usefixtures("own_samples")
@pytest.mark.parametrize(
    ("text", "alpha"),
    [
        ("ef21(codec=topk(ratio=0.3))", 1.0), ("diana(codec=topk(ratio=0.3),alpha=0.4)", 0.4),
        ("ps_sync(codec=topk(ratio=0.3,difference=1))", 1.0), ("ps_sync(codec=topk(ratio=0.3,difference=0.4))", 0.4),
    ],
)  # fmt: skip
def test_it_is_the_recurrence_of_its_paper(text: str, alpha: float) -> None:
    """EX-10, EX-11, on four workers; with another share it is another one."""
    found = ended(text, 8)
    assert float((found - serial(8, 2, alpha)).abs().max()) <= 1e-9
    assert float((found - serial(8, 2, alpha / 2)).abs().max()) > 1e-4


@pytest.mark.usefixtures("own_samples")
def test_momentum_goes_ahead() -> None:
    """EX-10: EF21-SGDM with eta = 1 - momentum; behind the codec it is another method."""
    found = ended("ef21(codec=topk(ratio=0.3),ahead=true)", 8, momentum=0.6)
    assert float((found - serial(8, 2, 1.0, eta=0.4)).abs().max()) <= 1e-9
    assert float((found - ended("ef21(codec=topk(ratio=0.3))", 8, momentum=0.6)).abs().max()) > 1e-4


@pytest.mark.usefixtures("own_samples")
def test_a_biased_codec_converges_at_a_constant_rate_by_differences_only() -> None:
    """EX-10, theorems 1 and 2: one number of six, from workers of unlike samples. Without feedback, and with that of
    what was held back, the same codec at the same rate stays away from the optimum."""
    data = Numbers(40)
    best = torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution[:, 0]
    assert float(slopes(best).norm(dim=1).min()) > 0.1

    def away(text: str, steps: int) -> float:
        return float((ended(text, steps) - best).norm())

    early, late = away("ef21(codec=topk(ratio=0.1))", 200), away("ef21(codec=topk(ratio=0.1))", 400)
    assert late < 1e-3 * early < 1e-3
    for codec in ("topk(ratio=0.1,feedback=false)", "topk(ratio=0.1)"):
        stalled = [away(f"ddp(codec={codec})", steps) for steps in (200, 400)]
        assert min(stalled) > 100 * early


def held(plan: str, size: int, steps: int, **more: Any) -> dict[int, State]:
    task, machines = perceptron(), cluster_of(size)
    graph = capture(task, precision="fp64")
    return train_in_process(
        Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, steps, **more
    )[0]


def said(states: dict[int, State]) -> torch.Tensor:
    """What all that send have said, in all."""
    return torch.stack([s.kept[Space.SAID, "b0"] for s in states.values() if (Space.SAID, "b0") in s.kept]).sum(0)


@pytest.mark.parametrize("plan", ["ef21(codec=topk(ratio=0.1))", "diana", "ps_sync(codec=onebit(difference=0.5))"])
def test_it_goes_on_to_the_bit(plan: str, tmp_path: Path) -> None:
    """EX-10, EX-11: what each has said is its own, and what all have heard the sum of that, also after a checkpoint."""
    whole = held(plan, SIZE, 6)
    held(plan, SIZE, 3, keep=SavePolicy(str(tmp_path), 3))
    again = held(plan, SIZE, 6, saved=open_checkpoint(place_of(tmp_path, 3)))
    for rank, state in whole.items():
        places = [place for place in state.kept if place[0] in (Space.SAID, Space.HEARD)]
        assert places
        assert all(torch.equal(again[rank].kept[place], state.kept[place]) for place in places)
        assert all(torch.equal(again[rank].parameter[name], flat) for name, flat in state.parameter.items())
    heard = [state.kept[Space.HEARD, "b0"] for state in whole.values() if (Space.HEARD, "b0") in state.kept]
    assert len(heard) == (1 if plan.startswith("ps_sync") else SIZE)
    assert all(torch.equal(heard[0], one) for one in heard)
    assert heard[0].abs().max() > 0
    torch.testing.assert_close(said(whole), heard[0], rtol=1e-12, atol=1e-15)
    assert not torch.equal(whole[0].kept[Space.SAID, "b0"], whole[1].kept[Space.SAID, "b0"])


@pytest.mark.parametrize(
    ("plan", "size"),
    [("ef21(codec=onebit)", 2), ("ps_sync(codec=topk(difference=1))", 4), ("ddp(codec=topk)", 4), ("diana", 8)],
)  # fmt: skip
def test_others_go_on_from_what_was_said(plan: str, size: int, tmp_path: Path) -> None:
    """Among fewer workers, or at a server: the sum of what is said stays what all have heard. A codec with feedback has
    no use for it."""
    before = held("ef21(codec=topk(ratio=0.1))", SIZE, 4, keep=SavePolicy(str(tmp_path), 4))
    after = held(plan, size, 4, saved=open_checkpoint(place_of(tmp_path, 4)))
    if plan == "ddp(codec=topk)":
        assert not after[0].kept[Space.RESIDUAL, "b0"].any()
        return
    torch.testing.assert_close(said(after), said(before), rtol=1e-12, atol=1e-15)
    for state in after.values():
        if (Space.HEARD, "b0") in state.kept:
            assert torch.equal(state.kept[Space.HEARD, "b0"], before[0].kept[Space.HEARD, "b0"])


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        ("ef21", {Space.HEARD}), ("ef21(codec=fp16)", {Space.HEARD}), ("ef21(codec=topk,ahead=true)", {Space.HEARD}),
        ("ddp(codec=topk,collective=sparse_doubling)", set()), ("ps_sync(codec=onebit(where=server))", set()),
        ("ps_sync(own=false,codec=topk(difference=1))", {Space.HEARD}), ("ddp(codec=powersgd)", set()),
    ],
)  # fmt: skip
def test_what_ranks_have_alike(plan: str, kept: set[Space]) -> None:
    """What a rank's own coding says is its own, unless codings were summed or are a server's."""
    graph, machines = capture(perceptron()), cluster_of(3)
    program = program_by(plan, graph, machines)
    every = {space for role in program.roles for space, _ in program.kept(role)}
    for bucket in program.trained:
        same = alike(program)[bucket.name]
        assert (Space.PARAMETER in same) is ("own" not in plan)  # a server sends them
        assert (every - {Space.BASIS}) & same == kept


def test_memory_and_time_are_those_of_two_more_tensors() -> None:
    """Each worker keeps one of the gradients' size and one for the sum; at a server each has one."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    wanted = {"ddp(codec=topk(feedback=false))": (0, 0), "ef21": (2, 2), "ps_sync(codec=topk(difference=1))": (1, 1)}
    bare = {
        "ef21": "ddp(codec=topk(feedback=false))",
        "ps_sync(codec=topk(difference=1))": "ps_sync(codec=topk(feedback=false))",
    }
    for plan, (first, last) in wanted.items():
        programs = [program_by(text, graph, machines) for text in (plan, bare.get(plan, plan))]
        for rank, more in ((0, first), (3, last)):
            mine = [sum(resident(p, graph, p.role_of[rank])) for p in programs]
            assert mine[0] - mine[1] == more * 36 * 4, plan
        batches = sorted({segment.batch for program in programs for segment in program.segments})
        sent = [simulate(program, priced(graph, machines, batches)).wire_sent for program in programs]
        assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("ddp(codec=q8(difference=1))", "nothing that was said before; use where=end"),
        ("ps_sync(codec=topk(difference=1,where=server))", "nothing that was said before; use where=end"),
        ("ddp(codec=dgc(difference=1))", "dgc.* has a memory or rounds of its own"),
        ("ef21(codec=powersgd)", "powersgd.* has a memory or rounds of its own"),
        ("ddp(codec=adacomp(difference=1))", "adacomp.* has a memory or rounds of its own"),
        ("ddp(codec=topk(difference=1.5))", "a difference of 0 .none. to 1 is allowed"),
        ("diana(alpha=2)", "a difference of 0 .none. to 1 is allowed"),
        ("ddp(codec=topk(difference=1,feedback=true))", "leave feedback out"), ("ef21(codec=none)", "give one"),
        ("ssp(codec=topk(difference=1))", "differences at servers that go ahead"),
        ("ps_async(codec=topk(difference=1))", "differences at servers that go ahead"),
        ("zero1(codec=topk(difference=1))", "differences with sharded state"), ("ef21(shard=gradients)", "sharded"),
        ("ddp(codec=topk(difference=1)+q8,collective=sparse_split_dense)", "sums are encoded once more"),
    ],
)  # fmt: skip
def test_where_differences_mean_nothing_is_said(plan: str, words: str) -> None:
    graph, machines = capture(perceptron()), cluster_of(4)
    with pytest.raises(InputError, match=words) as refused:
        lower(graph, call(plan, graph, machines), machines)
    assert "\n" not in str(refused.value)


def test_only_momentum_goes_ahead() -> None:
    graph, machines = capture(line()), cluster_of(4)
    with pytest.raises(InputError, match=r"its optimizer has none; .* or leave ahead out"):
        call("ef21(ahead=true)", graph, machines)
    assert call("ef21(ahead=true)", graph, cluster_of(1))
