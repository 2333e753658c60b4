"""Methods beside their papers' recurrences, written out by hand on least squares, whose gradients are A x - b."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from partita.lowering.mixing_matrices import mixing_matrices_of
from partita.oracles.check import ledger_of
from partita.plan.sync import Gossip
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.feed import Feed
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import Line, Numbers, cluster_of

SIZE, STEPS, RATE = 4, 6, 0.1


@pytest.fixture(autouse=True)
def always_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feed, "positions", lambda self, step, start, count: list(range(start, start + count)))


def states_of(text: str, *, servers: int = 0, **more: Any) -> dict[int, State]:
    """All ranks after some steps, the servers last."""
    task = Task(
        name="line", model=Line, data=Numbers(40), batch_size=40,
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
    )  # fmt: skip
    graph, machines = capture(task, precision="fp64"), cluster_of(SIZE + servers)
    return train_in_process(
        Workload(task, graph, precision="fp64"), call(text, graph, machines), machines, STEPS, **more
    )[0]


def ended(text: str, *, settle: bool = False) -> torch.Tensor:
    """The weights of all workers, one row a worker."""
    states = states_of(text, settle=settle)
    return torch.stack([states[rank].leaves["row"].detach() for rank in range(SIZE)])


def slope(x: torch.Tensor) -> torch.Tensor:
    """The gradient of each worker's own ten samples, where it has the row of `x`."""
    data = Numbers(40)
    inputs, wanted = data.x.double().view(SIZE, 10, 6), data.y.double().view(SIZE, 10)
    apart = torch.einsum("wsi,wi->ws", inputs, x) - wanted
    return torch.einsum("wsi,ws->wi", inputs, apart) / 5


