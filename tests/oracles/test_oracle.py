"""The oracle against formulas written out, and what stands closest to it: lockstep, and delays of a fixed length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import pi, sin

import numpy as np
import pytest
import torch
from torch import nn

from partita.lowering.lower import last_program
from partita.oracles.check import TOLERANCE, difference
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.program.instruction import Apply, Update
from partita.program.ledger import Merge
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.acts import ACTS
from partita.runtime.leg import legs
from partita.runtime.rank import Rank
from partita.runtime.serving import CORRECTIONS
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

Kept = dict[str, torch.Tensor]
Formula = Callable[[torch.Tensor, torch.Tensor, Kept, int], torch.Tensor]


def plain(w: torch.Tensor, g: torch.Tensor, kept: Kept, t: int) -> torch.Tensor:
    return w - 0.05 * g


def momentum(w: torch.Tensor, g: torch.Tensor, kept: Kept, t: int) -> torch.Tensor:
    """Qian 1999."""
    kept["v"] = 0.9 * kept.get("v", torch.zeros_like(w)) + g
    return w - 0.05 * kept["v"]


def rmsprop(w: torch.Tensor, g: torch.Tensor, kept: Kept, t: int) -> torch.Tensor:
    kept["s"] = 0.99 * kept.get("s", torch.zeros_like(w)) + 0.01 * g * g
    return w - 0.01 * g / (kept["s"].sqrt() + 1e-8)


def adam(w: torch.Tensor, g: torch.Tensor, kept: Kept, t: int) -> torch.Tensor:
    """Kingma & Ba 2015."""
    kept["m"] = 0.9 * kept.get("m", torch.zeros_like(w)) + 0.1 * g
    kept["v"] = 0.999 * kept.get("v", torch.zeros_like(w)) + 0.001 * g * g
    return w - 0.01 * (kept["m"] / (1 - 0.9**t)) / ((kept["v"] / (1 - 0.999**t)).sqrt() + 1e-8)


RULES: dict[str, tuple[Formula, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (plain, partial(torch.optim.SGD, lr=0.05)),
    "momentum": (momentum, partial(torch.optim.SGD, lr=0.05, momentum=0.9)),
    "rmsprop": (rmsprop, partial(torch.optim.RMSprop, lr=0.01, alpha=0.99, eps=1e-8)),
    "adam": (adam, partial(torch.optim.Adam, lr=0.01)),
}


def by_formula(formula: Formula, steps: int) -> dict[str, torch.Tensor]:
    """Nothing but the formula and the documented order of the samples."""
    torch.manual_seed(0)
    task = perceptron()
    model, kept = task.model().double(), dict[str, Kept]()
    for step in range(steps):
        epoch, k = divmod(step, 4)
        order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))[12 * k : 12 * k + 12]
        loss = nn.functional.cross_entropy(model(task.data.x[order].double()), task.data.y[order])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, w), g in zip(model.named_parameters(), gradients, strict=True):
                w.copy_(formula(w, g, kept.setdefault(name, {}), step + 1))
    return dict(model.named_parameters())


@pytest.mark.parametrize("rule", RULES)
def test_fifty_steps_are_the_formulas(rule: str) -> None:
    """DP-01: fifty steps of each rule, of momentum also in three accumulated microbatches each, to 1e-9 in fp64;
    another rule's formula is far away."""
    formula, optimizer = RULES[rule]
    task, machines = replace(perceptron(), optimizer=optimizer), cluster_of(1)
    graph, theirs = capture(task, precision="fp64"), by_formula(formula, 50)
    for plan in ("single", *["single(microbatches=3)"] * (rule == "momentum")):
        states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, 50)
        assert difference(states[0].leaves, theirs) <= TOLERANCE
    assert difference(by_formula(adam if rule == "sgd" else plain, 50), theirs) > 1e-3


def hashed(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], set[bytes]]:
    """(update, round) -> the bytes of the bucket after it, one entry for all ranks that are alike."""
    seen: dict[tuple[str, int], set[bytes]] = {}
    update = ACTS[Update]

    def noted(rank: Rank, act: Update, name: str, round: int) -> None:
        update(rank, act, name, round)
        seen.setdefault((name, round), set()).add(rank.state.parameter[act.bucket].numpy().tobytes())

    monkeypatch.setitem(ACTS, Update, noted)
    return seen


