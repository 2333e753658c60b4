"""Runs through servers that wait for nobody equal the serial replay of their ledgers, whatever the order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from partita.errors import ProgramError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.oracles.check import TOLERANCE, checked, difference, gathered, ledger_of
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.plan.plan import Plan
from partita.program.instruction import Apply
from partita.program.ledger import Merge
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.acts import ACTS
from partita.runtime.leg import legs
from partita.runtime.rank import Rank
from partita.runtime.serving import CORRECTIONS, apply
from partita.runtime.state import State, rows
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS = 6
PLANS = (
    "ps_async(bucket_bytes=400)",
    "ps_async(servers=2,bucket_bytes=200)",
    "ps_async(microbatches=2)",
    "downpour(push=2,bucket_bytes=400)",
    "downpour(fetch=3,bucket_bytes=400)",
    "downpour(push=2,fetch=2)",
    "ssp(bucket_bytes=400)",
    "ssp(staleness=0,servers=2,bucket_bytes=200)",
    "softsync(bucket_bytes=400)",
    "softsync(n=1)",
    "backup_workers(bucket_bytes=400)",
    "dynsgd(bucket_bytes=400)",
    "dc_asgd(strength=0.5,bucket_bytes=400)",
    "dc_asgd(strength=0.5,decay=0.9,bucket_bytes=400)",
    "easgd(servers=1,period=2,bucket_bytes=400)",
    "eamsgd(servers=1,period=4,rate=0.2,bucket_bytes=400)",
    "admm(need=2,period=2,bucket_bytes=400)",
    "ps_async(codec=threshold(threshold=0.02),bucket_bytes=400)",
    "ps_async(own=false,codec=onebit,servers=2,bucket_bytes=400)",
    "ssp(codec=topk(ratio=0.2),staleness=1)",
    "downpour(push=2,fetch=2,codec=onebit)",
    "softsync(codec=terngrad,bucket_bytes=400)",
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("order", [0, 1])
def test_a_run_equals_the_replay_of_its_ledger(plan: str, order: int) -> None:
    """DP-05, DP-09, DP-10, DP-14, DP-16, DP-17, DP-18, DP-19, DP-20: the serial oracle with the recorded versions."""
    machines = cluster_of(4 + plan.count("servers=2"))
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=STEPS, order=order)
    assert found["max_difference"] <= TOLERANCE
    assert "replay" in found["against"]


@pytest.mark.parametrize("rule", ["lars", "lamb"])
def test_a_shorter_last_period_enters_as_the_mean_of_its_own_minibatches(rule: str) -> None:
    """Which a rule that is not linear tells from half of it."""
    plan, machines = f"downpour(push=2,bucket_bytes=400,rule={rule})", cluster_of(3)
    assert checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=3)["equal"]


def test_what_is_not_significant_waits_at_its_worker() -> None:
    """DP-05, the filter of what has changed significantly: what never is stays there whole, and no weight moves."""
    task = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    some, none = (Run(f"ps_async(codec=threshold(threshold={bound}))", 3, task=task) for bound in (0.02, 1e9))
    held = [float(run.states[0].kept[Space.RESIDUAL, "b0"].abs().sum()) for run in (some, none)]
    assert 0 < held[0] < held[1]
    first = dict(fresh(task, seed=0, precision="fp64").model.named_parameters())
    assert difference(none.weights, first) == 0 < difference(some.weights, first)
    assert all((Space.RESIDUAL, "b0") not in run.states[2].kept for run in (some, none))


@pytest.mark.parametrize(("plan", "counts"), [
    ("downpour(push=3,fetch=2,bucket_bytes=400)", (3, 3, 3, 1)),
    ("downpour(push=2,fetch=3,servers=2,bucket_bytes=200,rate_warmup=12)", (2, 2, 2, 2, 2)),
    ("downpour(push=4,fetch=4,own=false,bucket_bytes=400)", (4, 4, 2)),
])  # fmt: skip
def test_a_shorter_last_round_pushes_as_often(plan: str, counts: tuple[int, ...]) -> None:
    """DP-09: the sum over `push` minibatches, not over all that are left; the weights are those of the sums."""
    rates = replace(sgd(), schedule=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.8**k))
    run = Run(plan, 2 + plan.count("servers=2") - plan.count("own=false"), task=rates, steps=10)
    (bucket, *_) = run.program.trained
    assert [m.turn for m in run.ledger if m.bucket == bucket.name] == [*range(len(counts))]
    assert run.replayed(run.ledger) <= TOLERANCE
    one, fetch, at = fresh(rates, seed=0, precision="fp64"), int(plan[plan.index("fetch=") + 6]), 0
    read, weights = [], list(one.model.parameters())
    now = [w.detach().clone() for w in weights]
    for push, count in enumerate(counts):
        read = [w.clone() for w in now] if push % fetch == 0 else read
        for w, old in zip(weights, read, strict=True):
            w.data.copy_(old)
        found = [one.gradients(step, [(0, 12)], 12) for step in range(at, at + count)]
        warm = min((at + 1) / 12, 1.0) if "warmup" in plan else 1.0
        now = [w - 0.1 * 0.8**at * warm * sum(g) for w, g in zip(now, zip(*found, strict=True), strict=True)]
        at += count
    assert difference(run.weights, dict(zip((n for n, _ in one.model.named_parameters()), now, strict=True))) <= 1e-12


def test_pulls_of_one_turn_may_wait_for_each_other_by_bucket() -> None:
    """DP-19 on two servers: a worker's pull of one bucket enters before the other's centre of its last turn has come,
    and that may have been made by a pull which has read the first."""
    run = Run("easgd(bucket_bytes=100,servers=2,period=1,rate=0.1)", 4, 29, slow={1: 0.1})
    assert run.replayed(run.ledger) <= TOLERANCE


class Run:
    """One run in this process in fp64: its states, ledger and final weights."""

    def __init__(
        self, plan: str, size: int, order: int = 0, task: Task | None = None, steps: int = STEPS,
        slow: dict[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.task, self.machines, self.steps = task or perceptron(), cluster_of(size), steps
        self.graph: Graph = capture(self.task, precision="fp64")
        self.plan: Plan = call(plan, self.graph, self.machines)
        self.program = last_program(self.graph, self.plan, self.machines)
        self.states: dict[int, State] = train_in_process(
            Workload(self.task, self.graph, precision="fp64", keyed=True),
            self.plan,
            self.machines,
            steps,
            order=order,
            slow=slow,
        )[0]
        self.ledger = ledger_of(self.states)
        self.weights = gathered(self.program, self.states)

    def replayed(self, ledger: Sequence[Merge]) -> float:
        """How far a ledger's replay is from the weights."""
        one = fresh(self.task, seed=0, precision="fp64")
        parts = legs(self.graph, self.plan, self.machines, self.steps)
        return difference(self.weights, replayed(one, parts, ledger))