def stepped(x: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    """SGD of each worker by itself."""
    for _ in range(steps):
        x = x - RATE * slope(x)
        yield x


def elastic(delta: float, alpha: float) -> torch.Tensor:
    """Two steps v = delta v - rate g(x + delta v), x += v; then x -= alpha (x - centre), and the centre moves by the
    sum of these."""
    x, v, centre = (torch.zeros(SIZE, 6, dtype=torch.float64) for _ in range(3))
    for step in range(STEPS):
        v = delta * v - RATE * slope(x + delta * v)
        x = x + v
        if step % 2:
            force = alpha * (x - centre)
            x, centre = x - force, centre + force.sum(0)
    return x


@pytest.mark.parametrize("delta", [0.8, 0.3])
@pytest.mark.parametrize("alpha", [1e-30, 0.15])
def test_elastic_workers_with_momentum(delta: float, alpha: float) -> None:
    """DP-19, EAMSGD; almost without a spring it is Nesterov's method on each worker."""
    found = ended(f"eamsgd(period=2,momentum={delta},rate={alpha})")
    assert float((found - elastic(delta, alpha)).abs().max()) <= 1e-12
    assert float((found - elastic(delta / 2, alpha)).abs().max()) > 1e-3


def test_elastic_workers() -> None:
    """DP-19, EASGD, whose alpha is 0.9 / p where none is given."""
    for text, alpha in (("easgd(period=2,rate=0.15)", 0.15), ("easgd(period=2)", 0.9 / SIZE)):
        assert float((ended(text) - elastic(0.0, alpha)).abs().max()) <= 1e-12


@pytest.mark.parametrize("keep", [0.0, 0.25])
@pytest.mark.parametrize("periods", [(2, 2, 2), (4, 2)])
def test_an_outer_step_with_nesterovs_momentum(keep: float, periods: tuple[int, ...]) -> None:
    """EX-01: u = m u + d, w -= rate (d + m u), where d is the mean of w - x; then x = keep x + (1 - keep) w. So it is
    after a last period that is shorter."""
    x, w, u = torch.zeros(SIZE, 6, dtype=torch.float64), torch.zeros(6).double(), torch.zeros(6).double()
    for period in periods:
        *_, x = stepped(x, period)
        d = (w - x).mean(0)
        u = 0.6 * u + d
        w = w - 0.5 * (d + 0.6 * u)
        x = keep * x + (1 - keep) * w
    found = ended(f"diloco(period={periods[0]},rate=0.5,momentum=0.6,keep={keep})")
    assert float((found - x).abs().max()) <= 1e-12


def test_one_mean_at_the_end() -> None:
    """DP-24: the mean over all workers, of whom each has trained alone."""
    *_, x = stepped(torch.zeros(SIZE, 6, dtype=torch.float64), STEPS)
    assert float((ended("parallel_sgd", settle=True) - x.mean(0)).abs().max()) <= 1e-12
    assert float((ended("parallel_sgd") - x).abs().max()) <= 1e-12


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_a_delay_is_compensated(decay: float) -> None:
    """DP-18: w -= rate / p (g + lambda g g (w - w_read)); adaptive, lambda is over the root of MS = m MS + (1 - m) g g.
    With the other sign it is not."""
    plan = f"dc_asgd(strength=2.0,decay={decay})"
    states = states_of(plan, servers=1, order=5, slow={1: 0.1})
    found, ledger = states[SIZE].leaves["row"].detach(), ledger_of(states)
    assert len(ledger) == SIZE * STEPS
    assert any(merge.read < at for at, merge in enumerate(ledger))

    def served(strength: float) -> torch.Tensor:
        versions, mean = [torch.zeros(6, dtype=torch.float64)], torch.zeros(6, dtype=torch.float64)
        for merge in ledger:
            now, read = versions[-1], versions[merge.read]
            g = slope(read.expand(SIZE, 6))[merge.worker]
            mean = decay * mean + (1 - decay) * g * g
            late = strength * g * g * (now - read) / ((mean + 1e-7).sqrt() if decay else 1.0)
            versions.append(now - RATE / SIZE * (g + late))
        return versions[-1]

    assert float((found - served(2.0)).abs().max()) <= 1e-12
    assert float((found - served(-2.0)).abs().max()) > 1e-4


def test_what_was_not_sent_is_sent_later() -> None:
    """SP-02: each worker sends the 3 largest of its gradient and what is left of those before; forgetting that is
    another training."""

    def served(kept: float) -> torch.Tensor:
        w, held = torch.zeros(6, dtype=torch.float64), torch.zeros(SIZE, 6, dtype=torch.float64)
        for _ in range(STEPS):
            held = kept * held + slope(w.expand(SIZE, 6)) / SIZE
            sent = torch.zeros_like(held)
            largest = held.abs().topk(3).indices
            sent.scatter_(1, largest, held.gather(1, largest))
            w, held = w - RATE * sent.sum(0), held - sent
        return w

    found = ended("ddp(codec=topk(ratio=0.5))")
    assert float((found - served(1.0)).abs().max()) <= 1e-12
    assert float((found - served(0.0)).abs().max()) > 1e-3


def test_a_late_change_enters_the_weights_of_then() -> None:
    """EX-01, streaming: d is taken at the end of a period, and enters after the first step of the next one or at the
    run's end, where a worker keeps the share 0.25 of the weights that it has by then."""
    x, w = torch.zeros(SIZE, 6, dtype=torch.float64), torch.zeros(6).double()
    u, d = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(STEPS + 1):
        x = x - RATE * slope(x) * (step < STEPS)
        if step % 2:
            d = (w - x).mean(0)
        elif step:
            u = 0.6 * u + d
            w = w - 0.5 * (d + 0.6 * u)
            x = 0.25 * x + 0.75 * w
    found = ended("diloco(period=2,lag=1,rate=0.5,momentum=0.6,keep=0.25)")
    assert float((found - x).abs().max()) <= 1e-12


@pytest.mark.parametrize(
    ("text", "delta", "alpha"), [("easgd(", 0.0, 0.9 / SIZE), ("eamsgd(momentum=0.6,rate=0.15,", 0.6, 0.15)]
)
def test_springs_at_a_server(text: str, delta: float, alpha: float) -> None:
    """DP-19, asynchronous: two steps with Nesterov's momentum, then the force towards the centre that a worker has read
    moves both, in the order in which workers met the server; with another momentum it is another training."""
    states = states_of(f"{text}servers=1,period=2)", servers=1, settle=False, slow={1: 0.02})
    ledger = ledger_of(states)
    assert {merge.worker for merge in ledger} == set(range(SIZE))
    assert any(merge.read < i for i, merge in enumerate(ledger))
    found = torch.stack([states[rank].leaves["row"].detach() for rank in range(SIZE)])

    def served(delta: float) -> torch.Tensor:
        x, v = (torch.zeros(SIZE, 6, dtype=torch.float64) for _ in range(2))
        versions = [torch.zeros(6, dtype=torch.float64)]
        for merge in ledger:
            w = merge.worker
            for _ in range(2):
                v[w] = delta * v[w] - RATE * slope(x + delta * v)[w]
                x[w] += v[w]
            force = alpha * (x[w] - versions[merge.read])
            x[w] -= force
            versions.append(versions[-1] + force)
        return x

    assert float((found - served(delta)).abs().max()) <= 1e-12
    assert float((found - served(delta + 0.1)).abs().max()) > 1e-4


def test_consensus_by_multipliers() -> None:
    """DP-20, lockstep: two steps on f + y (x - z) + rho / 2 (x - z)^2, z = mean of x + y / rho, y += rho (x - z)."""
    x, y, z = (torch.zeros(SIZE, 6, dtype=torch.float64) for _ in range(3))
    for step in range(STEPS):
        x = x - RATE * (slope(x) + y + 0.7 * (x - z))
        if step % 2:
            z = (x + y / 0.7).mean(0).expand(SIZE, 6)
            y = y + 0.7 * (x - z)
    assert float((ended("admm(period=2,penalty=0.7)") - x).abs().max()) <= 1e-12
    assert float((ended("admm(period=2,penalty=0.7)", settle=True) - z).abs().max()) <= 1e-12


def test_sums_that_are_pushed() -> None:
    """DP-23 with push-sum: s += what two steps change of s / w, then s and w are mixed by columns that sum to 1."""
    matrices = [torch.tensor(m).double() for m in mixing_matrices_of(Gossip("push", 1, 3, 0), SIZE, cluster_of(SIZE))]
    s, w = torch.zeros(SIZE, 6, dtype=torch.float64), torch.ones(SIZE, 1, dtype=torch.float64)
    for matrix in matrices:
        assert torch.allclose(matrix.sum(0), torch.ones(SIZE).double())
        *_, x = stepped(s / w, 2)
        s, w = matrix @ (s + x - s / w), matrix @ w
    assert float((w - 1).abs().max()) > 0.1
    assert float((ended("gossip(direction=push,draws=3,period=2)") - s / w).abs().max()) <= 1e-12