@pytest.mark.parametrize("plan", ["ddp(bucket_bytes=200)", "pipe_sgd(staleness=2,bucket_bytes=200)"])
@pytest.mark.parametrize("size", [2, 4])
def test_replicas_have_the_same_bits_after_every_step(plan: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-02: twenty steps of plain SGD end at the oracle (1e-12); DP-30 with them: after every step all are alike."""
    task, machines = replace(perceptron(), optimizer=RULES["sgd"][1]), cluster_of(size)
    graph, seen = capture(task, precision="fp64"), hashed(monkeypatch)
    states, _ = train_in_process(
        Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, 20, order=size
    )
    assert len({round for _, round in seen}) >= 20
    assert all(len(each) == 1 for each in seen.values())
    if plan.startswith("ddp"):
        assert difference(states[0].leaves, by_formula(plain, 20)) <= 1e-12


class Bowl(nn.Module):
    """w on a parabola: every sample has the loss lambda / 2 w w, with lambda = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def bowl(rate: float) -> Task:
    return Task(
        name="bowl", model=Bowl, loss=lambda model, batch: 0.5 * model(batch[0]).square().mean(),
        data=torch.utils.data.TensorDataset(torch.ones(24, 1)),  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate), batch_size=12,
    )  # fmt: skip


def rolled(plan: str, rate: float, steps: int) -> tuple[dict[int, State], list[float]]:
    """(states, |w| as each step's gradient found it)."""
    task, machines = bowl(rate), cluster_of(2)
    graph = capture(task, precision="fp64")
    states, losses = train_in_process(
        Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, steps, settle=False
    )
    return states, [(2 * losses[t]) ** 0.5 for t in range(steps)]


def recurrence(delay: int, rate: float, steps: int) -> list[float]:
    """|w| that gradients are computed at, w(t+1) = w(t) - rate w(t - delay); the first have the first weights."""
    found = [1.0] * (delay + 1)
    while len(found) < steps:
        found.append(found[-1] - rate * found[-1 - delay])
    return [abs(w) for w in found[:steps]]


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_fifty_steps_are_the_delayed_recurrence(delay: int) -> None:
    """DP-30: w(t) = w(t-1) - eta g(w(t-K)) with K = delay + 1, for t > K; at the end what is in flight is applied, so
    that every gradient enters once."""
    states, seen = rolled(f"pipe_sgd(staleness={delay})", 0.1, 50)
    theirs = recurrence(delay, 0.1, 50 + delay + 1)
    assert seen == pytest.approx(theirs[:50], rel=1e-12)
    assert abs(float(states[0].leaves["w"])) == pytest.approx(theirs[-1], rel=1e-12)


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("warmup", [1, 4])
def test_every_gradient_enters_once_across_the_switch(delay: int, warmup: int) -> None:
    """DP-30, K = 1 and then delay + 1: as many steps apply nothing as gradients are late, those after it each the one
    of so many steps ago, and in the end all that were computed have been applied, each once."""
    rate, steps = 0.1, 14
    states, seen = rolled(f"pipe_sgd(staleness={delay},warmup={warmup})", rate, steps)
    at = [1.0]
    for t in range(steps - 1):
        late = at[t] if t < warmup else 0.0 if t < warmup + delay else at[t - delay]
        at.append(at[t] - rate * late)
    assert seen == pytest.approx(at, rel=1e-12)
    assert float(states[0].leaves["w"]) == pytest.approx(1 - rate * sum(seen), rel=1e-12)


def test_a_width_of_one_is_lockstep() -> None:
    """DP-30: K = 1 is DP-02, to the bit; K = 2 is not."""
    task, machines = perceptron(), cluster_of(3)
    graph = capture(task)
    lockstep, one, two = (
        train_in_process(Workload(task, graph), call(plan, graph, machines), machines, 5)[0][0].leaves
        for plan in (
            "ddp(bucket_bytes=200,first_bucket_bytes=200)", "pipe_sgd(staleness=0,bucket_bytes=200)",
            "pipe_sgd(bucket_bytes=200)",
        )
    )  # fmt: skip
    assert all(torch.equal(one[p.name], lockstep[p.name]) for p in graph.parameters)
    assert difference(two, lockstep) > 1e-3