def sgd(momentum: float = 0.0) -> Task:
    return replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum))


def apart(one: Run, other: Run) -> float:
    return difference(one.weights, {name: other.weights[name] for name, _ in one.task.model().named_parameters()})


def test_the_replay_can_fail() -> None:
    """A ledger that claims another version read, or another order, leads elsewhere; an impossible one is refused."""
    run = Run("ps_async", 4)
    assert run.replayed(run.ledger) <= TOLERANCE
    stale = next(i for i, merge in enumerate(run.ledger) if merge.staleness > 0)
    fresher = replace(run.ledger[stale], read=run.ledger[stale].read + 1)
    assert run.replayed((*run.ledger[:stale], fresher, *run.ledger[stale + 1 :])) > 1e-6
    never = replace(run.ledger[0], read=1)
    with pytest.raises(ProgramError, match="never made"):
        run.replayed((never, *run.ledger[1:]))


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_no_read_is_staler_than_its_bound(staleness: int, servers: int) -> None:
    """DP-14, DP-05: a read at clock c sees every update of clocks before c - s; the bound is reached."""
    reached = max(
        observed(Run(f"ssp(staleness={staleness},servers={servers},bucket_bytes=400)", 3 + servers, order,
                     steps=8, slow={order % 3: 0.01}), staleness)
        for order in range(6)
    )  # fmt: skip
    assert reached == staleness


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 500))
@pytest.mark.parametrize("name", ["ssp", "dynsgd"])
def test_no_read_is_staler_than_its_bound_in_ten_thousand_schedules(name: str, first: int) -> None:
    for order in range(first, first + 500):
        staleness = order % 4
        slow = {order % 3: (0.01, 0.1, 0.5)[order // 3 % 3]}
        run = Run(f"{name}(staleness={staleness},bucket_bytes=400)", 4, order, steps=5, slow=slow)
        assert observed(run, staleness) <= staleness
        if order % 100 == 0:
            assert run.replayed(run.ledger) <= TOLERANCE


def observed(run: Run, staleness: int) -> int:
    """By how many clocks a read ran ahead of the slowest update that it missed; fails where that is over the bound."""
    worst = 0
    for bucket in {merge.bucket for merge in run.ledger}:
        merges = [merge for merge in run.ledger if merge.bucket == bucket]
        for merge in merges:
            unseen = [other.turn for other in merges[merge.read :] if other.worker != merge.worker]
            behind = merge.turn - min(unseen, default=merge.turn)
            assert behind <= staleness, (merge, behind)
            worst = max(worst, behind)
    return worst


def test_staleness_0_is_the_lockstep_sum() -> None:
    """DP-14: increments of clock c are withheld from reads at clock c; DP-17: a clock's mean is BSP's."""
    lockstep = Run("ps_sync(bucket_bytes=400)", 4, 0, sgd())
    for order in range(3):
        for name in ("ssp", "dynsgd"):
            late = Run(f"{name}(staleness=0,bucket_bytes=400)", 4, order, sgd(), slow={order: 0.02})
            assert apart(late, lockstep) <= 1e-12


def test_with_staleness_the_sum_is_another_one() -> None:
    late = Run("ssp(staleness=3)", 4, 1, sgd(), slow={0: 0.02})
    assert apart(late, Run("ps_sync", 4, 0, sgd())) > 1e-6


def test_no_compensation_is_asynchronous_sgd_to_the_bit() -> None:
    """DP-18: lambda = 0 is ASGD; without delay it is SGD; with both it is neither."""
    none, plain = Run("dc_asgd(strength=0.0)", 4, 3), Run("ps_async", 4, 3)
    assert none.ledger == plain.ledger
    assert all(torch.equal(none.weights[name], plain.weights[name]) for name in plain.weights)
    alone, serial = Run("dc_asgd(strength=1.0)", 2, 0), Run("single", 1, 0)
    assert all(torch.equal(alone.weights[name], serial.weights[name]) for name in serial.weights)
    assert apart(Run("dc_asgd(strength=1.0)", 4, 3), plain) > 1e-6


def test_one_replica_with_adagrad_is_serial_adagrad() -> None:
    """DP-09: p = 1, n_fetch = n_push = 1: gamma g / (root of the sum of g g + 1e-10)."""
    task = replace(perceptron(), optimizer=lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-10))
    run = Run("downpour(bucket_bytes=400)", 2, 0, task)
    one = fresh(task, seed=0, precision="fp64")
    weights = list(one.model.parameters())
    sums = [torch.zeros_like(w) for w in weights]
    for step in range(STEPS):
        for w, total, g in zip(weights, sums, one.gradients(step, [(0, 12)], 12), strict=True):
            total += g * g
            w.data -= 0.05 * g / (total.sqrt() + 1e-10)
    assert difference(run.weights, dict(one.model.named_parameters())) <= 1e-12


def test_the_increments_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-05, first generation: the sum of all that was pushed is what became of the weights, in any order."""
    pushed: dict[str, torch.Tensor] = {}

    def counted(rank: Rank, act: Apply, name: str, round: int) -> None:
        came = rank.state.inbox_of(act.bucket, act.source).clone()
        pushed[act.bucket] = pushed[act.bucket] + came if act.bucket in pushed else came
        apply(rank, act, name, round)

    monkeypatch.setitem(ACTS, Apply, counted)
    for order in range(4):
        pushed.clear()
        run = Run("ssp(staleness=2,bucket_bytes=400)", 4, order)
        start = {name: p.detach() for name, p in fresh(run.task, seed=0, precision="fp64").model.named_parameters()}
        for bucket in run.program.trained:
            change = [rows(run.weights[p.parameter] - start[p.parameter], p).reshape(-1) for p in bucket.pieces]
            assert torch.allclose(torch.cat(change), pushed[bucket.name], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_eight_workers_push_a_thousand_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-05: 8 x 1,000 tasks under a bounded delay, one worker at half speed: all that was pushed is what became of the
    weights, and no read is staler than its bound, which is reached."""
    pushed: list[torch.Tensor] = []

    def counted(rank: Rank, act: Apply, name: str, round: int) -> None:
        pushed.append(rank.state.inbox_of(act.bucket, act.source).clone())
        apply(rank, act, name, round)

    monkeypatch.setitem(ACTS, Apply, counted)
    run = Run("ssp(staleness=2)", 9, 5, sgd(), steps=1000, slow={3: 0.5})
    start = {name: p.detach() for name, p in fresh(run.task, seed=0, precision="fp64").model.named_parameters()}
    (bucket,) = run.program.trained
    change = torch.cat([rows(run.weights[p.parameter] - start[p.parameter], p).reshape(-1) for p in bucket.pieces])
    assert len(pushed) == len(run.ledger) == 8000
    assert torch.allclose(change, torch.stack(pushed).sum(0), rtol=1e-9, atol=1e-10)
    assert observed(run, 2) == 2


def test_with_a_step_a_gradient_softsync_is_asynchronous() -> None:
    """DP-16: n = lambda, c = 1 is DP-10, to the bit and in its ledger; n = 1 is not."""
    for order in range(2):
        one, every = Run("softsync(n=3)", 4, order), Run("ps_async", 4, order)
        assert one.ledger == every.ledger
        assert all(torch.equal(one.weights[name], every.weights[name]) for name in every.weights)
    assert apart(Run("softsync(n=1)", 4, 1), every) > 1e-6


def test_a_clocks_gradients_weigh_one_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-17: what all workers bring in one clock enters with weights that sum to 1: whatever the order, the clock's
    gradients, if all are the same, are one step of the whole minibatch."""
    entered: dict[int, torch.Tensor] = {}
    revise = CORRECTIONS["staleness"]

    def alike(rank: Rank, act: Apply, gradient: torch.Tensor, settings: dict[str, float]) -> None:
        clock = rank.state.ledger.turns[act.bucket, act.source] - 1
        gradient.fill_(act.share)
        revise(rank, act, gradient, settings)
        entered[clock] = entered.get(clock, torch.zeros_like(gradient)) + gradient

    monkeypatch.setitem(CORRECTIONS, "staleness", alike)
    for order in range(4):
        entered.clear()
        Run("dynsgd(staleness=2)", 5, order, sgd(), slow={order: 0.1})
        assert len(entered) == STEPS
        assert all(float((total - 1).abs().max()) <= 1e-12 for total in entered.values())


def test_a_step_takes_the_first_gradients_and_drops_the_rest() -> None:
    """DP-11: exactly N a step, all of its version; the weights are those of the accepted shards; the rest goes on."""
    lockstep = Run("ps_sync(bucket_bytes=400)", 5, steps=8)
    for order in range(4):
        run = Run("backup_workers(backup=1,bucket_bytes=400)", 5, order, steps=8, slow={order % 4: 0.02})
        for bucket in run.program.trained:
            merges = [merge for merge in run.ledger if merge.bucket == bucket.name]
            assert [merge.turn for merge in merges] == [step for step in range(8) for _ in range(3)]
            assert all(merge.read == merge.applied == merge.turn for merge in merges)
        brought = [sum(merge.worker == w for merge in run.ledger) for w in range(4)]
        assert brought[order % 4] < min(n for w, n in enumerate(brought) if w != order % 4)
        assert run.replayed(run.ledger) <= TOLERANCE
        assert apart(run, lockstep) > 1e-6


@pytest.mark.parametrize(("plan", "size"), [(PLANS[10], 4), ("backup_workers(servers=2,bucket_bytes=200)", 5)])
def test_a_gradient_that_enters_was_computed_on_one_version(plan: str, size: int) -> None:
    """DP-11: a slow worker may get one bucket at a newer version than another; it then has no part in that step."""
    for order in range(3):
        run = Run(plan, size, order, steps=8, slow={order % 3: (0.02, 0.1, 0.3, 0.5)[order % 4]})
        assert all(merge.read == merge.applied == merge.turn for merge in run.ledger)
        assert run.replayed(run.ledger) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
@pytest.mark.parametrize("size", [4, 5])
def test_no_versions_mix_in_two_thousand_schedules(size: int, first: int) -> None:
    for order in range(first, first + 100):
        slow = {order % 3: (0.02, 0.1, 0.3, 0.5)[order // 3 % 4]}
        run = Run(f"backup_workers(servers={size - 3},bucket_bytes=200)", size, order, steps=5, slow=slow)
        assert run.replayed(run.ledger) <= TOLERANCE


def test_the_step_is_the_mean_over_the_accepted_samples() -> None:
    """DP-11, exact on the subset."""
    run = Run("backup_workers(backup=2)", 5, 0, sgd(), steps=1)
    one = fresh(run.task, seed=0, precision="fp64")
    taken = sorted(merge.worker for merge in run.ledger)
    assert len(taken) == 2
    gradients = one.gradients(0, [(3 * w, 3) for w in taken], 6)
    for p, gradient in zip(one.model.parameters(), gradients, strict=True):
        p.data -= 0.1 * gradient
    assert difference(run.weights, dict(one.model.named_parameters())) <= 1e-12


def test_shards_update_as_one_server_does() -> None:
    """DP-07: in lockstep k servers are identical to one; DP-05, third generation: so is a bounded delay of 0."""
    one, plain = Run("ps_sync(bucket_bytes=400)", 4), Run("ps_sync", 4, 0, sgd())
    assert apart(Run("ps_sync(servers=2,bucket_bytes=200)", 5), one) <= 1e-12
    assert apart(Run("dynsgd(staleness=0,servers=2,bucket_bytes=200)", 5, 2, sgd()), plain) <= 1e-12