@pytest.mark.parametrize(("delay", "bound"), [(0, 2.0), (1, 1.0), (2, 0.618), (3, 0.445)])
def test_delays_are_stable_below_their_bound(delay: int, bound: float) -> None:
    """DP-10, DP-30: exactly below eta lambda = 2 sin(pi / (2 (2 d + 1)))."""
    exact = 2 * sin(pi / (2 * (2 * delay + 1)))
    assert exact == pytest.approx(bound, abs=5e-4)
    for factor, falls in ((0.95, True), (1.05, False)):
        _, seen = rolled(f"pipe_sgd(staleness={delay})", factor * exact, 140)
        assert (max(seen[-20:]) < max(seen[20:40])) is falls
        assert falls or max(seen[-20:]) > 1.5


@pytest.mark.parametrize("rate", [0.2, 0.3, 0.5])
def test_one_late_gradient_slows_or_quickens(rate: float) -> None:
    """MX-03: with K = 2 the distance shrinks by the largest root of z z - z + eta lambda; less a step than without
    delay below 0.38, more above."""
    _, seen = rolled("pipe_sgd", rate, 120)
    largest = max(abs(np.roots([1.0, -1.0, rate])))
    tail = np.log(np.maximum(seen[20:], 1e-300))
    keep = tail > -600
    slope = np.polyfit(np.arange(len(tail))[keep], tail[keep], 1)[0]
    assert float(np.exp(slope)) == pytest.approx(largest, rel=0.02)
    assert (largest < abs(1 - rate)) == (rate < 0.38)


def ledger_in_turns(workers: int, turns: int, bucket: str) -> list[Merge]:
    """Workers that come one after the other: each has read what was there when it last left."""
    return [Merge(bucket, n % workers, n // workers, max(n - workers + 1, 0), n) for n in range(workers * turns)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_that_take_turns_are_a_fixed_delay(workers: int) -> None:
    """DP-10: round-robin asynchronous SGD of p workers is the recurrence of delay d = p - 1, which DP-30 runs with
    K = d + 1: its serial replay ends where pipe_sgd does, a worker's share being a p-th of the rate."""
    rate, turns = 0.1, 12
    task, machines = bowl(rate), cluster_of(workers + 1)
    graph = capture(task, precision="fp64")
    plan = call("ps_async", graph, machines)
    program = last_program(graph, plan, machines)
    parts = legs(graph, plan, machines, turns)
    ledger = ledger_in_turns(workers, turns, program.trained[0].name)
    serial = replayed(fresh(task, seed=0, precision="fp64"), parts, ledger)
    states, _ = rolled(f"pipe_sgd(staleness={workers - 1})", rate / workers, workers * turns)
    assert float(serial["w"].detach()) == pytest.approx(float(states[0].leaves["w"]), rel=1e-12)


def test_with_the_true_curvature_no_delay_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-18: on a parabola, with H in place of lambda g g, every step of late workers is that of undelayed SGD (1e-12);
    without a correction it is not. The server keeps what each of its workers has read, p more copies."""
    rate, workers, turns = 0.2, 3, 8
    task, machines = bowl(rate), cluster_of(workers + 1)
    graph = capture(task, precision="fp64")

    def exact(rank: Rank, act: Apply, gradient: torch.Tensor, settings: dict[str, float]) -> None:
        moved = rank.state.parameter[act.bucket] - rank.state.outbox[act.bucket, act.source]
        gradient.add_(moved, alpha=act.share)

    def ended(plan: str) -> float:
        states, _ = train_in_process(
            Workload(task, graph, precision="fp64"),
            call(plan, graph, machines),
            machines,
            turns,
            order=5,
            slow={1: 0.1},
        )
        outboxes = states[workers].outbox
        assert sum(box.numel() for box in outboxes.values()) == workers * states[workers].leaves["w"].numel()
        return float(states[workers].leaves["w"])

    undelayed = (1 - rate / workers) ** (workers * turns)
    assert abs(ended("dc_asgd(strength=0.0)") / undelayed - 1) > 1e-3
    monkeypatch.setitem(CORRECTIONS, "delay", exact)
    assert ended("dc_asgd") == pytest.approx(undelayed, rel=1e-12)
